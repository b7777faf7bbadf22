//! Direct clients, with servers that answer directly and with those that do not.

use std::time::Duration;

use farcall_echo::v1::Message;
use farcall_echo::v1::echo_direct::EchoDirectClient;
use farcall_echo::v1::echo_server::EchoServer;
use farcall_grpc::frame::{Kind, Writer, metadata};
use farcall_grpc::{Channel, GrpcOptions, PathAndQuery, Server};
use http::HeaderMap;
use tokio::io::AsyncWriteExt;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

use super::support::service::{Behaviour, FAIL, PANIC, SPAWN, WAIT, count, failure, message, told};
use super::support::{Running, Transport, nic, raw, soon, until};

/// Runs a test with a server that answers directly, and with one that does not.
async fn at_each<F: Future<Output = ()>>(test: impl Fn(Running, Behaviour, EchoDirectClient) -> F) {
    for transport in [Transport::Direct, Transport::Native] {
        println!("at {transport:?}");
        let behaviour = Behaviour::default();
        let running = match transport {
            Transport::Direct => Running::start_direct(&behaviour, GrpcOptions::default()).await,
            _ => Running::start(transport, Routes::new(EchoServer::new(behaviour.clone()))).await,
        };
        let channel = Channel::connect(&nic(), running.address, GrpcOptions::default()).await.unwrap();
        soon(test(running, behaviour, EchoDirectClient::new(channel))).await;
    }
}

#[tokio::test]
async fn a_direct_call_is_answered_whatever_its_length() {
    at_each(async |_server, _service, client| {
        for len in [0, 1, 64, 8_000, 9_000, 60_000, 70_000, 700_000, 4_000_000] {
            let sent = message(vec![len as u8; len], 3);
            assert_eq!(client.unary(sent.clone()).await.unwrap().into_inner(), sent);
        }
        let too_long = client.unary(message(vec![0; 4 << 20], 0)).await.unwrap_err();
        assert_eq!(too_long.code(), Code::OutOfRange);
        client.unary(message("", 0)).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn many_direct_calls_at_once_get_their_own_answers() {
    at_each(async |_server, _service, client| {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..16_u32 {
            let client = client.clone();
            tasks.spawn(async move {
                for call in 0..200 {
                    let sent = message(vec![task as u8; (call * 37) as usize % 3_000], call * 16 + task);
                    assert_eq!(client.unary(sent.clone()).await.unwrap().into_inner(), sent);
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn metadata_goes_both_ways_with_direct_calls() {
    at_each(async |_server, _service, client| {
        let mut request = Request::new(message("", 0));
        request.metadata_mut().insert("x-plain", "some words".parse().unwrap());
        request.metadata_mut().append("x-twice", "one".parse().unwrap());
        request.metadata_mut().append("x-twice", "two".parse().unwrap());
        let answer = client.unary(request).await.unwrap();
        assert_eq!(answer.metadata().get("x-plain").unwrap(), "some words");
        assert_eq!(answer.metadata().get_all("x-twice").iter().count(), 2);

        let mut request = Request::new(message("", 0));
        request.metadata_mut().insert("x-long", "y".repeat(20_000).parse().unwrap());
        assert_eq!(client.unary(request).await.unwrap_err().code(), Code::ResourceExhausted);
        client.unary(message("", 0)).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn returns_the_status_of_a_failing_direct_method() {
    at_each(async |_server, _service, client| {
        let (status, expected) = (client.unary(told(FAIL, message("", 0))).await.unwrap_err(), failure());
        assert_eq!(status.code(), expected.code());
        assert_eq!((status.message(), status.details()), (expected.message(), expected.details()));
        assert_eq!(status.metadata().get("x-why").unwrap(), "asked");
        let status = client.unary(told(PANIC, message("", 0))).await.unwrap_err();
        assert_eq!(status.code(), Code::Unknown);
        client.unary(told(SPAWN, message("", 0))).await.unwrap();
        client.unary(message("", 0)).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn drops_the_method_of_a_late_or_cancelled_direct_call() {
    at_each(async |_server, service, client| {
        let mut request = told(WAIT, message("", 0));
        request.set_timeout(Duration::from_millis(50));
        assert_eq!(client.unary(request).await.unwrap_err().code(), Code::DeadlineExceeded);
        // The method may not have started.
        until(|| count(&service.dropped) == count(&service.begun)).await;
        let before = count(&service.begun);
        {
            let mut waiting = std::pin::pin!(client.unary(told(WAIT, message("", 0))));
            tokio::select! {
                answer = &mut waiting => panic!("{answer:?}"),
                () = until(|| count(&service.begun) == before + 1) => {}
            }
            assert_eq!(count(&service.dropped), before);
        }
        until(|| count(&service.dropped) == before + 1).await;
        client.unary(message("", 0)).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn queues_direct_calls_beyond_the_concurrency_limit() {
    let options = GrpcOptions::default().calls_max(2).window_bytes(7);
    let running = Running::start_direct(&Behaviour::default(), options.clone()).await;
    let channel = Channel::connect(&nic(), running.address, options).await.unwrap();
    let client = EchoDirectClient::new(channel);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..20_u8 {
        let client = client.clone();
        tasks.spawn(async move {
            for len in [0, 1, 300] {
                let sent = message(vec![task; len], 1);
                assert_eq!(client.unary(sent.clone()).await.unwrap().into_inner(), sent);
            }
        });
    }
    while let Some(task) = soon(tasks.join_next()).await {
        task.unwrap();
    }
}

#[tokio::test]
async fn a_direct_call_to_a_method_that_is_not_there_is_unimplemented() {
    at_each(async |server, _service, _client| {
        let channel = Channel::connect(&nic(), server.address, GrpcOptions::default()).await.unwrap();
        let path = PathAndQuery::from_static("/farcall.echo.v1.Echo/None");
        let answer: Result<Response<Message>, Status> =
            channel.unary(&path, Request::new(message("", 0))).await;
        assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
    })
    .await;
}

/// Invalid messages: truncated prefix, compressed, too long, too short, and undecodable bytes.
#[tokio::test]
async fn rejects_malformed_requests_and_keeps_the_connection() {
    let service = Behaviour::default();
    let running = Running::start_direct(&service, GrpcOptions::default()).await;
    let mut stream = raw::connect(running.address).await;
    raw::exchange_hellos(&mut stream, raw::HELLO).await.unwrap();
    let bad: [&[u8]; 6] =
        [b"", b"\0\0\0", b"\x01\0\0\0\0", b"\0\0\0\0\x02a", b"\0\0\0\0\0\x10\x05", b"\0\0\0\0\x02\xff\xff"];
    for request in bad {
        let mut out = Vec::new();
        let mut writer = Writer::begin(&mut out, Kind::Call, 3);
        writer.path(farcall_grpc::frame::Path::Literal("/farcall.echo.v1.Echo/Unary"));
        writer.block(|out| metadata::write(&HeaderMap::new(), out));
        writer.put(request);
        writer.end();
        writer.finish(0);
        stream.write_all(&out).await.unwrap();
        let (head, _payload) = soon(raw::next(&mut stream)).await.unwrap();
        assert_eq!((head.kind, head.call), (Kind::Response, 3), "{request:?}");
    }
    assert_eq!(count(&service.begun), 0);
    stream.write_all(&raw::call(3, "/farcall.echo.v1.Echo/Unary", &HeaderMap::new())).await.unwrap();
    soon(raw::next(&mut stream)).await.unwrap();
    assert_eq!(count(&service.begun), 1);
}

#[tokio::test]
async fn direct_calls_of_a_server_that_ends_are_unavailable() {
    let running = Running::start_direct(&Behaviour::default(), GrpcOptions::default()).await;
    let channel = Channel::connect(&nic(), running.address, GrpcOptions::default()).await.unwrap();
    let client = EchoDirectClient::new(channel);
    client.unary(message("", 0)).await.unwrap();
    soon(running.stop()).await.unwrap();
    let status = soon(client.unary(message("", 0))).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let nobody = Server::bind(&nic(), "127.0.0.1:0", GrpcOptions::default()).unwrap().address().unwrap();
    let client = EchoDirectClient::new(Channel::connect_lazy(&nic(), nobody, GrpcOptions::default()));
    assert_eq!(soon(client.unary(message("", 0))).await.unwrap_err().code(), Code::Unavailable);
}
