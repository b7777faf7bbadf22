//! gRPC of Rust: this test program as a server and as a client of tonic.

use farcall_echo::v1::Message;
use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_server::{Echo, EchoServer};
use tokio_stream::{Iter, iter};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

use crate::programs::{free_port, output, wait_for};
use crate::support::{Running, moved_bytes, program};

const END: &str = "FARCALL_TONIC_END";
const ENTRY: &str = "tonic::run_one_end";
const CALLS: usize = 200;

/// Replies with the received messages.
struct Answers;

type Messages = Vec<Result<Message, Status>>;

#[tonic::async_trait]
impl Echo for Answers {
    async fn unary(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn collect(&self, request: Request<Streaming<Message>>) -> Result<Response<Message>, Status> {
        let (mut messages, mut all) = (request.into_inner(), Vec::new());
        while let Some(message) = messages.message().await? {
            all.extend_from_slice(&message.payload);
        }
        Ok(Response::new(Message { payload: all.into(), times: 0 }))
    }

    type RepeatStream = Iter<<Messages as IntoIterator>::IntoIter>;

    async fn repeat(&self, request: Request<Message>) -> Result<Response<Self::RepeatStream>, Status> {
        let message = request.into_inner();
        let all: Messages = (0..message.times).map(|_| Ok(message.clone())).collect();
        Ok(Response::new(iter(all)))
    }

    type ConverseStream = Streaming<Message>;

    async fn converse(
        &self,
        request: Request<Streaming<Message>>,
    ) -> Result<Response<Self::ConverseStream>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

/// A message of up to 100,000 bytes that depend on the number.
fn message(number: usize) -> Message {
    let len_bytes = 1 + number * 7_919 % 100_000;
    let payload: Vec<u8> = (0..len_bytes).map(|at| ((at * 31) ^ number) as u8).collect();
    Message { payload: payload.into(), times: 0 }
}

async fn call(port: &str) {
    let place = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    let mut client = EchoClient::new(place.connect().await.unwrap());
    let calls = (0..CALLS).map(|number| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let answer = client.unary(message(number)).await.unwrap().into_inner();
            assert!(answer == message(number), "wrong bytes");
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let mut answers = client.converse(iter((0..CALLS).map(message))).await.unwrap().into_inner();
    for number in 0..CALLS {
        assert!(answers.message().await.unwrap() == Some(message(number)), "wrong bytes");
    }
    assert!(answers.message().await.unwrap().is_none());
    let all = client.collect(iter((0..20).map(message))).await.unwrap().into_inner();
    let sent: Vec<u8> = (0..20).flat_map(|number| message(number).payload).collect();
    assert!(all.payload == sent, "wrong bytes");
    let repeated = Message { times: 500, ..message(7) };
    let mut answers = client.repeat(repeated.clone()).await.unwrap().into_inner();
    for _ in 0..500 {
        assert!(answers.message().await.unwrap().as_ref() == Some(&repeated), "wrong bytes");
    }
}

/// Program of both ends of the next test; no test by itself.
#[test]
fn run_one_end() {
    let Ok(end) = std::env::var(END) else { return };
    let (role, port) = end.split_once(' ').unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        if role == "client" {
            return call(port).await;
        }
        let place = format!("127.0.0.1:{port}").parse().unwrap();
        let limit_bytes = 1 << 30;
        let service = EchoServer::new(Answers).max_decoding_message_size(limit_bytes);
        Server::builder().add_service(service).serve(place).await.unwrap();
    });
}

#[test]
fn serves_grpc_of_rust() {
    let port = free_port();
    let end = |role: &str| {
        let mut command = program(std::env::current_exe().unwrap().to_str().unwrap(), true);
        // This program has system calls of rustix, on files alone.
        command.env("FARCALL_RUN_ALLOW_DIRECT_CALLS", "1");
        command.args(["--exact", ENTRY, "--nocapture"]).env(END, format!("{role} {port}"));
        command
    };
    let mut server = Running::start(end("server"));
    wait_for(&port);
    output(&mut end("client"));
    let moved = moved_bytes(server.stop());
    assert!(moved.is_none_or(|bytes| bytes > 1_000_000), "{moved:?}");
}
