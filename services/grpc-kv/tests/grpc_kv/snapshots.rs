//! Limits of the number and the lifetime of snapshots.

use crate::support::{bytes, native, nic, serve, store, until};
use farcall_grpc_kv::v1::ScanRequest;
use farcall_grpc_kv::{Change, Durability, StoreError, StoreLimits, StoreOptions, Transport};
use farcall_stream::StreamOptions;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

fn with(snapshots_max: usize, snapshot_age_max: Duration) -> StoreOptions {
    let limits =
        StoreLimits { snapshots_max, snapshot_age_max, page_records_max: 1, ..StoreLimits::default() };
    StoreOptions { durability: Durability::Process, limits, ..StoreOptions::default() }
}

#[tokio::test]
async fn more_snapshots_than_allowed_are_refused_until_one_is_closed() {
    let (store, _folder) = store(with(3, Duration::from_secs(3_600)));
    let numbers = [(); 3].map(|()| store.open_snapshot().unwrap());
    assert!(matches!(store.open_snapshot(), Err(StoreError::TooManySnapshots { count_max: 3 })));
    store.close_snapshot(numbers[1]);
    store.close_snapshot(numbers[1]);
    let fourth = store.open_snapshot().unwrap();
    assert!(!numbers.contains(&fourth) && store.snapshot_count() == 3);
}

#[tokio::test]
async fn expires_a_snapshot_without_access() {
    let (store, _folder) = store(with(3, Duration::from_millis(30)));
    for _ in 0..2 {
        let number = store.open_snapshot().unwrap();
        until(|| store.snapshot_count() == 0).await;
        assert!(matches!(store.get(b"k", Some(number)), Err(StoreError::NoSnapshot(_))));
    }
}

/// No `await` in between, so the cleanup task has not run yet.
#[tokio::test]
async fn rejects_an_expired_snapshot_that_is_still_held() {
    let (store, _folder) = store(with(3, Duration::ZERO));
    let number = store.open_snapshot().unwrap();
    assert_eq!(store.snapshot_count(), 1);
    assert!(matches!(store.get(b"k", Some(number)), Err(StoreError::NoSnapshot(_))));
}

/// An unread iterator holds its snapshot no longer than the limit, and returns an error to a client that continues to
/// read.
#[tokio::test]
async fn expires_an_iterator_snapshot_under_a_slow_reader() {
    let (opened, _folder) = store(with(2, Duration::from_millis(300)));
    for at in 0..2_000 {
        opened.write(vec![Change::Put(bytes(&format!("{at:04}")), vec![0; 1_000].into())]).await.unwrap();
    }
    let server = serve(Arc::clone(&opened), Transport::Native(nic(), StreamOptions::default()));
    let mut client = native(server.address()).await;
    // On a busy machine the snapshot may expire before the first page is sent.
    let mut pages = loop {
        let mut pages = client.iterate(ScanRequest::default()).await.unwrap().into_inner();
        if let Ok(first) = pages.message().await {
            assert_eq!(first.unwrap().records.len(), 1);
            break pages;
        }
    };
    // More data than the window of a call is waiting at the server.
    until(|| opened.snapshot_count() == 0).await;
    let ended = loop {
        match pages.message().await {
            Ok(page) => assert!(page.is_some(), "it ended as if there was nothing more"),
            Err(status) => break status,
        }
    };
    assert!(ended.code() == Code::NotFound && ended.message().contains("too old"), "{ended}");
    tokio::task::spawn_blocking(|| server.stop()).await.unwrap().unwrap();
}

#[tokio::test]
async fn closes_the_snapshot_of_a_dropped_iterator() {
    let (opened, _folder) = store(with(1, Duration::from_secs(3_600)));
    for at in 0..2_000 {
        opened.write(vec![Change::Put(bytes(&format!("{at:04}")), vec![0; 1_000].into())]).await.unwrap();
    }
    let server = serve(Arc::clone(&opened), Transport::Native(nic(), StreamOptions::default()));
    let mut client = native(server.address()).await;
    for _ in 0..3 {
        let mut pages = client.iterate(ScanRequest::default()).await.unwrap().into_inner();
        pages.message().await.unwrap().unwrap();
        assert_eq!(opened.snapshot_count(), 1);
        let refused = client.iterate(ScanRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        drop(pages);
        until(|| opened.snapshot_count() == 0).await;
    }
    tokio::task::spawn_blocking(|| server.stop()).await.unwrap().unwrap();
}
