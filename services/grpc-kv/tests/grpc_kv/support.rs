//! A store in its own directory, served or not.

use bytes::Bytes;
use farcall_grpc::http2::Connector;
use farcall_grpc::{Channel, GrpcOptions};
use farcall_grpc_kv::v1::ordered_kv_client::OrderedKvClient;
use farcall_grpc_kv::{LsmServer, OrderedStore, ServerOptions, StoreOptions, Transport};
use farcall_link::Nic;
use farcall_softnic::SoftNic;
use farcall_stream::StreamOptions;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tonic::transport::Endpoint;

/// Timeout that a working machine never reaches.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Returns a store and its directory.
pub fn store(options: StoreOptions) -> (Arc<OrderedStore>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Arc::new(OrderedStore::open(&folder.path().join("store"), options).unwrap()), folder)
}

pub fn serve(store: Arc<OrderedStore>, transport: Transport) -> LsmServer {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    LsmServer::start(store, ServerOptions { transport, listen, threads: 2 }).unwrap()
}

/// Returns every transport with its name.
pub fn transports() -> [(&'static str, Transport); 3] {
    let streams = StreamOptions::default;
    [
        ("native", Transport::Native(nic(), streams())),
        ("http2", Transport::Http2(nic(), streams())),
        ("tcp", Transport::Tcp),
    ]
}

pub async fn native(address: SocketAddr) -> OrderedKvClient<Channel> {
    OrderedKvClient::new(Channel::connect(&nic(), address, GrpcOptions::default()).await.unwrap())
}

pub async fn http2(transport: &str, address: SocketAddr) -> OrderedKvClient<tonic::transport::Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    OrderedKvClient::new(match transport {
        "http2" => {
            let connector = Connector::new(&nic(), address, StreamOptions::default());
            endpoint.connect_with_connector(connector).await.unwrap()
        }
        _ => endpoint.connect().await.unwrap(),
    })
}

/// Waits until a condition is true.
pub async fn until(mut is_so: impl FnMut() -> bool) {
    tokio::time::timeout(PATIENCE, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("it never was so");
}
