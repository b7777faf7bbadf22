//! The same service over three transports: HTTP/2 over TCP, which is the reference, HTTP/2 over streams, and frames;
//! over frames also with unary methods that are answered directly.
#![allow(dead_code)]

pub mod raw;
pub mod service;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_direct;
use farcall_echo::v1::echo_server::EchoServer;
use farcall_grpc::http2::{Connector, Incoming};
use farcall_grpc::{Channel, DirectMethods, GrpcOptions, IncomingBody, Server};
use farcall_link::Nic;
use farcall_softnic::SoftNic;
use farcall_stream::StreamOptions;
use service::Behaviour;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::Endpoint;
use tower::util::{BoxCloneSyncService, MapErr, MapResponse};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Http2,
    Native,
    /// Like `Native`, with a server that answers unary methods directly.
    Direct,
}

impl Transport {
    pub fn has_frames(self) -> bool {
        matches!(self, Self::Native | Self::Direct)
    }
}

pub const TRANSPORTS: [Transport; 3] = [Transport::Tcp, Transport::Http2, Transport::Native];

/// Timeout of a test. Not a measurement.
pub const LOST: Duration = Duration::from_secs(60);

/// A channel of any transport.
pub type AnyChannel = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

pub type Client = EchoClient<AnyChannel>;

pub fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// A running server.
pub struct Running {
    pub transport: Transport,
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
}

impl Running {
    pub async fn start(transport: Transport, routes: Routes) -> Self {
        Self::start_at(transport, routes, "127.0.0.1:0".parse().unwrap(), GrpcOptions::default()).await
    }

    pub async fn start_at(
        transport: Transport,
        routes: Routes,
        at: SocketAddr,
        options: GrpcOptions,
    ) -> Self {
        Self::start_with(transport, routes, DirectMethods::new(), at, options).await
    }

    /// Starts a server that answers unary calls directly.
    pub async fn start_direct(behaviour: &Behaviour, options: GrpcOptions) -> Self {
        let routes = Routes::new(EchoServer::new(behaviour.clone()));
        let direct = echo_direct::methods(Arc::new(behaviour.clone()));
        Self::start_with(Transport::Direct, routes, direct, "127.0.0.1:0".parse().unwrap(), options).await
    }

    pub async fn start_with(
        transport: Transport,
        routes: Routes,
        direct: DirectMethods,
        at: SocketAddr,
        options: GrpcOptions,
    ) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (address, served) = match transport {
            Transport::Tcp => {
                let incoming =
                    tonic::transport::server::TcpIncoming::bind(at).unwrap().with_nodelay(Some(true));
                let address = incoming.local_addr().unwrap();
                let server = tonic::transport::Server::builder().add_routes(routes);
                let serving = server.serve_with_incoming_shutdown(incoming, async { drop(stopped.await) });
                (address, tokio::spawn(async { serving.await.unwrap() }))
            }
            Transport::Http2 => {
                let incoming = Incoming::bind(&nic(), at, options.stream).unwrap();
                let address = incoming.address().unwrap();
                let server = tonic::transport::Server::builder().add_routes(routes);
                let serving = server.serve_with_incoming_shutdown(incoming, async { drop(stopped.await) });
                (address, tokio::spawn(async { serving.await.unwrap() }))
            }
            Transport::Native | Transport::Direct => {
                let server = Server::bind(&nic(), at, options).unwrap().direct(direct);
                let address = server.address().unwrap();
                let serving = server.serve_until(routes, stopped);
                (address, tokio::spawn(async { drop(serving.await.unwrap()) }))
            }
        };
        Self { transport, address, stop: Some(stop), served }
    }

    pub async fn channel(&self) -> AnyChannel {
        channel(self.transport, self.address, GrpcOptions::default()).await
    }

    pub async fn client(&self) -> Client {
        EchoClient::new(self.channel().await)
    }

    /// Requests that the server stop. The returned handle completes when it has.
    pub fn stop(mut self) -> JoinHandle<()> {
        self.stop.take().unwrap().send(()).unwrap();
        self.served
    }
}

pub async fn channel(transport: Transport, address: SocketAddr, options: GrpcOptions) -> AnyChannel {
    let uri = format!("http://{address}");
    let erase = |channel: tonic::transport::Channel| {
        let failed = |error: tonic::transport::Error| Status::from_error(error.into());
        BoxCloneSyncService::new(MapErr::new(channel, failed))
    };
    match transport {
        Transport::Tcp => erase(Endpoint::from_shared(uri).unwrap().connect().await.unwrap()),
        Transport::Http2 => {
            let connector = Connector::new(&nic(), address, StreamOptions::default());
            let endpoint = Endpoint::from_shared(uri).unwrap();
            erase(endpoint.connect_with_connector(connector).await.unwrap())
        }
        Transport::Native | Transport::Direct => {
            let channel = Channel::connect(&nic(), address, options).await.unwrap();
            let erase = |response: http::Response<IncomingBody>| response.map(Body::new);
            BoxCloneSyncService::new(MapResponse::new(channel, erase))
        }
    }
}

/// Runs a test over each transport, with the service and a client of it.
pub async fn over_each<F: Future<Output = ()>>(test: impl Fn(Running, Behaviour, Client) -> F) {
    for transport in TRANSPORTS.into_iter().chain([Transport::Direct]) {
        let behaviour = Behaviour::default();
        let running = if transport == Transport::Direct {
            Running::start_direct(&behaviour, GrpcOptions::default()).await
        } else {
            Running::start(transport, Routes::new(EchoServer::new(behaviour.clone()))).await
        };
        let client = running.client().await;
        println!("over {transport:?}");
        soon(test(running, behaviour, client)).await;
    }
}

/// Waits for a future that must complete.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LOST, what).await.expect("it does not come")
}

/// Waits until a condition is true.
pub async fn until(what: impl Fn() -> bool) {
    soon(async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}
