//! The partition compared with a simple model, the order of eviction, and the memory limit under churn.

use std::collections::HashMap;

use farcall_kv::store::{
    Config, Counter, CounterError, IndexSize, Invalidation, MetaGet, Outcome, Partition, Put, PutMode,
    StoreError,
};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const NOW_MS: u64 = 1_700_000_000_000;
const VALUE_MAX_BYTES: usize = 2000;

fn partition(limit_bytes: usize, buckets: u32, evict: bool) -> Partition {
    let config = Config {
        limit_bytes,
        value_max_bytes: VALUE_MAX_BYTES,
        index: IndexSize::Buckets(buckets),
        evict,
        ..Config::default()
    };
    Partition::new(config, NOW_MS).unwrap()
}

#[derive(Debug, Clone)]
enum Step {
    Put { key: u8, mode: PutMode, len: usize, ttl_ms: u64, cas: CasWish },
    Get { key: u8 },
    GetAndTouch { key: u8, ttl_ms: u64 },
    Touch { key: u8, ttl_ms: u64 },
    Delete { key: u8, cas: CasWish },
    Count { key: u8, delta: u64, up: bool },
    PutNumber { key: u8, number: u64 },
    Flush { delay_ms: u64 },
    Wait { ms: u64 },
    Sweep { buckets: u32 },
}

#[derive(Debug, Clone, Copy)]
enum CasWish {
    None,
    Current,
    Wrong,
}

fn any_step() -> impl Strategy<Value = Step> {
    let key = 0u8..40;
    let ttl_ms = || prop_oneof![2 => Just(0u64), 1 => 1u64..5000];
    let cas =
        || prop_oneof![3 => Just(CasWish::None), 1 => Just(CasWish::Current), 1 => Just(CasWish::Wrong)];
    let mode = prop::sample::select(vec![
        PutMode::Set,
        PutMode::Set,
        PutMode::Add,
        PutMode::Replace,
        PutMode::Append,
        PutMode::Prepend,
    ]);
    let len = prop_oneof![4 => 0usize..100, 1 => 0usize..=VALUE_MAX_BYTES + 10];
    prop_oneof![
        8 => (key.clone(), mode, len, ttl_ms(), cas())
            .prop_map(|(key, mode, len, ttl_ms, cas)| Step::Put { key, mode, len, ttl_ms, cas }),
        8 => key.clone().prop_map(|key| Step::Get { key }),
        1 => (key.clone(), ttl_ms()).prop_map(|(key, ttl_ms)| Step::GetAndTouch { key, ttl_ms }),
        1 => (key.clone(), ttl_ms()).prop_map(|(key, ttl_ms)| Step::Touch { key, ttl_ms }),
        2 => (key.clone(), cas()).prop_map(|(key, cas)| Step::Delete { key, cas }),
        2 => (key.clone(), 0u64..1000, any::<bool>()).prop_map(|(key, delta, up)| Step::Count { key, delta, up }),
        1 => (key, any::<u64>()).prop_map(|(key, number)| Step::PutNumber { key, number }),
        1 => (0u64..2000).prop_map(|delay_ms| Step::Flush { delay_ms }),
        2 => (1u64..3000).prop_map(|ms| Step::Wait { ms }),
        1 => (1u32..100).prop_map(|buckets| Step::Sweep { buckets }),
    ]
}

#[derive(Debug, Clone)]
struct ModelItem {
    value: Vec<u8>,
    flags: u32,
    expires_ms: u64,
    cas: u64,
}

/// The contents that the store must have, except that items may be missing after evictions.
struct Model {
    items: HashMap<u8, ModelItem>,
    now_ms: u64,
    flush_at_ms: u64,
    /// The last version seen: versions only increase.
    last_cas: u64,
    writes: u8,
}

impl Model {
    fn settle(&mut self) {
        if self.now_ms >= self.flush_at_ms {
            self.items.clear();
            self.flush_at_ms = u64::MAX;
        }
        let now_ms = self.now_ms;
        self.items.retain(|_, item| item.expires_ms == 0 || item.expires_ms > now_ms);
    }

    fn expiry(&self, ttl_ms: u64) -> u64 {
        if ttl_ms == 0 { 0 } else { self.now_ms + ttl_ms }
    }

    /// Removes items from the model that the store has evicted; any other missing item is an error.
    fn sync(&mut self, store: &mut Partition, key: u8, may_miss: bool) {
        self.settle();
        let name = name(key);
        let found = store.peek(&store.key(&name).unwrap(), self.now_ms);
        match (found, self.items.get(&key)) {
            (None, None) => {}
            (None, Some(_)) => {
                assert!(may_miss, "key {key} is gone though nothing was evicted");
                self.items.remove(&key);
            }
            (Some(item), None) => panic!("key {key} holds {item:?} and should hold nothing"),
            (Some(item), Some(model)) => {
                assert_eq!(item.value, model.value, "key {key}");
                assert_eq!(
                    (item.flags, item.expires_ms, item.cas),
                    (model.flags, model.expires_ms, model.cas)
                );
            }
        }
    }

    fn wish(&self, key: u8, wish: CasWish) -> Option<u64> {
        match wish {
            CasWish::None => None,
            CasWish::Current => Some(self.items.get(&key).map_or(7, |item| item.cas)),
            CasWish::Wrong => Some(3),
        }
    }

    fn stored(&mut self, key: u8, value: Vec<u8>, flags: u32, expires_ms: u64, cas: u64) {
        assert!(cas > self.last_cas, "versions grow");
        self.last_cas = cas;
        self.items.insert(key, ModelItem { value, flags, expires_ms, cas });
    }

    fn put(&mut self, store: &mut Partition, key: u8, put: &Put<'_>) {
        let result = store.put(&store.key(&name(key)).unwrap(), put, self.now_ms);
        let old = self.items.get(&key).cloned();
        // As in memcached, a condition on the version is evaluated only if there is an item to compare with, and has
        // no effect on an item to be added.
        let differs =
            old.as_ref().is_some_and(|item| put.compare_cas.is_some_and(|wanted| wanted != item.cas));
        match (put.mode, &old) {
            (PutMode::Add, _) => {}
            (_, Some(_)) if differs => return assert_eq!(result, Ok(Outcome::Exists)),
            (PutMode::Set | PutMode::Replace, None) if put.compare_cas.is_some() => {
                return assert_eq!(result, Ok(Outcome::NotFound));
            }
            _ => {}
        }
        let (value, flags, expires_ms) = match (put.mode, old) {
            (PutMode::Add, Some(_)) | (PutMode::Replace | PutMode::Append | PutMode::Prepend, None) => {
                return assert_eq!(result, Ok(Outcome::NotStored));
            }
            (PutMode::Append, Some(old)) => ([&old.value, put.value].concat(), old.flags, old.expires_ms),
            (PutMode::Prepend, Some(old)) => ([put.value, &old.value].concat(), old.flags, old.expires_ms),
            _ => (put.value.to_vec(), put.flags, put.expires_ms),
        };
        if value.len() > VALUE_MAX_BYTES {
            let (len_bytes, max_bytes) = (value.len(), VALUE_MAX_BYTES);
            return assert_eq!(result, Err(StoreError::ValueTooLarge { len_bytes, max_bytes }));
        }
        match result {
            Ok(Outcome::Stored { cas }) => self.stored(key, value, flags, expires_ms, cas),
            Err(StoreError::OutOfMemory) => {
                assert!(!store.config().evict, "an evicting store always finds room")
            }
            other => panic!("{other:?} to a put that must be stored"),
        }
    }

    fn count(&mut self, store: &mut Partition, key: u8, by: Counter) {
        let result = store.count(&store.key(&name(key)).unwrap(), by, self.now_ms);
        let Some(old) = self.items.get(&key).cloned() else { return assert_eq!(result, Ok(None)) };
        let number = std::str::from_utf8(&old.value).ok().filter(|text| text.len() <= 20);
        let Some(number) = number.and_then(|text| text.parse::<u64>().ok()) else {
            return assert_eq!(result, Err(CounterError::NotANumber));
        };
        let new = match by {
            Counter::Increment(delta) => number.wrapping_add(delta),
            Counter::Decrement(delta) => number.saturating_sub(delta),
        };
        match result {
            Ok(Some((number, cas))) => {
                assert_eq!(number, new);
                self.stored(key, new.to_string().into_bytes(), old.flags, old.expires_ms, cas);
            }
            Err(CounterError::Store(StoreError::OutOfMemory)) => assert!(!store.config().evict),
            other => panic!("{other:?} to counting {number}"),
        }
    }

    fn step(&mut self, store: &mut Partition, step: &Step) {
        self.settle();
        let now_ms = self.now_ms;
        match *step {
            Step::Put { key, mode, len, ttl_ms, cas } => {
                self.writes = self.writes.wrapping_add(1);
                let value = vec![b'a' + self.writes % 26; len];
                let (compare_cas, expires_ms) = (self.wish(key, cas), self.expiry(ttl_ms));
                let flags = u32::from(self.writes);
                self.put(
                    store,
                    key,
                    &Put { value: &value, flags, expires_ms, mode, compare_cas, stale_if_older: false },
                );
            }
            Step::PutNumber { key, number } => {
                let value = number.to_string();
                self.put(store, key, &Put { value: value.as_bytes(), ..Put::default() });
            }
            Step::Count { key, delta, up } => {
                self.count(
                    store,
                    key,
                    if up { Counter::Increment(delta) } else { Counter::Decrement(delta) },
                );
            }
            Step::Get { key } => {
                let found =
                    store.get(&store.key(&name(key)).unwrap(), now_ms).map(|item| item.value.to_vec());
                assert_eq!(found, self.items.get(&key).map(|item| item.value.clone()));
            }
            Step::GetAndTouch { key, ttl_ms } => {
                let expires_ms = self.expiry(ttl_ms);
                let found = store.get_and_touch(&store.key(&name(key)).unwrap(), expires_ms, now_ms);
                assert_eq!(
                    found.map(|item| (item.value, item.expires_ms)),
                    self.items.get(&key).map(|item| (&item.value[..], expires_ms))
                );
                self.items.entry(key).and_modify(|item| item.expires_ms = expires_ms);
            }
            Step::Touch { key, ttl_ms } => {
                let expires_ms = self.expiry(ttl_ms);
                let touched = store.touch(&store.key(&name(key)).unwrap(), expires_ms, now_ms);
                assert_eq!(touched, self.items.contains_key(&key));
                self.items.entry(key).and_modify(|item| item.expires_ms = expires_ms);
            }
            Step::Delete { key, cas } => {
                let wanted = self.wish(key, cas);
                let outcome = store.delete(&store.key(&name(key)).unwrap(), wanted, now_ms);
                match self.items.get(&key) {
                    None => assert_eq!(outcome, Outcome::NotFound),
                    Some(item) if wanted.is_some_and(|wanted| wanted != item.cas) => {
                        assert_eq!(outcome, Outcome::Exists)
                    }
                    Some(item) => {
                        assert_eq!(outcome, Outcome::Stored { cas: item.cas });
                        self.items.remove(&key);
                    }
                }
            }
            Step::Flush { delay_ms } => {
                self.flush_at_ms = now_ms + delay_ms;
                store.flush_all(now_ms + delay_ms, now_ms);
            }
            Step::Wait { ms } => self.now_ms += ms,
            Step::Sweep { buckets } => drop(store.sweep(now_ms, buckets)),
        }
    }
}

fn name(key: u8) -> Vec<u8> {
    vec![b'k' + key; 1 + usize::from(key) * 3]
}

fn key_of(step: &Step) -> Option<u8> {
    match *step {
        Step::Put { key, .. }
        | Step::Get { key }
        | Step::GetAndTouch { key, .. }
        | Step::Touch { key, .. } => Some(key),
        Step::Delete { key, .. } | Step::Count { key, .. } | Step::PutNumber { key, .. } => Some(key),
        Step::Flush { .. } | Step::Wait { .. } | Step::Sweep { .. } => None,
    }
}

fn run(mut store: Partition, steps: &[Step]) {
    let mut model =
        Model { items: HashMap::new(), now_ms: NOW_MS, flush_at_ms: u64::MAX, last_cas: 0, writes: 0 };
    for step in steps {
        if let Some(key) = key_of(step) {
            let evicted = store.stats().evictions() > 0;
            model.sync(&mut store, key, evicted);
        }
        model.step(&mut store, step);
        let stats = store.stats();
        assert!(stats.reserved_bytes <= stats.limit_bytes && stats.item_bytes <= stats.reserved_bytes);
    }
    let evicted = store.stats().evictions() > 0;
    (0..40).for_each(|key| model.sync(&mut store, key, evicted));
    assert!(store.stats().items >= model.items.len() as u64);
    assert!(evicted || store.config().evict || store.stats().evictions() == 0);
}

proptest! {
    #[test]
    fn a_roomy_store_is_a_map(steps in prop::collection::vec(any_step(), 1..300)) {
        // 40 keys in 512 buckets: no bucket is ever full.
        run(partition(1 << 20, 512, true), &steps);
    }

    #[test]
    fn a_full_store_may_miss_but_is_never_wrong(steps in prop::collection::vec(any_step(), 1..300)) {
        run(partition(24 << 10, 4, true), &steps);
    }

    #[test]
    fn a_store_that_does_not_evict_refuses_and_keeps_what_it_has(steps in prop::collection::vec(any_step(), 1..300)) {
        run(partition(24 << 10, 16, false), &steps);
    }
}

#[test]
fn a_full_bucket_evicts_exactly_its_least_recently_used_item() {
    let seed = 42;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut store = partition(1 << 20, 1, true);
    // The model: keys of the single bucket, the least recently used first.
    let mut order: Vec<u32> = Vec::new();
    for _ in 0..20_000 {
        let number = random.random_range(0..12u32);
        let text = number.to_le_bytes();
        let key = store.key(&text).unwrap();
        let hit = order.contains(&number);
        order.retain(|&other| other != number);
        match random.random_range(0..3) {
            0 => {
                store.set(&key, &text, NOW_MS).unwrap();
                if !hit && order.len() == 8 {
                    order.remove(0);
                }
                order.push(number);
            }
            1 => {
                assert_eq!(
                    store.get(&key, NOW_MS).is_some(),
                    hit,
                    "seed {seed}: key {number}, order {order:?}"
                );
                order.extend(hit.then_some(number));
            }
            _ => {
                assert_eq!(store.touch(&key, 0, NOW_MS), hit);
                order.extend(hit.then_some(number));
            }
        }
        for number in 0..12u32 {
            let text = number.to_le_bytes();
            let key = store.key(&text).unwrap();
            assert_eq!(store.peek(&key, NOW_MS).is_some(), order.contains(&number), "seed {seed}");
        }
    }
    assert!(store.stats().evictions_bucket_full > 1000);
    assert_eq!(store.stats().evictions_memory_full, 0);
}

#[test]
fn keeps_the_memory_limit_and_fits_every_size_under_churn() {
    let seed = 7;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let limit_bytes = 2 << 20;
    let config = Config {
        limit_bytes,
        value_max_bytes: 300_000,
        index: IndexSize::Buckets(2048),
        ..Config::default()
    };
    let mut store = Partition::new(config, NOW_MS).unwrap();
    let value: Vec<u8> = (0..300_000u32).map(|at| at as u8).collect();
    for turn in 0..30_000u32 {
        let text = random.random_range(0..5000u32).to_le_bytes();
        let key = store.key(&text).unwrap();
        // Mostly short, sometimes up to the maximum length.
        let len = if turn % 50 == 0 { random.random_range(0..=300_000) } else { random.random_range(0..400) };
        store.set(&key, &value[..len], NOW_MS).unwrap();
        assert!(
            store.get(&key, NOW_MS).is_some_and(|item| item.value == &value[..len]),
            "seed {seed}, turn {turn}"
        );
        let stats = store.stats();
        assert!(stats.reserved_bytes <= limit_bytes as u64 && stats.item_bytes <= stats.reserved_bytes);
    }
    assert!(store.stats().evictions_memory_full > 1000);
}

#[test]
fn room_is_found_while_a_large_value_in_the_middle_grows() {
    let mut store = partition(24 << 10, 16, true);
    for turn in 0..3000u32 {
        let text = (turn % 97).to_le_bytes();
        let key = store.key(&text).unwrap();
        let put = Put { value: &[b'x'; 100], mode: PutMode::Append, ..Put::default() };
        match store.put(&key, &put, NOW_MS) {
            Ok(Outcome::Stored { .. }) => {}
            Ok(Outcome::NotStored) => drop(store.set(&key, &[b'y'; 500], NOW_MS).unwrap()),
            Err(StoreError::ValueTooLarge { .. }) => drop(store.delete(&key, None, NOW_MS)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_used_item_survives_one_round_of_the_hand() {
    let mut store = partition(64 << 10, 512, true);
    let hot = store.key(b"hot").unwrap();
    store.set(&hot, &[1; 100], NOW_MS).unwrap();
    for turn in 0..5000u32 {
        let text = turn.to_le_bytes();
        let key = store.key(&text).unwrap();
        store.set(&key, &[2; 100], NOW_MS).unwrap();
        assert!(store.get(&hot, NOW_MS).is_some(), "turn {turn}");
    }
    assert!(store.stats().evictions_memory_full > 3000);
}

#[test]
fn a_refused_write_changes_nothing() {
    let mut store = partition(24 << 10, 16, false);
    let key = store.key(b"kept").unwrap();
    let cas = store.set(&key, b"old", NOW_MS).unwrap();
    let refused = store.set(&key, &[0; VALUE_MAX_BYTES + 1], NOW_MS);
    assert_eq!(
        refused,
        Err(StoreError::ValueTooLarge { len_bytes: VALUE_MAX_BYTES + 1, max_bytes: VALUE_MAX_BYTES })
    );
    let full = (0..1000u32)
        .find_map(|number| store.set(&store.key(&number.to_le_bytes()).unwrap(), &[0; 1500], NOW_MS).err());
    assert_eq!(full, Some(StoreError::OutOfMemory));
    let larger = store.set(&key, &[0; VALUE_MAX_BYTES], NOW_MS);
    assert_eq!(larger, Err(StoreError::OutOfMemory));
    let item = store.peek(&key, NOW_MS).unwrap();
    assert_eq!((item.value, item.cas), (&b"old"[..], cas));
    assert_eq!(store.stats().evictions(), 0);
}

#[test]
fn versions_are_not_reused_after_a_restart() {
    let mut before = partition(1 << 20, 16, true);
    let mut highest = 0;
    for number in 0..10_000u32 {
        let text = number.to_le_bytes();
        highest = before.set(&before.key(&text).unwrap(), b"x", NOW_MS).unwrap();
    }
    let config = before.config().clone();
    let mut after = Partition::new(config, NOW_MS + 1).unwrap();
    let key = after.key(b"k").unwrap();
    assert!(after.peek(&key, NOW_MS + 1).is_none(), "a restarted store is empty");
    assert!(after.set(&key, b"x", NOW_MS + 1).unwrap() > highest);
}

#[test]
fn returns_memory_by_the_sweep_without_any_access() {
    let mut store = partition(1 << 20, 512, true);
    for number in 0..300u32 {
        let text = number.to_le_bytes();
        let key = store.key(&text).unwrap();
        let expires_ms = if number % 3 == 0 { 0 } else { NOW_MS + u64::from(number) };
        store.put(&key, &Put { value: b"x", expires_ms, ..Put::default() }, NOW_MS).unwrap();
    }
    assert_eq!(store.sweep(NOW_MS, 512), 0);
    let halves = store.sweep(NOW_MS + 5000, 256) + store.sweep(NOW_MS + 5000, 256);
    assert_eq!((halves, store.stats().items), (200, 100));
    store.flush_all(0, NOW_MS);
    assert_eq!(store.sweep(NOW_MS, u32::MAX), 100);
    assert_eq!((store.stats().items, store.stats().item_bytes), (0, 0));
}

#[test]
fn stale_items_are_served_and_one_caller_wins() {
    let mut store = partition(1 << 20, 16, true);
    let key = store.key(b"k").unwrap();
    let cas = store.set(&key, b"x", NOW_MS).unwrap();
    let wrong = Invalidation { compare_cas: Some(cas + 1), ..Invalidation::default() };
    assert_eq!(store.invalidate(&key, &wrong, NOW_MS), Outcome::Exists);
    assert!(
        matches!(store.invalidate(&key, &Invalidation::default(), NOW_MS), Outcome::Stored { cas: new } if new > cas)
    );
    let mut looks = (0..3).map(|_| {
        let found = store.meta_get(&key, &MetaGet::default(), NOW_MS).unwrap().unwrap();
        (found.stale, found.won, found.win_sent, found.item.value == b"x")
    });
    assert_eq!(looks.next(), Some((true, true, false, true)));
    assert!(looks.all(|look| look == (true, false, true, true)));
}

#[test]
fn keeps_a_lowered_limit_and_still_fits_every_size() {
    let mut store = partition(4 << 20, 512, true);
    let fill = |store: &mut Partition| {
        for n in 0..8_000u32 {
            let key = n.to_le_bytes();
            let len = if n % 100 == 0 { VALUE_MAX_BYTES } else { n as usize % 2000 };
            store.set(&store.key(&key).unwrap(), &vec![7; len.min(VALUE_MAX_BYTES)], NOW_MS).unwrap();
        }
        store.stats().item_bytes
    };
    let before = fill(&mut store);
    for refused in [0, 1 << 14, (4 << 20) + 1] {
        assert!(!store.limit_memory(refused), "{refused}");
    }
    assert!(store.limit_memory(1 << 20));
    assert_eq!(store.stats().limit_bytes, 1 << 20);
    // The excess is evicted gradually, and does not grow in the meantime.
    assert!(fill(&mut store) <= before);
    while store.stats().item_bytes > 1 << 20 {
        let items = store.stats().items;
        store.sweep(NOW_MS, 1);
        assert!(store.stats().items < items);
    }
    assert!(fill(&mut store) <= 1 << 20);
    assert!(store.limit_memory(4 << 20));
    assert!(fill(&mut store) > 2 << 20);
    assert!(!partition(4 << 20, 512, false).limit_memory(1 << 20), "without eviction nothing may go");
}
