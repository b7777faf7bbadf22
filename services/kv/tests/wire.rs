//! The RPC codec and service: round trips, invalid input, statuses, routing, and GETs without allocation.

#[path = "../../stream/tests/support/counting.rs"]
mod counting;

use counting::allocations;
use farcall_kv::store::{Config, Counter, IndexSize, Partition, PutMode};
use farcall_kv::wire::client::Split;
use farcall_kv::wire::{
    KeyIter, Lookup, MULTI_KEYS_MAX, MULTI_REPLY_SOFT_MAX_BYTES, Method, ReplySink, Request, RequestError,
    Service, ServiceError, Status, decode_count, decode_item, decode_ping_reply, decode_stats, decode_status,
    decode_version, encode_multi_get,
};
use proptest::prelude::*;

const NOW_MS: u64 = 1_700_000_000_000;

fn service_of(partition: u32, partitions: u32) -> Service {
    let config = Config {
        limit_bytes: 2 << 20,
        value_max_bytes: 100_000,
        index: IndexSize::Buckets(1024),
        partition,
        partitions,
        ..Config::default()
    };
    Service::new(Partition::new(config, NOW_MS).unwrap())
}

fn call(service: &mut Service, request: &Request<'_>, now_ms: u64) -> Vec<u8> {
    let (mut message, mut reply) = (Vec::new(), Vec::new());
    request.encode(&mut message);
    service.handle(request.method().id(), &message, &mut reply, now_ms).unwrap();
    reply
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request::Put { key, value, flags: 7, ttl_ms: 0, mode: PutMode::Set }
}

#[test]
fn a_put_value_is_read_back_with_flags_and_version() {
    let mut service = service_of(0, 1);
    let (status, cas) = decode_version(&call(&mut service, &put(b"k", b"value"), NOW_MS)).unwrap();
    assert_eq!(status, Status::Ok);
    let reply = call(&mut service, &Request::Get { key: b"k" }, NOW_MS);
    let item = decode_item(&reply).unwrap().unwrap();
    assert_eq!((item.value, item.flags, item.cas), (&b"value"[..], 7, cas));
    assert_eq!(decode_item(&call(&mut service, &Request::Get { key: b"x" }, NOW_MS)).unwrap(), None);
}

#[test]
fn every_status_has_its_cause() {
    let mut service = service_of(0, 1);
    let status = |service: &mut Service, request: Request<'_>| {
        decode_status(&call(service, &request, NOW_MS)).unwrap().0
    };
    let add = Request::Put { key: b"k", value: b"1", flags: 0, ttl_ms: 0, mode: PutMode::Add };
    assert_eq!(status(&mut service, Request::Delete { key: b"k", cas: 0 }), Status::NotFound);
    assert_eq!(status(&mut service, add), Status::Ok);
    assert_eq!(status(&mut service, add), Status::NotStored);
    assert_eq!(
        status(&mut service, Request::Cas { key: b"k", value: b"2", flags: 0, ttl_ms: 0, cas: 1 }),
        Status::Exists
    );
    assert_eq!(status(&mut service, Request::Delete { key: b"k", cas: 1 }), Status::Exists);
    assert_eq!(status(&mut service, put(b"k", &vec![0; 100_001])), Status::TooLarge);
    assert_eq!(status(&mut service, Request::Touch { key: b"nope", ttl_ms: 1 }), Status::NotFound);
    assert_eq!(status(&mut service, put(b"word", b"x")), Status::Ok);
    assert_eq!(
        status(&mut service, Request::Count { key: b"word", by: Counter::Increment(1) }),
        Status::NotANumber
    );
    assert_eq!(status(&mut service, Request::FlushAll { delay_ms: 0 }), Status::Ok);
    assert_eq!(status(&mut service, Request::Get { key: b"k" }), Status::NotFound);
}

#[test]
fn counters_touch_cas_and_stats_over_the_wire() {
    let mut service = service_of(0, 1);
    call(&mut service, &put(b"n", b"41"), NOW_MS);
    let reply = call(&mut service, &Request::Count { key: b"n", by: Counter::Increment(1) }, NOW_MS);
    let (status, number, cas) = decode_count(&reply).unwrap();
    assert_eq!((status, number), (Status::Ok, 42));
    let swap = Request::Cas { key: b"n", value: b"0", flags: 0, ttl_ms: 50, cas };
    assert_eq!(decode_version(&call(&mut service, &swap, NOW_MS)).unwrap().0, Status::Ok);
    let reply = call(&mut service, &Request::GetAndTouch { key: b"n", ttl_ms: 1000 }, NOW_MS + 49);
    assert_eq!(decode_item(&reply).unwrap().unwrap().value, b"0");
    assert!(decode_item(&call(&mut service, &Request::Get { key: b"n" }, NOW_MS + 1048)).unwrap().is_some());
    assert!(decode_item(&call(&mut service, &Request::Get { key: b"n" }, NOW_MS + 1049)).unwrap().is_none());
    let stats = decode_stats(&call(&mut service, &Request::Stats, NOW_MS)).unwrap();
    assert_eq!((stats.cas_hits, stats.incr_hits + stats.decr_hits, stats.expired, stats.items), (1, 1, 1, 0));
}

#[test]
fn rejects_a_key_of_another_partition_without_executing() {
    let mut services: Vec<Service> = (0..4).map(|partition| service_of(partition, 4)).collect();
    let identity = decode_ping_reply(&call(&mut services[2], &Request::Ping, NOW_MS)).unwrap();
    assert_eq!((identity.partition, identity.partitions, identity.value_max_bytes), (2, 4, 100_000));
    let router = identity.router();
    for number in 0..100u32 {
        let key = format!("key{number}");
        let owner = router.owner(&router.key(key.as_bytes()).unwrap());
        for (here, service) in services.iter_mut().enumerate() {
            let (mut message, mut reply) = (Vec::new(), Vec::new());
            put(key.as_bytes(), b"v").encode(&mut message);
            let result = service.handle(Method::Put.id(), &message, &mut reply, NOW_MS);
            if here as u32 == owner {
                assert_eq!(result, Ok(()));
            } else {
                let refusal = ServiceError::WrongPartition { owner, here: here as u32, partitions: 4 };
                assert_eq!(result, Err(refusal));
                assert_eq!(refusal.code(), 3);
                assert!(reply.is_empty());
            }
        }
    }
    let items: u64 = services.iter_mut().map(|service| service.partition().stats().items).sum();
    assert_eq!(items, 100);
}

#[test]
fn multi_get_is_split_by_owner_and_merged_in_order() {
    let mut services: Vec<Service> = (0..3).map(|partition| service_of(partition, 3)).collect();
    let router = services[0].partition().router().clone();
    let names: Vec<String> = (0..9000).map(|n| format!("key{n}")).collect();
    for name in names.iter().step_by(2) {
        let owner = router.owner(&router.key(name.as_bytes()).unwrap());
        call(&mut services[owner as usize], &put(name.as_bytes(), name.as_bytes()), NOW_MS);
    }
    let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let (mut split, mut seen) = (Split::default(), vec![None; keys.len()]);
    let requests = split.split(&router, &keys).unwrap();
    assert!(requests.iter().all(|request| request.places().len() <= usize::from(MULTI_KEYS_MAX)));
    for request in requests {
        let (mut message, mut reply) = (Vec::new(), Vec::new());
        request.encode(&keys, &mut message);
        let service = &mut services[request.partition as usize];
        service.handle(Method::MultiGet.id(), &message, &mut reply, NOW_MS).unwrap();
        request
            .merge(&reply, |place, lookup| match lookup {
                Lookup::Found(item) => seen[place] = Some(item.value == keys[place]),
                Lookup::Missed => seen[place] = Some(place % 2 == 1),
                Lookup::Deferred => panic!("a small reply defers nothing"),
            })
            .unwrap();
    }
    assert!(seen.iter().all(|right| *right == Some(true)));
    assert!(split.split(&router, &[b"fine", b""]).is_err());
}

#[test]
fn multi_get_defers_what_would_make_the_reply_unbounded() {
    let mut service = service_of(0, 1);
    let value = vec![b'v'; 90_000];
    call(&mut service, &put(b"big", &value), NOW_MS);
    let (mut message, mut reply) = (Vec::new(), Vec::new());
    encode_multi_get(std::iter::repeat_n(&b"big"[..], 100).collect::<Vec<_>>().into_iter(), &mut message);
    service.handle(Method::MultiGet.id(), &message, &mut reply, NOW_MS).unwrap();
    assert!(reply.len() < MULTI_REPLY_SOFT_MAX_BYTES + 100_000);
    let lookups: Vec<_> = farcall_kv::wire::MultiReply::new(&reply).unwrap().map(Result::unwrap).collect();
    assert_eq!(lookups.len(), 100);
    assert!(matches!(lookups[11], Lookup::Found(item) if item.value == value));
    assert_eq!(lookups[12], Lookup::Deferred);
}

#[test]
fn malformed_requests_get_their_own_error() {
    let mut service = service_of(0, 1);
    let mut refuse = |method: u16, message: &[u8]| {
        let mut reply = Vec::new();
        let error = service.handle(method, message, &mut reply, NOW_MS).unwrap_err();
        assert!(reply.is_empty());
        error
    };
    assert_eq!(refuse(99, &[]), ServiceError::UnknownMethod { method: 99 });
    let malformed = ServiceError::Malformed;
    assert_eq!(refuse(2, &[]), malformed(RequestError::TooShort { len_bytes: 0, needed_bytes: 4 }));
    assert_eq!(refuse(2, &[2, 1, 0, 0, b'k']), malformed(RequestError::UnknownVersion { version: 2 }));
    assert_eq!(refuse(2, &[1, 1, 1, 0, b'k']), malformed(RequestError::UnknownOptions { options: 1 }));
    assert_eq!(refuse(2, &[1, 0, 0, 0]), malformed(RequestError::BadKeyLength { len_bytes: 0 }));
    assert_eq!(refuse(2, &[1, 251, 0, 0]), malformed(RequestError::BadKeyLength { len_bytes: 251 }));
    assert_eq!(
        refuse(2, &[1, 2, 0, 0, b'k']),
        malformed(RequestError::TooShort { len_bytes: 5, needed_bytes: 6 })
    );
    assert_eq!(refuse(2, &[1, 1, 0, 0, b'k', b'k']), malformed(RequestError::TooLong { extra_bytes: 1 }));
    assert_eq!(
        refuse(3, &[1, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'k']),
        malformed(RequestError::UnknownOptions { options: 5 })
    );
    assert_eq!(refuse(1, &[1, 0, 0, 0, 9]), malformed(RequestError::TooLong { extra_bytes: 1 }));
    assert_eq!(refuse(10, &[1, 0, 0, 0, 0, 0]), malformed(RequestError::BadKeyCount { keys: 0 }));
    assert_eq!(
        refuse(10, &[1, 0, 0, 0, 1, 0, 2, b'k']),
        malformed(RequestError::TooShort { len_bytes: 8, needed_bytes: 9 })
    );
}

fn any_request() -> impl Strategy<Value = (u8, Vec<u8>, Vec<u8>, u32, u64, u64)> {
    let key = prop::collection::vec(any::<u8>(), 1..=250);
    let value = prop::collection::vec(any::<u8>(), 0..500);
    (0u8..14, key, value, any::<u32>(), any::<u64>(), any::<u64>())
}

fn request_of<'a>(
    kind: u8,
    key: &'a [u8],
    value: &'a [u8],
    flags: u32,
    ttl_ms: u64,
    number: u64,
) -> Request<'a> {
    let put = |mode| Request::Put { key, value, flags, ttl_ms, mode };
    match kind {
        0 => Request::Ping,
        1 => Request::Get { key },
        2 => put(PutMode::Set),
        3 => put(PutMode::Add),
        4 => put(PutMode::Replace),
        5 => put(PutMode::Append),
        6 => put(PutMode::Prepend),
        7 => Request::Cas { key, value, flags, ttl_ms, cas: number },
        8 => Request::Delete { key, cas: number },
        9 => Request::Touch { key, ttl_ms },
        10 => Request::GetAndTouch { key, ttl_ms },
        11 => Request::Count { key, by: Counter::Increment(number) },
        12 => Request::Count { key, by: Counter::Decrement(number) },
        _ => Request::FlushAll { delay_ms: ttl_ms },
    }
}

proptest! {
    #[test]
    fn requests_round_trip((kind, key, value, flags, ttl_ms, number) in any_request()) {
        let request = request_of(kind, &key, &value, flags, ttl_ms, number);
        let mut message = Vec::new();
        request.encode(&mut message);
        prop_assert_eq!(Request::decode(request.method(), &message), Ok(request));
    }

    #[test]
    fn a_shortened_request_is_refused_or_means_a_shorter_value(
        (kind, key, value, flags, ttl_ms, number) in any_request(), cut in any::<prop::sample::Index>()
    ) {
        let request = request_of(kind, &key, &value, flags, ttl_ms, number);
        let mut message = Vec::new();
        request.encode(&mut message);
        let shorter = &message[..cut.index(message.len())];
        match Request::decode(request.method(), shorter) {
            Err(_) => {}
            Ok(Request::Put { value: left, .. } | Request::Cas { value: left, .. }) => {
                prop_assert!(left.len() < value.len() && value.starts_with(left));
            }
            Ok(other) => prop_assert!(false, "{other:?} from a cut message"),
        }
    }

    #[test]
    fn multi_get_requests_round_trip(
        keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..=250), 1..50),
    ) {
        let mut message = Vec::new();
        encode_multi_get(keys.iter().map(Vec::as_slice), &mut message);
        let Ok(Request::MultiGet { keys: count, encoded }) = Request::decode(Method::MultiGet, &message) else {
            panic!("a legal MULTI_GET is decoded")
        };
        prop_assert_eq!(usize::from(count), keys.len());
        prop_assert!(KeyIter::new(encoded).eq(keys.iter().map(Vec::as_slice)));
    }

    #[test]
    fn garbage_never_panics_the_service_or_the_client(
        method in 0u16..15, message in prop::collection::vec(any::<u8>(), 0..300), version_fixed: bool
    ) {
        let mut message = message;
        if let (true, [version, _, options, options_high, ..]) = (version_fixed, message.as_mut_slice()) {
            (*version, *options, *options_high) = (1, 0, 0);
        }
        let mut service = service_of(0, 2);
        let mut reply = Vec::new();
        match service.handle(method, &message, &mut reply, NOW_MS) {
            Ok(()) => prop_assert!(decode_status(&reply).is_ok()),
            Err(_) => prop_assert!(reply.is_empty()),
        }
        let _ = (decode_item(&message), decode_count(&message), decode_version(&message));
        let _ = (decode_ping_reply(&message), decode_stats(&message));
        if let Ok(items) = farcall_kv::wire::MultiReply::new(&message) {
            prop_assert!(items.count() <= message.len());
        }
    }
}

/// A reply with a fixed capacity, as in the RPC layer.
struct Slot {
    bytes: [u8; 4096],
    used: usize,
}

impl ReplySink for Slot {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}

#[test]
fn steady_state_allocates_nothing() {
    let mut service = service_of(0, 1);
    let names: Vec<String> = (0..20_000).map(|n| format!("key{n:013}")).collect();
    let mut slot = Slot { bytes: [0; 4096], used: 0 };
    let mut message = Slot { bytes: [0; 4096], used: 0 };
    let mut turn = |service: &mut Service, request: Request<'_>| {
        (slot.used, message.used) = (0, 0);
        request.encode(&mut message);
        service.handle(request.method().id(), &message.bytes[..message.used], &mut slot, NOW_MS).unwrap();
    };
    let before = allocations();
    for (turn_number, name) in names.iter().enumerate() {
        // Lengths vary, and the store is too small for all values, so that puts evict.
        turn(&mut service, put(name.as_bytes(), &[b'v'; 2000][..turn_number % 2000]));
        turn(&mut service, Request::Get { key: name.as_bytes() });
        turn(&mut service, Request::Get { key: names[turn_number / 2].as_bytes() });
        turn(&mut service, Request::Delete { key: names[turn_number / 3].as_bytes(), cas: 0 });
    }
    assert_eq!(allocations() - before, 0);
    assert!(service.partition().stats().evictions() > 1000, "the store was full");
}
