//! Tests the store against an ordered map.

use crate::support::{bytes, store};
use bytes::Bytes;
use farcall_grpc_kv::{Change, Durability, OrderedStore, StoreLimits, StoreOptions};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

type Map = BTreeMap<Bytes, Bytes>;

#[derive(Debug, Clone)]
enum Step {
    Write(Vec<Change>),
    Get(Bytes),
    Scan(Bytes, Bytes, usize),
    OpenSnapshot,
    /// Index of an open snapshot, modulo their number.
    GetIn(usize, Bytes),
    ScanIn(usize, Bytes, Bytes, usize),
    CloseSnapshot(usize),
    /// Closes the store and opens it again.
    Reopen,
}

/// Few and short keys, so that steps use the same ones; bytes at both ends of their range.
fn key() -> impl Strategy<Value = Bytes> {
    vec(prop_oneof![Just(0_u8), Just(1), Just(b'k'), Just(255)], 1..4).prop_map(Bytes::from)
}

fn bound() -> impl Strategy<Value = Bytes> {
    prop_oneof![1 => Just(Bytes::new()), 4 => key()]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (key(), vec(any::<u8>(), 0..40)).prop_map(|(key, value)| Change::Put(key, value.into())),
        1 => key().prop_map(Change::Delete),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => change().prop_map(|change| Step::Write(vec![change])),
        3 => vec(change(), 0..8).prop_map(Step::Write),
        4 => key().prop_map(Step::Get),
        4 => (bound(), bound(), 0_usize..6).prop_map(|(start, end, limit)| Step::Scan(start, end, limit)),
        2 => Just(Step::OpenSnapshot),
        3 => (any::<usize>(), key()).prop_map(|(at, key)| Step::GetIn(at, key)),
        3 => (any::<usize>(), bound(), bound(), 0_usize..6)
            .prop_map(|(at, start, end, limit)| Step::ScanIn(at, start, end, limit)),
        1 => any::<usize>().prop_map(Step::CloseSnapshot),
        1 => Just(Step::Reopen),
    ]
}

fn apply(map: &mut Map, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(key, value) => drop(map.insert(key.clone(), value.clone())),
            Change::Delete(key) => drop(map.remove(key)),
        }
    }
}

/// Reads all pages of a range.
fn collect(
    store: &OrderedStore,
    start: &[u8],
    end: &[u8],
    limit: usize,
    snapshot: Option<u64>,
) -> Vec<(Bytes, Bytes)> {
    let (mut all, mut start) = (Vec::new(), Bytes::copy_from_slice(start));
    loop {
        let page = store.scan(&start, end, limit, snapshot).unwrap();
        assert!(limit == 0 || page.records.len() <= limit, "{} records of {limit}", page.records.len());
        assert!(page.next.is_empty() || page.records.last().unwrap().0 < page.next);
        all.extend(page.records);
        if page.next.is_empty() {
            return all;
        }
        start = page.next;
    }
}

fn expected(map: &Map, start: &Bytes, end: &Bytes) -> Vec<(Bytes, Bytes)> {
    let range = map.iter().filter(|(key, _)| *key >= start && (end.is_empty() || *key < end));
    range.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn run(durability: Durability, steps: Vec<Step>) {
    // Short pages, so that ranges have several.
    let limits = StoreLimits { page_records_max: 5, page_bytes_max: 60, ..StoreLimits::default() };
    let options = StoreOptions { durability, limits, ..StoreOptions::default() };
    let (opened, folder) = store(options);
    let mut store = opened;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut map, mut open) = (Map::new(), Vec::<(u64, Map)>::new());
    for step in steps {
        match step {
            Step::Write(changes) => {
                apply(&mut map, &changes);
                runtime.block_on(store.write(changes)).unwrap();
            }
            Step::Get(key) => assert_eq!(store.get(&key, None).unwrap().as_ref(), map.get(&key)),
            Step::Scan(start, end, limit) => {
                assert_eq!(collect(&store, &start, &end, limit, None), expected(&map, &start, &end));
            }
            Step::OpenSnapshot => open.push((store.open_snapshot().unwrap(), map.clone())),
            Step::GetIn(at, key) if !open.is_empty() => {
                let (number, then) = &open[at % open.len()];
                assert_eq!(store.get(&key, Some(*number)).unwrap().as_ref(), then.get(&key));
            }
            Step::ScanIn(at, start, end, limit) if !open.is_empty() => {
                let (number, then) = &open[at % open.len()];
                let found = collect(&store, &start, &end, limit, Some(*number));
                assert_eq!(found, expected(then, &start, &end));
            }
            Step::CloseSnapshot(at) if !open.is_empty() => {
                let (number, _) = open.swap_remove(at % open.len());
                store.close_snapshot(number);
                assert!(store.get(b"k", Some(number)).is_err(), "snapshot {number} is closed");
            }
            Step::GetIn(..) | Step::ScanIn(..) | Step::CloseSnapshot(_) => {}
            Step::Reopen => {
                // Snapshots do not survive this.
                open.clear();
                drop(store);
                store = Arc::new(OrderedStore::open(&folder.path().join("store"), options).unwrap());
            }
        }
        assert_eq!(store.snapshot_count(), open.len());
    }
    assert_eq!(collect(&store, b"", b"", 0, None), expected(&map, &Bytes::new(), &Bytes::new()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_store_is_an_ordered_map(steps in vec(step(), 1..120)) {
        run(Durability::Process, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn the_store_is_an_ordered_map_when_it_waits_for_the_disk(steps in vec(step(), 1..40)) {
        run(Durability::Group, steps.clone());
        run(Durability::Each, steps);
    }
}

/// Number of records that every batch writes.
const KEYS: usize = 40;

/// Writers whose batches write one version to all records, with concurrent readers of ranges.
#[test]
fn a_range_in_a_snapshot_is_of_one_moment_while_others_write() {
    let limits = StoreLimits { page_records_max: 3, ..StoreLimits::default() };
    let options = StoreOptions { durability: Durability::Process, limits, ..StoreOptions::default() };
    let (store, _folder) = store(options);
    let write = |writer: u32, version: u32| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let value = bytes(&format!("{writer}-{version}"));
        let changes = (0..KEYS).map(|at| Change::Put(bytes(&format!("key-{at:03}")), value.clone()));
        runtime.block_on(store.write(changes.collect())).unwrap();
    };
    write(0, 0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 1..3 {
            let (write, is_over) = (&write, &is_over);
            scope.spawn(move || {
                for version in 0.. {
                    write(writer, version);
                    // Limits the number of versions, because each costs the readers time.
                    thread::sleep(Duration::from_micros(500));
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        for _ in 0..30 {
            let snapshot = store.open_snapshot().unwrap();
            let records = collect(&store, b"", b"", 0, Some(snapshot));
            store.close_snapshot(snapshot);
            assert_eq!(records.len(), KEYS);
            assert!(
                records.is_sorted() && records.iter().all(|(_, value)| *value == records[0].1),
                "{records:?}"
            );
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn of_several_changes_of_a_key_in_a_batch_the_last_one_counts() {
    let (store, _folder) = store(StoreOptions::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (a, b) = (bytes("a"), bytes("b"));
    let changes = vec![
        Change::Put(a.clone(), bytes("1")),
        Change::Delete(b.clone()),
        Change::Put(b.clone(), bytes("2")),
        Change::Put(a.clone(), bytes("3")),
        Change::Delete(a.clone()),
    ];
    runtime.block_on(store.write(changes)).unwrap();
    assert_eq!((store.get(&a, None).unwrap(), store.get(&b, None).unwrap()), (None, Some(bytes("2"))));
}
