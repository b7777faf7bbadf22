//! A store in a folder of its own, served or not.

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

/// Nothing here takes as long on a machine that works.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A store, and the folder that goes with it.
pub fn store(options: StoreOptions) -> (Arc<OrderedStore>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Arc::new(OrderedStore::open(&folder.path().join("store"), options).unwrap()), folder)
}

pub fn serve(store: Arc<OrderedStore>, transport: Transport) -> LsmServer {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    LsmServer::start(store, ServerOptions { transport, listen, threads: 2 }).unwrap()
}

/// Every transport by its name.
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

/// Waits until something is so.
pub async fn until(mut is_so: impl FnMut() -> bool) {
    tokio::time::timeout(PATIENCE, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("it never was so");
}
