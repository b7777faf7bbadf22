//! Requests that are rejected, and the success of the next call.

use crate::support::{bytes, native, nic, serve, store};
use bytes::Bytes;
use farcall_grpc_kv::v1::{BatchRequest, Change, GetRequest, PutRequest, ScanRequest};
use farcall_grpc_kv::{
    Change as StoreChange, Durability, OrderedStore, StoreError, StoreLimits, StoreOptions, Transport,
};
use farcall_stream::StreamOptions;
use proptest::prelude::*;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use tonic::Code;

fn small() -> StoreOptions {
    let limits = StoreLimits {
        key_bytes_max: 16,
        value_bytes_max: 100,
        batch_changes_max: 3,
        batch_bytes_max: 60,
        page_records_max: 4,
        page_bytes_max: 150,
        ..StoreLimits::default()
    };
    StoreOptions { durability: Durability::Process, limits, ..StoreOptions::default() }
}

fn put(key: &[u8], len_bytes: usize) -> StoreChange {
    StoreChange::Put(Bytes::copy_from_slice(key), vec![7; len_bytes].into())
}

#[tokio::test]
async fn rejects_keys_values_and_batches_beyond_the_limits() {
    let (store, _folder) = store(small());
    store.write(vec![put(&[1; 16], 100)]).await.unwrap();
    for key in [&[][..], &[1; 17], &[1; 70_000]] {
        for refused in [
            store.get(key, None).unwrap_err(),
            store.write(vec![put(key, 1)]).await.unwrap_err(),
            store.write(vec![StoreChange::Delete(Bytes::copy_from_slice(key))]).await.unwrap_err(),
        ] {
            assert!(matches!(refused, StoreError::Key { .. }), "{refused}");
        }
        assert_eq!(store.scan(key, b"", 0, None).is_err(), !key.is_empty());
    }
    assert!(matches!(store.write(vec![put(b"a", 101)]).await, Err(StoreError::Value { len_bytes: 101, .. })));
    let four = (0..4).map(|at| put(&[at + 2], 1)).collect();
    assert!(matches!(store.write(four).await, Err(StoreError::Batch { changes: 4, .. })));
    let long = vec![put(b"a", 40), put(b"b", 40)];
    assert!(matches!(store.write(long).await, Err(StoreError::Batch { bytes: 82, .. })));
    let half_wrong = vec![put(b"a", 1), put(b"", 1)];
    assert!(matches!(store.write(half_wrong).await, Err(StoreError::Key { len_bytes: 0, .. })));
    assert_eq!(store.scan(b"", b"", 0, None).unwrap().records.len(), 1);
}

#[tokio::test]
async fn limits_records_and_bytes_of_a_page() {
    let (store, _folder) = store(small());
    for at in 0..20 {
        store.write(vec![put(&[at], 1)]).await.unwrap();
    }
    assert_eq!(store.scan(b"", b"", 1_000_000, None).unwrap().records.len(), 4);
    assert_eq!(store.scan(b"", b"", 2, None).unwrap().records.len(), 2);
    for at in 0..20 {
        store.write(vec![put(&[at], 100)]).await.unwrap();
    }
    let page = store.scan(b"", b"", 0, None).unwrap();
    assert_eq!((page.records.len(), &page.next[..]), (2, &[2][..]), "the second record exceeds 150 bytes");
    assert!(store.scan(&[9], &[9], 0, None).unwrap().records.is_empty());
    assert!(store.scan(&[9], &[3], 0, None).unwrap().records.is_empty(), "its end is before its start");
}

#[tokio::test]
async fn reports_refusals_with_their_status_and_keeps_serving() {
    let (store, _folder) = store(small());
    let server = serve(store, Transport::Native(nic(), StreamOptions::default()));
    let mut client = native(server.address()).await;
    let request = PutRequest { key: Bytes::new(), value: bytes("v") };
    assert_eq!(client.put(request).await.unwrap_err().code(), Code::InvalidArgument);
    let nothing = BatchRequest { changes: vec![Change { change: None }] };
    assert_eq!(client.batch(nothing).await.unwrap_err().code(), Code::InvalidArgument);
    let request = GetRequest { key: bytes("k"), snapshot: 12_345 };
    assert_eq!(client.get(request).await.unwrap_err().code(), Code::NotFound);
    let request = ScanRequest { snapshot: 12_345, ..ScanRequest::default() };
    let mut pages = client.iterate(request).await.unwrap().into_inner();
    assert_eq!(pages.message().await.unwrap_err().code(), Code::NotFound);
    client.put(PutRequest { key: bytes("k"), value: bytes("v") }).await.unwrap();
    tokio::task::spawn_blocking(|| server.stop()).await.unwrap().unwrap();
}

/// The first write takes the whole queue capacity until it is committed. Its future is not polled again in the
/// meantime.
#[tokio::test]
async fn refuses_writes_beyond_the_speed_of_the_disk() {
    let limits = StoreLimits { waiting_bytes_max: 200, ..StoreLimits::default() };
    let (store, _folder) = store(StoreOptions { limits, ..StoreOptions::default() });
    let mut context = Context::from_waker(Waker::noop());
    let mut refused = 0;
    for at in 0..2_000_u32 {
        let mut first = pin!(store.write(vec![put(&at.to_be_bytes(), 1_000)]));
        let is_over = first.as_mut().poll(&mut context).is_ready();
        match store.write(vec![put(b"k", 1_000)]).await {
            Ok(()) => {}
            Err(error) => {
                assert!(matches!(error, StoreError::Busy { waiting_bytes_max: 200 }), "{error}");
                refused += 1;
            }
        }
        if !is_over {
            first.await.unwrap();
        }
        if refused > 3 {
            break;
        }
    }
    assert!(refused > 0, "two writes never met");
    store.write(vec![put(b"k", 1)]).await.unwrap();
}

#[test]
fn limits_that_the_tree_does_not_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let limits = StoreLimits { key_bytes_max: 65_536, ..StoreLimits::default() };
    let refused = OrderedStore::open(folder.path(), StoreOptions { limits, ..StoreOptions::default() });
    assert!(matches!(refused.unwrap_err(), StoreError::Limits(65_535)));
}

#[test]
fn distinguishes_a_locked_store_from_an_invalid_path() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| OrderedStore::open(&folder.path().join(name), StoreOptions::default());
    let _first = open("store").unwrap();
    assert!(matches!(open("store").unwrap_err(), StoreError::Locked(_)));
    std::fs::write(folder.path().join("file"), "no store").unwrap();
    assert!(matches!(open("file").unwrap_err(), StoreError::Directory { .. }));
}

#[test]
fn a_store_is_made_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let (_store, folder) = store(StoreOptions::default());
    let mode = std::fs::metadata(folder.path().join("store")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Requests with arbitrary keys, bounds and values are answered or rejected.
    #[test]
    fn no_bytes_of_a_request_break_the_store(
        requests in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 0..40), proptest::collection::vec(any::<u8>(), 0..200), any::<u64>()),
            1..20,
        )
    ) {
        let (store, _folder) = store(small());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for (key, value, number) in requests {
            let is_key = (1..=16).contains(&key.len());
            let change = StoreChange::Put(key.clone().into(), value.clone().into());
            let written = runtime.block_on(store.write(vec![change]));
            assert_eq!(written.is_ok(), is_key && value.len() <= 100);
            if written.is_ok() {
                assert_eq!(&store.get(&key, None).unwrap().unwrap()[..], &value[..]);
            }
            let is_bound = |bytes: &[u8]| bytes.len() <= 16;
            let scanned = store.scan(&key, &value, number as usize, None);
            assert_eq!(scanned.is_ok(), is_bound(&key) && is_bound(&value));
            assert!(store.get(b"k", Some(number.max(1))).is_err(), "nobody opened {number}");
        }
    }
}
