//! Stores whose GETs are READs, over the software RNIC: GETs while a writer changes the data that they read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farcall_kv::bypass::{
    Answer, BypassClient, BypassConfig, BypassError, OperationId, Scheme, Service, serve,
};
use farcall_kv::{farm::Farm, pilaf::Pilaf};
use farcall_link::Nic;
use farcall_rpc::{CallError, Client, ResponderParts, Server};
use farcall_softnic::SoftNic;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

fn server<S: Scheme>(config: BypassConfig) -> Server {
    serve::<S>(Server::builder(), &nic(), config).unwrap()
}

fn client<S: Scheme>(server: &Server) -> BypassClient<S> {
    let address = server.address().to_string();
    BypassClient::connect(&nic(), &address, BypassClient::<S>::options()).unwrap()
}

fn get<S: Scheme>(client: &mut BypassClient<S>, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    client.get(key, &mut value).unwrap().then_some(value)
}

/// Runs the same test with every scheme; `farm` also with values in the index.
macro_rules! of_all_schemes {
    ($test:ident) => {
        $test::<Pilaf>(0);
        $test::<Farm>(0);
        $test::<Farm>(100);
    };
}

#[test]
fn what_one_client_stores_another_reads() {
    of_all_schemes!(one_stores_another_reads);
}

#[test]
fn rejects_puts_into_a_full_store_and_keeps_its_items() {
    of_all_schemes!(full_store_refuses);
}

#[test]
fn never_returns_torn_stale_or_missing_values_during_writes() {
    of_all_schemes!(get_during_writes);
}

#[test]
fn a_window_of_requests_is_answered_each_for_itself() {
    of_all_schemes!(window_of_requests);
}

#[test]
fn reconnects_a_client_to_a_restarted_server() {
    of_all_schemes!(continues_after_a_restart);
}

#[test]
fn rejects_invalid_calls_and_keeps_serving() {
    of_all_schemes!(garbage_is_refused);
}

fn one_stores_another_reads<S: Scheme>(inline_bytes: u32) {
    let server = server::<S>(BypassConfig::default().inline_bytes(inline_bytes));
    let (mut writer, mut reader) = (client::<S>(&server), client::<S>(&server));
    assert_eq!(get(&mut reader, b"key"), None);
    for value in [&b"first"[..], b"", b"second", &[7; 60_000]] {
        writer.put(b"key", value).unwrap();
        assert_eq!(get(&mut reader, b"key").as_deref(), Some(value));
    }
    assert!(writer.delete(b"key").unwrap() && !writer.delete(b"key").unwrap());
    assert_eq!(get(&mut reader, b"key"), None);
    let counters = reader.counters();
    assert_eq!((counters.gets, counters.gets_by_call), (6, 0), "{counters:?}");
    assert!(matches!(reader.get(&[0; 251], &mut Vec::new()), Err(BypassError::Key(_))));
}

fn full_store_refuses<S: Scheme>(inline_bytes: u32) {
    let config = BypassConfig::default().entries(64).extents_bytes(1 << 16).value_max_bytes(1 << 12);
    let config = config.inline_bytes(inline_bytes);
    // A fixed seed, because the capacity of a small store depends on it.
    let with_store = move |parts: ResponderParts| parts.with(Service::<S>::new(nic(), config, 1)?);
    let server = Server::builder().start_endpoints(&nic(), with_store).unwrap();
    let mut store = client::<S>(&server);
    let mut stored = 0_u32;
    let refused = loop {
        match store.put(&stored.to_le_bytes(), &stored.to_le_bytes()) {
            Ok(()) => stored += 1,
            Err(refused) => break refused,
        }
    };
    assert!(stored >= 32, "{stored} of 64");
    assert!(refused.to_string().contains("the index is full"), "{refused}");
    let too_large = store.put(&[0; 4], &[0; 1 << 13]).unwrap_err();
    assert!(too_large.to_string().contains("takes 4096 at most"), "{too_large}");
    for number in (0..stored).map(u32::to_le_bytes) {
        assert_eq!(get(&mut store, &number).as_deref(), Some(&number[..]));
    }
}

#[test]
fn a_get_at_three_quarters_takes_less_than_three_reads() {
    const KEYS: u32 = (1 << 12) / 4 * 3;
    let server = server::<Pilaf>(BypassConfig::default().entries(1 << 12));
    let mut store = client::<Pilaf>(&server);
    for number in (0..KEYS).map(u32::to_le_bytes) {
        store.put(&number, &number).unwrap();
    }
    for number in (0..KEYS).map(u32::to_le_bytes) {
        assert_eq!(get(&mut store, &number).as_deref(), Some(&number[..]));
    }
    let hits = store.counters();
    let reads = hits.reads as f64 / hits.gets as f64;
    for number in (KEYS..2 * KEYS).map(u32::to_le_bytes) {
        assert_eq!(get(&mut store, &number), None);
    }
    let misses = store.counters().reads - hits.reads;
    println!(
        "READs a GET at three quarters: {reads:.2}; of an absent key {:.2}",
        misses as f64 / f64::from(KEYS)
    );
    assert!(reads < 3.0 && hits.torn == 0, "{hits:?}");
    // One READ per entry and one for the number of moves; repeated when that is first read.
    assert!(misses <= u64::from(4 * KEYS + 4) + 4, "{misses}");
}

#[test]
fn reads_an_inline_value_in_one_read_and_another_in_two() {
    const KEYS: u32 = 1_000;
    for (inline_bytes, reads_each) in [(16, 1), (0, 2)] {
        let server = server::<Farm>(BypassConfig::default().inline_bytes(inline_bytes));
        let mut store = client::<Farm>(&server);
        for number in (0..KEYS).map(u32::to_le_bytes) {
            store.put(&number, &number).unwrap();
        }
        for number in (0..KEYS).map(u32::to_le_bytes) {
            assert_eq!(get(&mut store, &number).as_deref(), Some(&number[..]));
        }
        let reads = store.counters().reads;
        assert_eq!(reads, u64::from(reads_each * KEYS), "{inline_bytes}");
        assert_eq!(get(&mut store, b"absent"), None);
        assert_eq!(get(&mut store, b"absent"), None);
        // READs of the neighbourhood and of the number of moves; repeated when that is first read.
        assert!(store.counters().reads - reads <= 6, "{:?}", store.counters());
    }
}

#[test]
fn chains_keys_of_a_full_neighbourhood_at_one_more_read() {
    // Six entries are one neighbourhood, which has one block.
    let server = server::<Farm>(BypassConfig::default().entries(6).inline_bytes(16));
    let mut store = client::<Farm>(&server);
    let keys: Vec<[u8; 4]> = (0..12_u32).map(u32::to_le_bytes).collect();
    for key in &keys {
        store.put(key, key).unwrap();
    }
    for (at, key) in keys.iter().enumerate() {
        let before = store.counters().reads;
        assert_eq!(get(&mut store, key).as_deref(), Some(&key[..]));
        assert_eq!(store.counters().reads - before, if at < 6 { 1 } else { 2 }, "key {at}");
    }
    let full = store.put(b"one more", b"").unwrap_err().to_string();
    assert!(full.contains("the index is full: 12 of 12 entries"), "{full}");
    // An empty block can be reused for other groups, and a deleted key is not found at any of its positions.
    for key in &keys {
        assert!(store.delete(key).unwrap());
        assert_eq!(get(&mut store, key), None);
    }
    for key in keys.iter().rev() {
        store.put(key, b"again").unwrap();
    }
    assert!(keys.iter().all(|key| get(&mut store, key).as_deref() == Some(b"again")));
}

#[test]
fn rejects_a_client_of_another_store_type() {
    let server = server::<Pilaf>(BypassConfig::default());
    let address = server.address().to_string();
    let refused =
        BypassClient::<Farm>::connect(&nic(), &address, BypassClient::<Farm>::options()).err().unwrap();
    assert!(refused.to_string().contains("its index is of another kind"), "{refused}");
}

/// The version of each key, odd if it has a value; above `DELETION` the number of its deletions.
struct Versions {
    begun: Vec<AtomicU64>,
    acknowledged: Vec<AtomicU64>,
}

const DELETION: u64 = 1 << 40;

fn value_of(key: u64, version: u64) -> Vec<u8> {
    let len = 2 + (version / 2 % 40) as usize;
    [key, version].into_iter().cycle().take(len).flat_map(u64::to_le_bytes).collect()
}

fn get_during_writes<S: Scheme>(inline_bytes: u32) {
    // A load at which insertions move entries, and few keys, so that a reader often conflicts with the writer.
    const KEYS: u64 = 52;
    const WRITES: u32 = 700;
    let seed: u64 = std::env::var("FARCALL_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let config = BypassConfig::default().entries(80).extents_bytes(1 << 16).value_max_bytes(1 << 10);
    let server = server::<S>(config.inline_bytes(inline_bytes));
    let numbers = || (0..KEYS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let versions = Versions { begun: numbers(), acknowledged: numbers() };
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (mut store, versions, done) = (client::<S>(&server), &versions, &done);
                threads.spawn(move || {
                    let mut random = ChaCha8Rng::seed_from_u64(seed + 1 + reader);
                    while !done.load(Ordering::Relaxed) {
                        let key = random.random_range(0..KEYS);
                        let oldest = versions.acknowledged[key as usize].load(Ordering::SeqCst);
                        let value = get(&mut store, &key.to_le_bytes());
                        let newest = versions.begun[key as usize].load(Ordering::SeqCst);
                        let Some(value) = value else {
                            let was_absent = oldest % 2 == 0 || newest / DELETION > oldest / DELETION;
                            assert!(was_absent, "seed {seed}: key {key} missing in {oldest}..={newest}");
                            continue;
                        };
                        let version = u64::from_le_bytes(value[8..16].try_into().unwrap());
                        assert_eq!(value, value_of(key, version), "seed {seed}: key {key} torn");
                        let range = oldest % DELETION..=newest % DELETION;
                        assert!(range.contains(&version), "seed {seed}: key {key}: {version} of {range:?}");
                    }
                    store.counters()
                })
            })
            .collect();
        let mut store = client::<S>(&server);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..WRITES {
            let key = random.random_range(0..KEYS);
            let (begun, acknowledged) = (&versions.begun[key as usize], &versions.acknowledged[key as usize]);
            let before = acknowledged.load(Ordering::SeqCst);
            let is_delete = before % 2 == 1 && random.random_bool(0.3);
            let step = if is_delete { DELETION + 1 } else { 1 + before % 2 };
            let version = before + step;
            begun.store(version, Ordering::SeqCst);
            let bytes = key.to_le_bytes();
            if is_delete {
                assert!(store.delete(&bytes).unwrap());
            } else if let Err(error) = store.put(&bytes, &value_of(key, version % DELETION)) {
                // The same value is stored again later.
                assert!(error.to_string().contains("the index is full"), "{error}");
                continue;
            }
            acknowledged.store(version, Ordering::SeqCst);
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            println!("{}: beside {WRITES} writes: {:?}", S::NAME, reader.join().unwrap());
        }
    });
}

/// Operations that were started together each have their own result; a GET returns the value of a map in which all
/// earlier operations have completed.
fn window_of_requests<S: Scheme>(inline_bytes: u32) {
    const KEYS: u64 = 40;
    const WINDOW: usize = 12;
    let config = BypassConfig::default().entries(1 << 10).value_max_bytes(1 << 10);
    let server = server::<S>(config.inline_bytes(inline_bytes));
    let mut store = client::<S>(&server);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
    for round in 0..60_u64 {
        let mut expected: HashMap<OperationId, Option<Vec<u8>>> = HashMap::new();
        let mut keys: Vec<u64> = (0..KEYS).collect();
        for _ in 0..WINDOW {
            // Each key only once, because the order of completion is undefined.
            let key = keys.swap_remove(random.random_range(0..keys.len()));
            let before = model.get(&key).cloned();
            let bytes = key.to_le_bytes();
            let (operation, answer) = match random.random_range(0..4) {
                0 => {
                    let value = value_of(key, round);
                    model.insert(key, value.clone());
                    (store.begin_put(&bytes, &value), Some(b"stored".to_vec()))
                }
                1 => {
                    model.remove(&key);
                    (store.begin_delete(&bytes), before.map(|_| b"deleted".to_vec()))
                }
                _ => (store.begin_get(&bytes), before),
            };
            expected.insert(operation.unwrap(), answer);
        }
        // One more GET at a time, in addition to the window.
        assert_eq!(get(&mut store, b"another"), None);
        while let Some(ended) = store.wait() {
            let answer = match ended.result.unwrap() {
                Answer::Value(value) => Some(value.to_vec()),
                Answer::Stored => Some(b"stored".to_vec()),
                Answer::Deleted => Some(b"deleted".to_vec()),
                Answer::Missing => None,
            };
            assert_eq!(Some(answer), expected.remove(&ended.operation), "{}", S::NAME);
        }
        assert!(expected.is_empty());
    }
    let window = store.available();
    (0..window).for_each(|_| assert!(store.begin_get(b"key").is_ok()));
    assert!(matches!(store.begin_get(b"key"), Err(BypassError::WindowFull { .. })));
}

fn continues_after_a_restart<S: Scheme>(inline_bytes: u32) {
    let config = BypassConfig::default().inline_bytes(inline_bytes);
    let first = server::<S>(config);
    let address = first.address();
    let mut store = client::<S>(&first);
    store.put(b"key", b"value").unwrap();
    drop(first);
    let builder = || Server::builder().address(address.to_string());
    let second = serve::<S>(builder(), &nic(), config).unwrap();
    assert_eq!(get(&mut store, b"key"), None, "it is another store");
    store.put(b"key", b"again").unwrap();
    assert_eq!(get(&mut store, b"key").as_deref(), Some(&b"again"[..]));
    drop(second);
}

fn garbage_is_refused<S: Scheme>(inline_bytes: u32) {
    let server = server::<S>(BypassConfig::default().inline_bytes(inline_bytes));
    let mut store = client::<S>(&server);
    store.put(b"key", b"value").unwrap();
    let mut calls =
        Client::connect(&nic(), server.address().to_string(), BypassClient::<S>::options()).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for round in 0..150_u32 {
        let (method, len) = (random.random_range(0..7_u16), random.random_range(0..60));
        let mut request: Vec<u8> = (0..len).map(|_| random.random()).collect();
        if let Some(key_len) = request.first_mut().filter(|_| round % 2 == 0) {
            *key_len %= 32;
        }
        match calls.call(method, &request, &mut Vec::new()) {
            Ok(()) | Err(CallError::Application { .. }) => {}
            Err(CallError::Server { .. }) if !(1..=4).contains(&method) => {}
            other => panic!("method {method} of {request:?}: {other:?}"),
        }
    }
    assert_eq!(get(&mut store, b"key").as_deref(), Some(&b"value"[..]));
}
