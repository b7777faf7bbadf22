//! Features around calls: compression, interceptors, layers, health, reflection, addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farcall_echo::v1::DESCRIPTORS;
use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_server::EchoServer;
use farcall_grpc::{Channel, GrpcOptions, PeerAddress, Server, Services};
use tokio_stream::StreamExt;
use tonic::codec::CompressionEncoding;
use tonic::service::{Interceptor, Routes};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::support::service::{Behaviour, message};
use super::support::{Running, TRANSPORTS, Transport, nic, soon};

#[tokio::test]
async fn compressed_messages_are_understood() {
    for transport in TRANSPORTS {
        let gzip = CompressionEncoding::Gzip;
        let server = EchoServer::new(Behaviour::default()).accept_compressed(gzip).send_compressed(gzip);
        let server = Running::start(transport, Routes::new(server)).await;
        let client = EchoClient::new(server.channel().await);
        let mut client = client.send_compressed(gzip).accept_compressed(gzip);
        let request = message(vec![5; 100_000], 2);
        let answer = client.unary(request.clone()).await.unwrap();
        assert_eq!(answer.metadata().get("grpc-encoding").unwrap(), "gzip");
        assert_eq!(answer.into_inner(), request);
        let mut answers = client.repeat(request).await.unwrap().into_inner();
        assert_eq!(answers.next().await.unwrap().unwrap().payload.len(), 100_000);
    }
}

#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Interceptor for Counting {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        self.0.fetch_add(1, Ordering::SeqCst);
        if request.metadata().contains_key("x-refuse") {
            return Err(Status::unauthenticated("refused by an interceptor"));
        }
        request.metadata_mut().insert("x-intercepted", "yes".parse().unwrap());
        Ok(request)
    }
}

#[tokio::test]
async fn interceptors_work_at_both_ends() {
    for transport in TRANSPORTS {
        let (at_server, at_client) = (Counting::default(), Counting::default());
        let server = EchoServer::with_interceptor(Behaviour::default(), at_server.clone());
        let server = Running::start(transport, Routes::new(server)).await;
        let channel = server.channel().await;
        let mut client = EchoClient::with_interceptor(channel.clone(), at_client.clone());
        let answer = client.unary(message("", 0)).await.unwrap();
        assert_eq!(answer.metadata().get("x-intercepted").unwrap(), "yes");
        assert_eq!([&at_server.0, &at_client.0].map(|count| count.load(Ordering::SeqCst)), [1, 1]);
        let mut refused = Request::new(message("", 0));
        refused.metadata_mut().insert("x-refuse", "1".parse().unwrap());
        let status = EchoClient::new(channel).unary(refused).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "refused by an interceptor"));
    }
}

/// The types of the native transport, without a wrapper around the channel.
#[tokio::test]
async fn layers_and_interceptors_fit_around_the_native_ends() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let services = Services::new().add_service(EchoServer::new(Behaviour::default()));
    let layered = tower::ServiceBuilder::new()
        .concurrency_limit(1)
        .map_request(move |request: http::Request<farcall_grpc::IncomingBody>| {
            assert!(request.extensions().get::<PeerAddress>().is_some());
            counted.fetch_add(1, Ordering::SeqCst);
            request
        })
        .service(services);
    let server = Server::bind(&nic(), "127.0.0.1:0", GrpcOptions::default()).unwrap();
    let address = server.address().unwrap();
    tokio::spawn(server.serve(layered));
    let channel = Channel::connect(&nic(), address, GrpcOptions::default()).await.unwrap();
    let mut client = EchoClient::with_interceptor(channel, Counting::default());
    soon(async {
        for at in 0..10 {
            assert_eq!(client.unary(message("a", at)).await.unwrap().into_inner(), message("a", at));
        }
    })
    .await;
    assert_eq!(seen.load(Ordering::SeqCst), 10);
}

#[tokio::test]
async fn health_and_reflection_answer() {
    for transport in TRANSPORTS {
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_serving::<EchoServer<Behaviour>>().await;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .build_v1()
            .unwrap();
        let echo = EchoServer::new(Behaviour::default());
        let routes = Routes::new(echo).add_service(health).add_service(reflection);
        let server = Running::start(transport, routes).await;

        let mut client = HealthClient::new(server.channel().await);
        let request = HealthCheckRequest { service: "farcall.echo.v1.Echo".into() };
        let answer = client.check(request.clone()).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
        let mut changes = client.watch(request).await.unwrap().into_inner();
        assert_eq!(changes.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
        reporter.set_not_serving::<EchoServer<Behaviour>>().await;
        assert_eq!(soon(changes.next()).await.unwrap().unwrap().status(), ServingStatus::NotServing);

        let mut client = ServerReflectionClient::new(server.channel().await);
        let asked = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let answers = client.server_reflection_info(tokio_stream::once(asked)).await;
        let answer = answers.unwrap().into_inner().next().await.unwrap().unwrap();
        let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
            panic!("{answer:?}");
        };
        assert!(list.service.iter().any(|service| service.name == "farcall.echo.v1.Echo"));
    }
}

#[tokio::test]
async fn a_method_learns_its_clients_address() {
    for transport in [Transport::Tcp, Transport::Http2, Transport::Native] {
        let address = |request: Request<()>| {
            let address = request.remote_addr().ok_or_else(|| Status::internal("no address"))?;
            address.ip().is_loopback().then_some(request).ok_or_else(|| Status::internal("which address?"))
        };
        let server = EchoServer::with_interceptor(Behaviour::default(), address);
        let server = Running::start(transport, Routes::new(server)).await;
        EchoClient::new(server.channel().await).unary(message("", 0)).await.unwrap();
    }
}
