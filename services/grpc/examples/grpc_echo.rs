//! A server and a client that tonic generated, over a stream in registered memory, without HTTP/2.
//!
//! `cargo run -p farcall-grpc --example grpc_echo`

use std::pin::Pin;

use farcall_echo::v1::Message;
use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_server::{Echo, EchoServer};
use farcall_grpc::{Channel, GrpcOptions, Server, Services};
use farcall_link::Nic;
use farcall_softnic::SoftNic;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

struct Service;

type Messages = Pin<Box<dyn Stream<Item = Result<Message, Status>> + Send>>;

#[tonic::async_trait]
impl Echo for Service {
    async fn unary(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn collect(&self, request: Request<Streaming<Message>>) -> Result<Response<Message>, Status> {
        let mut messages = request.into_inner();
        let (mut payload, mut times) = (Vec::new(), 0);
        while let Some(message) = messages.message().await? {
            payload.extend_from_slice(&message.payload);
            times += 1;
        }
        Ok(Response::new(Message { payload: payload.into(), times }))
    }

    type RepeatStream = Messages;

    async fn repeat(&self, request: Request<Message>) -> Result<Response<Messages>, Status> {
        let message = request.into_inner();
        let messages = (0..message.times).map(move |_| Ok(message.clone()));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }

    type ConverseStream = Messages;

    async fn converse(&self, request: Request<Streaming<Message>>) -> Result<Response<Messages>, Status> {
        Ok(Response::new(Box::pin(request.into_inner())))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nic = Nic::open(&SoftNic::new())?;
    let server = Server::bind(&nic, "127.0.0.1:0", GrpcOptions::default())?;
    let address = server.address()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving =
        tokio::spawn(server.serve_until(Services::new().add_service(EchoServer::new(Service)), stopped));

    // A client, here or in another process.
    let mut client = EchoClient::new(Channel::connect(&nic, address, GrpcOptions::default()).await?);
    let hello = Message { payload: "hello".into(), times: 3 };
    assert_eq!(client.unary(hello.clone()).await?.into_inner(), hello);
    let mut answers = client.repeat(hello).await?.into_inner();
    while let Some(answer) = answers.next().await {
        println!("{}", String::from_utf8_lossy(&answer?.payload));
    }

    drop(stop);
    let _stopped = serving.await??;
    Ok(())
}
