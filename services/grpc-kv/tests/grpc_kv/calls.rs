//! Tests of the service over each of its transports.

use crate::support::{bytes, http2, native, serve, store, transports};
use bytes::Bytes;
use farcall_grpc::{Channel, GrpcOptions};
use farcall_grpc_kv::v1::ordered_kv_client::OrderedKvClient;
use farcall_grpc_kv::v1::ordered_kv_direct::OrderedKvDirectClient;
use farcall_grpc_kv::v1::{
    BatchRequest, Change, CloseSnapshotRequest, DeleteRequest, GetRequest, OpenSnapshotRequest, PutRequest,
    Record, ScanRequest, change,
};
use farcall_grpc_kv::{OrderedStore, StoreOptions, Transport};
use std::sync::Arc;
use tonic::Code;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::StdError;

fn get(key: &str, snapshot: u64) -> GetRequest {
    GetRequest { key: bytes(key), snapshot }
}

fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: bytes(key), value: bytes(value) }
}

fn range(start: &str, end: &str, limit: u32, snapshot: u64) -> ScanRequest {
    ScanRequest { start: bytes(start), end: bytes(end), limit, snapshot }
}

fn texts(records: &[Record]) -> Vec<String> {
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    records.iter().map(|record| format!("{}={}", text(&record.key), text(&record.value))).collect()
}

/// Calls every method once, over any transport.
pub async fn exercise<T>(mut client: OrderedKvClient<T>)
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
{
    assert_eq!(client.get(get("a", 0)).await.unwrap().into_inner().value, None);
    client.put(put("a", "1")).await.unwrap();
    client.put(put("b", "")).await.unwrap();
    assert_eq!(
        client.get(get("b", 0)).await.unwrap().into_inner().value,
        Some(Bytes::new()),
        "empty, not absent"
    );
    let snapshot = client.open_snapshot(OpenSnapshotRequest {}).await.unwrap().into_inner();
    assert!(snapshot.snapshot != 0 && snapshot.age_max_ms == 60_000);
    let number = snapshot.snapshot;
    let record = |key: &str, value: &str| Record { key: bytes(key), value: bytes(value) };
    let changes = vec![
        Change { change: Some(change::Change::Put(record("c", "3"))) },
        Change { change: Some(change::Change::Put(record("d", "4"))) },
        Change { change: Some(change::Change::Delete(bytes("a"))) },
    ];
    client.batch(BatchRequest { changes }).await.unwrap();
    assert_eq!(client.get(get("a", 0)).await.unwrap().into_inner().value, None);
    assert_eq!(client.get(get("a", number)).await.unwrap().into_inner().value, Some(bytes("1")));
    let page = client.scan(range("", "", 2, 0)).await.unwrap().into_inner();
    assert_eq!((texts(&page.records), page.next), (vec!["b=".to_owned(), "c=3".to_owned()], bytes("d")));
    let mut pages = client.iterate(range("", "", 1, number)).await.unwrap().into_inner();
    let mut seen = Vec::new();
    while let Some(page) = pages.message().await.unwrap() {
        assert!(page.records.len() <= 1);
        seen.extend(texts(&page.records));
    }
    assert_eq!(seen, ["a=1", "b="]);
    client.close_snapshot(CloseSnapshotRequest { snapshot: number }).await.unwrap();
    assert_eq!(client.get(get("a", number)).await.unwrap_err().code(), Code::NotFound);
    // Without a snapshot number an iterator opens its own snapshot: the next record is deleted before its page is
    // requested.
    let mut pages = client.iterate(range("", "d", 1, 0)).await.unwrap().into_inner();
    let first = pages.message().await.unwrap().unwrap();
    client.delete(DeleteRequest { key: bytes("c") }).await.unwrap();
    client.delete(DeleteRequest { key: bytes("c") }).await.unwrap();
    let second = pages.message().await.unwrap().unwrap();
    assert_eq!(
        (texts(&first.records), texts(&second.records)),
        (vec!["b=".to_owned()], vec!["c=3".to_owned()])
    );
    assert!(pages.message().await.unwrap().is_none());
    let page = client.scan(range("b", "", 0, 0)).await.unwrap().into_inner();
    assert_eq!((texts(&page.records), page.next), (vec!["b=".to_owned(), "d=4".to_owned()], Bytes::new()));
}

#[tokio::test]
async fn every_method_is_answered_over_every_transport() {
    for (name, transport) in transports() {
        let (store, _folder) = store(StoreOptions::default());
        let server = serve(store, transport);
        match name {
            "native" => exercise(native(server.address()).await).await,
            _ => exercise(http2(name, server.address()).await).await,
        }
        tokio::task::spawn_blocking(|| server.stop()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn direct_clients_are_answered_as_tonics_are() {
    let (store, _folder) = store(StoreOptions::default());
    let transport = transports().into_iter().next().unwrap().1;
    let server = serve(store, transport);
    let channel =
        Channel::connect(&crate::support::nic(), server.address(), GrpcOptions::default()).await.unwrap();
    let client = OrderedKvDirectClient::new(channel);
    client.put(put("key", "value")).await.unwrap();
    assert_eq!(client.get(get("key", 0)).await.unwrap().into_inner().value, Some(bytes("value")));
    let page = client.scan(range("", "", 0, 0)).await.unwrap().into_inner();
    assert_eq!(texts(&page.records), ["key=value"]);
    assert_eq!(client.get(get("", 0)).await.unwrap_err().code(), Code::InvalidArgument);
    tokio::task::spawn_blocking(|| server.stop()).await.unwrap().unwrap();
}

#[tokio::test]
async fn preserves_everything_across_a_server_restart() {
    let folder = tempfile::tempdir().unwrap();
    for (round, (name, transport)) in transports().into_iter().enumerate() {
        let opened = Arc::new(OrderedStore::open(folder.path(), StoreOptions::default()).unwrap());
        let server = serve(opened, transport);
        let wanted: Vec<String> = (0..round).map(|round| format!("{round}=kept")).collect();
        let request = put(&round.to_string(), "kept");
        let scan = range("", "", 0, 0);
        let found = if name == "native" {
            let mut client = native(server.address()).await;
            client.put(request).await.unwrap();
            client.scan(scan).await.unwrap()
        } else {
            let mut client = http2(name, server.address()).await;
            client.put(request).await.unwrap();
            client.scan(scan).await.unwrap()
        };
        assert_eq!(texts(&found.into_inner().records)[..round], wanted);
        tokio::task::spawn_blocking(|| server.stop()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_address_that_is_in_use_is_an_error_that_names_it() {
    let (opened, _folder) = store(StoreOptions::default());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let options = farcall_grpc_kv::ServerOptions { transport: Transport::Tcp, listen, threads: 1 };
    let refused = farcall_grpc_kv::LsmServer::start(opened, options).err().unwrap().to_string();
    assert!(refused.contains(&format!("cannot listen on {listen}")), "{refused}");
}
