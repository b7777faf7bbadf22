//! Number of allocations of a direct call at each end, while both poll.

#[path = "../../stream/tests/support/counting.rs"]
mod counting;

use std::sync::{Arc, mpsc};
use std::thread;

use counting::allocations;
use farcall_echo::v1::Message;
use farcall_echo::v1::echo_direct::{self, EchoDirectClient};
use farcall_echo::v1::echo_server::{Echo, EchoServer};
use farcall_grpc::{Channel, GrpcOptions, Server, Services};
use farcall_link::{Nic, WaitStrategy};
use farcall_softnic::SoftNic;
use farcall_stream::StreamOptions;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, Streaming};

/// Replies with the number of allocations of its thread so far.
struct Counts;

#[tonic::async_trait]
impl Echo for Counts {
    async fn unary(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        let message = request.into_inner();
        Ok(Response::new(Message { times: allocations() as u32, ..message }))
    }

    async fn collect(&self, _: Request<Streaming<Message>>) -> Result<Response<Message>, Status> {
        Err(Status::unimplemented("not here"))
    }

    type RepeatStream = Streaming<Message>;

    async fn repeat(&self, _: Request<Message>) -> Result<Response<Self::RepeatStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    type ConverseStream = Streaming<Message>;

    async fn converse(&self, _: Request<Streaming<Message>>) -> Result<Response<Streaming<Message>>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

fn options() -> GrpcOptions {
    GrpcOptions::default().stream(StreamOptions::default().waiting(WaitStrategy::Busy))
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Number of measured calls; timers and wake-ups of the runtime may add a few allocations in total.
const CALLS: u64 = 1_000;
const FEW: u64 = CALLS / 10;

#[test]
fn allocates_only_for_messages_and_the_method_future() {
    // At each end the received payload; at the server also prost's buffer for the response and the future of the
    // method.
    let nic = || Nic::open(&SoftNic::new()).unwrap();
    let (address, told) = mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = thread::spawn(move || {
        runtime().block_on(async {
            let server = Server::bind(&nic(), "127.0.0.1:0", options()).unwrap();
            address.send(server.address().unwrap()).unwrap();
            let server = server.direct(echo_direct::methods(Arc::new(Counts)));
            let services = Services::new().add_service(EchoServer::new(Counts));
            let _stopped = server.serve_until(services, stopped).await.unwrap();
        });
    });
    let at = told.recv().unwrap();
    let (client, server) = runtime().block_on(async {
        let client = EchoDirectClient::new(Channel::connect(&nic(), at, options()).await.unwrap());
        let sent = Message { payload: vec![7; 64].into(), times: 0 };
        let mut begun = (0, 0);
        for call in 0..=CALLS + 100 {
            // Cloning the payload shares it.
            let answer = client.unary(sent.clone()).await.unwrap().into_inner();
            assert_eq!(answer.payload, sent.payload);
            if call == 100 {
                begun = (allocations(), u64::from(answer.times));
            } else if call == CALLS + 100 {
                return (allocations() - begun.0, u64::from(answer.times) - begun.1);
            }
        }
        unreachable!()
    });
    println!("{CALLS} calls: {client} allocations at the client, {server} at the server");
    assert!(client <= CALLS + FEW, "{client} allocations of {CALLS} calls at the client");
    assert!(server <= CALLS * 3 + FEW, "{server} allocations of {CALLS} calls at the server");
    stop.send(()).unwrap();
    serving.join().unwrap();
}
