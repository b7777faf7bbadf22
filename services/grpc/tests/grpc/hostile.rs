//! Peers that violate the protocol.

use std::time::Duration;

use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_server::EchoServer;
use farcall_grpc::frame::{Hello, Kind, Path, Writer, metadata};
use farcall_grpc::{Channel, GrpcOptions};
use farcall_stream::{AsyncStream, AsyncStreamListener, StreamOptions};
use http::{HeaderMap, HeaderValue};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;
use tonic::service::Routes;

use super::support::service::{Behaviour, WAIT, count, message};
use super::support::{Running, Transport, nic, raw, soon, until};

const PATH: &str = "/farcall.echo.v1.Echo/Unary";

fn first_seed() -> u64 {
    std::env::var("FARCALL_TEST_SEED").map_or(1, |seed| seed.parse().unwrap())
}

/// Appends a frame with parts that are valid, or almost.
fn random_frame(rng: &mut ChaCha8Rng, out: &mut Vec<u8>) {
    let kinds =
        [Kind::Call, Kind::Response, Kind::Data, Kind::Trailers, Kind::Reset, Kind::Window, Kind::Goodbye];
    let kind = kinds[rng.random_range(0..kinds.len())];
    let from = out.len();
    let mut writer = Writer::begin(out, kind, rng.random_range(0..6));
    let mut headers = HeaderMap::new();
    if rng.random_bool(0.5) {
        headers.insert("grpc-status", HeaderValue::from(rng.random_range(0..20_u32)));
        headers.insert("grpc-status-details-bin", HeaderValue::from_static("!!"));
    }
    if rng.random_bool(0.3) {
        headers.insert("do", HeaderValue::from_static(WAIT));
    }
    match kind {
        Kind::Call => {
            writer.path(match rng.random_range(0..4) {
                0 => Path::Known(rng.random_range(0..3)),
                1 => Path::Defined(rng.random_range(0..3), PATH),
                2 => Path::Literal("/farcall.echo.v1.Echo/Converse"),
                _ => Path::Literal(PATH),
            });
            writer.block(|out| metadata::write(&headers, out));
        }
        Kind::Response => {
            writer.u16(200);
            writer.block(|out| metadata::write(&headers, out));
            writer.block(|out| metadata::write(&headers, out));
        }
        Kind::Trailers => writer.put_with(|out| metadata::write(&headers, out)),
        Kind::Reset => writer.put(&[rng.random_range(0..20)]),
        Kind::Window => writer.put(&rng.random_range(0..u32::MAX / 2).to_le_bytes()),
        _ => {}
    }
    if !matches!(kind, Kind::Window | Kind::Goodbye | Kind::Trailers) {
        let len = rng.random_range(0..30);
        writer.put(&vec![rng.random_range(0..2); len]);
    }
    if rng.random_bool(0.5) && matches!(kind, Kind::Call | Kind::Response | Kind::Data) {
        writer.end();
    }
    writer.finish(0);
    if rng.random_bool(0.05) {
        let at = rng.random_range(from..out.len());
        out[at] ^= 1 << rng.random_range(0..8);
    }
}

/// Sends random frames until the other end disconnects, and reads its output.
async fn say_random_things(mut stream: AsyncStream, mut rng: ChaCha8Rng) {
    let mut out = Vec::new();
    for _ in 0..rng.random_range(1..60) {
        random_frame(&mut rng, &mut out);
    }
    let (mut reader, mut writer) = tokio::io::split(&mut stream);
    let mut sink = [0; 4_096];
    let say = async {
        let _ended = writer.write_all(&out).await;
        let _ended = writer.shutdown().await;
    };
    let hear = async { while let Ok(1..) = reader.read(&mut sink).await {} };
    let _slow = tokio::time::timeout(Duration::from_millis(50), async { tokio::join!(say, hear) }).await;
}

/// FARCALL_GRPC_ROUNDS sets the number of rounds; FARCALL_TEST_SEED repeats a run.
fn rounds() -> u64 {
    std::env::var("FARCALL_GRPC_ROUNDS").map_or(60, |rounds| rounds.parse().unwrap())
}

#[tokio::test]
async fn whatever_a_client_sends_the_server_serves_others() {
    let first = first_seed();
    println!("FARCALL_TEST_SEED={first}");
    let service = Behaviour::default();
    let server = Running::start(Transport::Native, Routes::new(EchoServer::new(service.clone()))).await;
    let mut good = server.client().await;
    for seed in first..first + rounds() {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut stream = raw::connect(server.address).await;
        if rng.random_bool(0.9) {
            raw::exchange_hellos(&mut stream, raw::HELLO).await.unwrap();
        }
        soon(say_random_things(stream, rng)).await;
        soon(good.unary(message("still here", 1))).await.unwrap();
    }
    // None of their methods is still running.
    until(|| count(&service.dropped) >= count(&service.begun)).await;
    soon(server.stop()).await.unwrap();
}

#[tokio::test]
async fn whatever_a_server_sends_the_client_gets_an_error() {
    let first = first_seed();
    println!("FARCALL_TEST_SEED={first}");
    let mut listener = AsyncStreamListener::bind(&nic(), "127.0.0.1:0", StreamOptions::default()).unwrap();
    let address = listener.address().unwrap();
    for seed in first..first + rounds() {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let serving = async {
            let mut stream = listener.accept().await.unwrap();
            raw::exchange_hellos(&mut stream, raw::HELLO).await;
            let _call = raw::next(&mut stream).await;
            say_random_things(stream, rng).await;
        };
        let calling = async {
            let channel = Channel::connect_lazy(&nic(), address, GrpcOptions::default());
            let mut client = EchoClient::new(channel);
            let stream = tokio_stream::iter([message("a", 1), message("b", 2)]);
            // Random frames may form a valid response.
            if let Ok(answers) = client.converse(stream).await {
                let mut answers = answers.into_inner();
                while let Ok(Some(_)) = answers.message().await {}
            }
        };
        soon(async { tokio::join!(serving, calling) }).await;
    }
}

/// Tests them in one frame with the response, and after a response that has begun.
#[tokio::test]
async fn tolerates_status_details_that_are_not_base64() {
    let mut listener = AsyncStreamListener::bind(&nic(), "127.0.0.1:0", StreamOptions::default()).unwrap();
    let address = listener.address().unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", HeaderValue::from_static("9"));
    headers.insert("grpc-status-details-bin", HeaderValue::from_static("!"));
    for is_one_frame in [true, false] {
        let serving = async {
            let mut stream = listener.accept().await.unwrap();
            raw::exchange_hellos(&mut stream, raw::HELLO).await;
            let (head, _) = raw::next(&mut stream).await.unwrap();
            let mut out = Vec::new();
            let mut writer = Writer::begin(&mut out, Kind::Response, head.call);
            writer.u16(200);
            writer.block(|_| {});
            if is_one_frame {
                writer.block(|out| metadata::write(&headers, out));
                writer.end();
            } else {
                writer.block(|_| {});
            }
            writer.finish(0);
            stream.write_all(&out).await.unwrap();
            if !is_one_frame {
                // Gives the client time to read the beginning of the response; the test passes in either case.
                tokio::time::sleep(Duration::from_millis(20)).await;
                let mut out = Vec::new();
                let mut writer = Writer::begin(&mut out, Kind::Trailers, head.call);
                writer.put_with(|out| metadata::write(&headers, out));
                writer.finish(0);
                stream.write_all(&out).await.unwrap();
            }
            stream
        };
        let channel = Channel::connect_lazy(&nic(), address, GrpcOptions::default());
        let mut client = EchoClient::new(channel);
        let calling = async {
            match client.repeat(message("", 0)).await {
                Ok(answers) => answers.into_inner().message().await.map(|_| ()),
                Err(status) => Err(status),
            }
        };
        let (_stream, answer) = soon(async { tokio::join!(serving, calling) }).await;
        assert_eq!(answer.unwrap_err().code(), Code::FailedPrecondition);
    }
}

#[tokio::test]
async fn serves_others_despite_silent_and_incompatible_clients() {
    let server = Running::start(Transport::Native, Routes::new(EchoServer::new(Behaviour::default()))).await;
    let mut silent = raw::connect(server.address).await;
    let mut newer = raw::connect(server.address).await;
    let theirs =
        raw::exchange_hellos(&mut newer, Hello { version_min: 9, version_max: 9, ..raw::HELLO }).await;
    assert_eq!(theirs.unwrap().version_max, raw::HELLO.version_max, "it says what it speaks, then ends");
    assert!(soon(newer.read(&mut [0; 1])).await.map_or(true, |got| got == 0));
    let mut client = server.client().await;
    soon(client.unary(message("", 0))).await.unwrap();
    // The silent one is closed when its time for the handshake is over.
    let _closed_or_reset = soon(silent.read_to_end(&mut Vec::new())).await;
}

/// A client that starts and cancels calls repeatedly, without waiting or reading.
#[tokio::test]
async fn bounds_calls_cancelled_immediately() {
    let service = Behaviour::default();
    let server = Running::start(Transport::Native, Routes::new(EchoServer::new(service.clone()))).await;
    let mut stream = raw::connect(server.address).await;
    raw::exchange_hellos(&mut stream, raw::HELLO).await.unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("do", HeaderValue::from_static(WAIT));
    let mut reset = Vec::new();
    let mut writer = Writer::begin(&mut reset, Kind::Reset, 3);
    writer.put(&[1]);
    writer.finish(0);
    for _ in 0..500 {
        let call = raw::call(3, PATH, &headers);
        stream.write_all(&call).await.unwrap();
        stream.write_all(&reset).await.unwrap();
        // The number becomes free when the server has ended its side.
        let (head, _) = soon(raw::next(&mut stream)).await.unwrap();
        assert_eq!((head.kind, head.call), (Kind::Reset, 3));
    }
    until(|| count(&service.dropped) == count(&service.begun)).await;
    soon(server.client().await.unary(message("", 0))).await.unwrap();
}
