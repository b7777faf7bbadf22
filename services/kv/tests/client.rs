//! The client of all partitions, with servers in this process.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use farcall_kv::client::{Change, KvClient, KvConnectError, KvError, Write};
use farcall_kv::store::{Config, Counter, Partition, PutMode};
use farcall_kv::wire::{ReplySink, Service};
use farcall_link::Nic;
use farcall_rpc::{Call, CallError, ClientOptions, Executed, Handler, HandlerError, Reply, Server};
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

struct Store(Service);

struct Sink<'a, 'b>(&'a mut Reply<'b>);

impl ReplySink for Sink<'_, '_> {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl Handler for Store {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let now_ms = call.arrived().0 / 1_000_000;
        self.0
            .handle(call.method(), call.payload(), &mut Sink(reply), now_ms)
            .map_err(|error| HandlerError::new(error.code(), error.to_string()))
    }
}

/// Starts a server whose threads report that they own these partitions.
fn serve(address: &str, partitions: &[(u32, u32)], evict: bool) -> Server {
    let partitions = partitions.to_vec();
    let stores: Mutex<Vec<Option<Partition>>> = Mutex::new(
        partitions
            .iter()
            .map(|(partition, partitions)| {
                let config = Config {
                    partition: *partition,
                    partitions: *partitions,
                    limit_bytes: 8 << 20,
                    value_max_bytes: 1 << 20,
                    evict,
                    ..Config::default()
                };
                Some(Partition::new(config, 0).unwrap())
            })
            .collect(),
    );
    let server = Server::builder().address(address).threads(partitions.len() as u16);
    let store =
        move |thread: u16| Store(Service::new(stores.lock().unwrap()[usize::from(thread)].take().unwrap()));
    server.start(&nic(), store).unwrap()
}

fn options() -> ClientOptions {
    ClientOptions::default().probe(false)
}

fn client(server: &Server) -> KvClient {
    KvClient::connect(&nic(), &server.address().to_string(), &options()).unwrap()
}

#[test]
fn every_operation_reaches_the_owner_of_its_key() {
    let server = serve("127.0.0.1:0", &[(0, 3), (1, 3), (2, 3)], true);
    let mut store = client(&server);
    assert_eq!((store.partitions(), store.value_max_bytes()), (3, 1 << 20));
    for number in 0..50 {
        let key = format!("key{number}");
        let key = key.as_bytes();
        assert!(store.get(key).unwrap().is_none());
        let Change::Done { version } = store.put(key, Write::of(b"1").flags(7)).unwrap() else {
            panic!("not stored");
        };
        let item = store.get(key).unwrap().unwrap();
        assert_eq!((item.value, item.flags, item.cas), (&b"1"[..], 7, version));
        assert_eq!(store.put(key, Write::of(b"2").mode(PutMode::Add)).unwrap(), Change::NotStored);
        assert_eq!(store.compare_and_swap(key, version + 1, Write::of(b"2")).unwrap(), Change::OtherVersion);
        assert!(matches!(
            store.compare_and_swap(key, version, Write::of(b"41")).unwrap(),
            Change::Done { .. }
        ));
        assert_eq!(store.count(key, Counter::Increment(1)).unwrap(), Some(42));
        assert!(store.touch(key, Duration::from_secs(60)).unwrap());
        assert_eq!(store.delete(key, Some(version)).unwrap(), Change::OtherVersion);
        assert!(matches!(store.delete(key, None).unwrap(), Change::Done { .. }));
        assert_eq!(store.delete(key, None).unwrap(), Change::NotFound);
        assert_eq!(store.count(key, Counter::Decrement(1)).unwrap(), None);
        assert!(!store.touch(key, Duration::ZERO).unwrap());
    }
    let stats = store.stats().unwrap();
    assert_eq!(stats.iter().map(|part| part.puts).sum::<u64>(), 100);
    assert!(stats.iter().all(|part| part.puts > 0), "no partition was left out");
}

#[test]
fn loads_and_reads_many_records_with_several_calls_outstanding() {
    let server = serve("127.0.0.1:0", &[(0, 2), (1, 2)], true);
    let mut store = client(&server);
    let records: Vec<(String, String)> =
        (0..2_000).map(|number| (format!("key{number}"), format!("value {number}"))).collect();
    let mut told = HashSet::new();
    let writes = records.iter().map(|(key, value)| (key.as_bytes(), Write::of(value.as_bytes())));
    store.put_many(writes, |place, outcome| {
        assert!(matches!(outcome, Ok(Change::Done { .. })), "{place}: {outcome:?}");
        assert!(told.insert(place));
    });
    assert_eq!(told.len(), records.len());

    let absent = b"absent";
    let mut keys: Vec<&[u8]> = records.iter().map(|(key, _)| key.as_bytes()).collect();
    keys.push(absent);
    let mut found = vec![None; keys.len()];
    store
        .get_many(&keys, |place, item| {
            assert!(found[place].is_none());
            found[place] = Some(item.map(|item| item.value.to_vec()));
        })
        .unwrap();
    for ((_, value), found) in records.iter().zip(&found) {
        assert_eq!(found.as_ref().unwrap().as_deref(), Some(value.as_bytes()));
    }
    assert_eq!(found.last().unwrap(), &Some(None));
    store.flush_all(Duration::ZERO).unwrap();
    assert!(store.get(b"key1").unwrap().is_none());
}

#[test]
fn requests_the_rest_of_long_answers() {
    let server = serve("127.0.0.1:0", &[(0, 1)], true);
    let mut store = client(&server);
    let value = vec![b'v'; 700 << 10];
    let keys: Vec<String> = (0..5).map(|number| format!("long{number}")).collect();
    for key in &keys {
        store.put(key.as_bytes(), Write::of(&value)).unwrap();
    }
    let asked: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let mut found = 0;
    store
        .get_many(&asked, |_, item| {
            assert_eq!(item.unwrap().value, value);
            found += 1;
        })
        .unwrap();
    assert_eq!(found, keys.len());
}

#[test]
fn refusals_are_typed_and_change_nothing() {
    let server = serve("127.0.0.1:0", &[(0, 1)], false);
    let mut store = client(&server);
    assert!(matches!(store.get(b""), Err(KvError::Key(_))));
    assert!(matches!(store.get(&[b'k'; 251]), Err(KvError::Key(_))));
    store.put(b"text", Write::of(b"no number")).unwrap();
    assert!(matches!(store.count(b"text", Counter::Increment(1)), Err(KvError::NotANumber)));
    let too_long = vec![0; (1 << 20) + 1];
    let refused = store.put(b"text", Write::of(&too_long));
    assert!(matches!(refused, Err(KvError::ValueTooLarge { max_bytes: 1_048_576 })), "{refused:?}");
    let beyond = store.put(b"text", Write::of(&vec![0; 32 << 20])).unwrap_err();
    assert!(matches!(beyond, KvError::Call(CallError::RequestTooLarge { .. })), "{beyond:?}");
    assert_eq!(beyond.executed(), Executed::No);
    assert_eq!(store.get(b"text").unwrap().unwrap().value, b"no number");
    let value = vec![0; 500 << 10];
    let full = (0..100).find_map(|number| store.put(&[b'k', number], Write::of(&value)).err());
    assert!(matches!(full, Some(KvError::OutOfMemory)), "{full:?}");
}

#[test]
fn servers_that_contradict_themselves_or_change_are_noticed() {
    let liar = serve("127.0.0.1:0", &[(0, 2), (1, 3)], true);
    let error = KvClient::connect(&nic(), &liar.address().to_string(), &options()).err().unwrap();
    assert!(
        matches!(error, KvConnectError::Disagreement { thread: 1, partitions: 3, expected: 2, .. }),
        "{error:?}"
    );

    // A store of one partition is restarted as the first of two.
    let server = serve("127.0.0.1:0", &[(0, 1)], true);
    let mut store = client(&server);
    let address = server.address().to_string();
    server.drain();
    server.join();
    let _other = serve(&address, &[(0, 2), (1, 2)], true);
    let mut outcome_of = |number: u32| loop {
        match store.get(format!("key{number}").as_bytes()) {
            Ok(None) => return true,
            Err(KvError::Moved(_)) => return false,
            // It was sent before the client noticed the end of the old server.
            Err(error) if error.executed() == Executed::Unknown => {}
            other => panic!("{other:?}"),
        }
    };
    let outcomes: Vec<bool> = (0..50).map(&mut outcome_of).collect();
    assert!(outcomes.contains(&true) && outcomes.contains(&false), "{outcomes:?}");
}
