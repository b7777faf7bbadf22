//! The key-value service, clients that record their operations, and the check that the histories are linearizable.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use farcall_kv::Config as StoreConfig;
use farcall_kv::store::{Partition, PutMode};
use farcall_kv::wire::{ReplySink, Request, Service, Status, decode_item, decode_version};
use farcall_rpc::{AnyCaller, Call, CallContext, CallId, Completion, Executed, Handler, HandlerError, Reply};
use farcall_sim::check::{Operation, Register, RegisterOp, linearizable};
use farcall_sim::{HostClock, Stream};
use farcall_verbs::{Clock, Nanos};

use super::rpc::Workload;

const KEYS: u32 = 3;
/// Number of keys of all clients together.
pub const KEYS_MAX: u32 = 10;

pub fn key(number: u32) -> [u8; 16] {
    let mut key = *b"key-0-----------";
    key[4] = b'0' + number as u8;
    key
}

/// Operations by key, in the order of their calls.
#[derive(Default)]
pub struct History(BTreeMap<u32, Vec<Operation<RegisterOp>>>);

impl History {
    pub fn called(&mut self, key: u32, op: RegisterOp, now: Nanos) -> usize {
        let list = self.0.entry(key).or_default();
        list.push(Operation { called_ns: now.0, returned_ns: None, op });
        list.len() - 1
    }

    pub fn operation(&mut self, key: u32, at: usize) -> &mut Operation<RegisterOp> {
        &mut self.0.get_mut(&key).expect("it was called")[at]
    }

    /// Records a restart of the store's process, between two times, which may lose the store's contents.
    pub fn restarted(&mut self, from: Nanos, to: Nanos) {
        for key in 0..KEYS_MAX {
            let at = self.called(key, RegisterOp::MayForget, from);
            self.operation(key, at).returned_ns = Some(to.0);
        }
    }

    /// Checks that a sequential order explains the history.
    pub fn check(&self) {
        for (key, history) in &self.0 {
            if let Err(error) = linearizable(&Register, history) {
                panic!("key {key}: {error}");
            }
        }
    }

    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

pub type SharedHistory = Rc<RefCell<History>>;

/// The store behind the calls.
pub struct Store {
    service: Service,
    clock: HostClock,
}

struct Sink<'a, 'b>(&'a mut Reply<'b>);

impl ReplySink for Sink<'_, '_> {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl Store {
    pub fn new(clock: HostClock) -> Self {
        let partition = {
            let config =
                StoreConfig { limit_bytes: 2 << 20, value_max_bytes: 8_000, ..StoreConfig::default() };
            Partition::new(config, now_ms(&clock)).unwrap()
        };
        Self { service: Service::new(partition), clock }
    }
}

fn now_ms(clock: &HostClock) -> u64 {
    1_000_000 + clock.now().0 / 1_000_000
}

impl Handler for Store {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let now_ms = now_ms(&self.clock);
        self.service
            .handle(call.method(), call.payload(), &mut Sink(reply), now_ms)
            .map_err(|error| HandlerError::new(error.code(), error.to_string()))
    }
}

/// A call in flight.
struct Open {
    key: u32,
    at: usize,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Get,
    Put(u64),
    Delete,
    Cas(u64),
}

/// A client of the store that makes a number of calls, a few at a time.
pub struct StoreClient {
    number: u64,
    random: Stream,
    calls_max: u32,
    window: usize,
    begun: u32,
    ended: u32,
    open: BTreeMap<CallId, Open>,
    /// The last value and version read, by key.
    seen: BTreeMap<u32, (u64, u64)>,
    history: SharedHistory,
}

pub fn value_bytes(value: u64, len: usize) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.extend(super::pattern(value, len));
    bytes
}

pub fn value_of(bytes: &[u8]) -> u64 {
    let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes[8..] == super::pattern(value, bytes.len() - 8), "a value was garbled");
    value
}

impl StoreClient {
    pub fn new(number: u32, random: Stream, calls_max: u32, history: SharedHistory) -> Self {
        Self {
            number: number.into(),
            random,
            calls_max,
            window: 3,
            begun: 0,
            ended: 0,
            open: BTreeMap::new(),
            seen: BTreeMap::new(),
            history,
        }
    }

    fn choose(&mut self) -> (u32, RegisterOp, Kind) {
        let key = self.random.below(KEYS.into()) as u32;
        // Every value is written once.
        let value = (self.number << 32) | (u64::from(self.begun) + 1);
        match (self.random.below(10), self.seen.get(&key).copied()) {
            (0..=3, _) => (key, RegisterOp::Read { found: None }, Kind::Get),
            (4..=6, _) => (key, RegisterOp::Write { value }, Kind::Put(value)),
            (7, _) => (key, RegisterOp::Delete { found: None }, Kind::Delete),
            (_, Some((expected, _))) => {
                (key, RegisterOp::CompareAndSwap { expected, value, stored: None }, Kind::Cas(value))
            }
            (_, None) => (key, RegisterOp::Read { found: None }, Kind::Get),
        }
    }

    fn encode(&mut self, key_number: u32, kind: Kind) -> (u16, Vec<u8>) {
        let key = key(key_number);
        let len = [0, 24, 200, 3_000, 7_000][self.random.below(5) as usize];
        let (value, mut out) = (
            match kind {
                Kind::Put(value) | Kind::Cas(value) => value_bytes(value, len),
                Kind::Get | Kind::Delete => Vec::new(),
            },
            Vec::new(),
        );
        let request = match kind {
            Kind::Get => Request::Get { key: &key },
            Kind::Put(_) => {
                Request::Put { key: &key, value: &value, flags: 0, ttl_ms: 0, mode: PutMode::Set }
            }
            Kind::Delete => Request::Delete { key: &key, cas: 0 },
            Kind::Cas(_) => {
                let cas = self.seen[&key_number].1;
                Request::Cas { key: &key, value: &value, flags: 0, ttl_ms: 0, cas }
            }
        };
        request.encode(&mut out);
        (request.method().id(), out)
    }

    /// Returns the history's entry for a completed call.
    fn learn(&mut self, key: u32, kind: Kind, reply: &[u8], op: RegisterOp) -> RegisterOp {
        match (kind, op) {
            (Kind::Get, _) => {
                let found = decode_item(reply).expect("a GET's reply").map(|item| {
                    let value = value_of(item.value);
                    self.seen.insert(key, (value, item.cas));
                    value
                });
                RegisterOp::Read { found }
            }
            (Kind::Put(value), op) => {
                let (status, cas) = decode_version(reply).expect("a PUT's reply");
                assert_eq!(status, Status::Ok);
                self.seen.insert(key, (value, cas));
                op
            }
            (Kind::Delete, _) => {
                let (status, _) = decode_version(reply).expect("a DELETE's reply");
                assert!(matches!(status, Status::Ok | Status::NotFound), "{status:?}");
                RegisterOp::Delete { found: Some(status == Status::Ok) }
            }
            (Kind::Cas(value), RegisterOp::CompareAndSwap { expected, .. }) => {
                let (status, cas) = decode_version(reply).expect("a CAS' reply");
                assert!(matches!(status, Status::Ok | Status::Exists | Status::NotFound), "{status:?}");
                if status == Status::Ok {
                    self.seen.insert(key, (value, cas));
                }
                RegisterOp::CompareAndSwap { expected, value, stored: Some(status == Status::Ok) }
            }
            (Kind::Cas(_), other) => unreachable!("{other:?}"),
        }
    }
}

impl Workload for StoreClient {
    fn begin(&mut self, caller: &mut dyn AnyCaller, now: Nanos) -> Option<Nanos> {
        while self.begun < self.calls_max && self.open.len() < self.window && caller.available() > 0 {
            let (key, op, kind) = self.choose();
            let (method, payload) = self.encode(key, kind);
            let patience = Duration::from_micros(self.random.between(20, 500_000));
            let deadline = self.random.chance_ppm(50_000).then(|| now + patience);
            let context = CallContext { deadline, ..CallContext::default() };
            let id = caller.submit(method, &payload, context, now).expect("a call that fits");
            let at = self.history.borrow_mut().called(key, op, now);
            self.open.insert(id, Open { key, at, kind });
            self.begun += 1;
        }
        None
    }

    fn ended(&mut self, completion: Completion<'_>, now: Nanos) {
        let Open { key, at, kind } = self.open.remove(&completion.call).expect("a call ended twice");
        self.ended += 1;
        let history = self.history.clone();
        let mut history = history.borrow_mut();
        let operation = history.operation(key, at);
        match completion.result {
            Ok(reply) => {
                operation.op = self.learn(key, kind, reply, operation.op);
                operation.returned_ns = Some(now.0);
            }
            Err(error) => match error.executed() {
                // The operation may take effect at any time after its call, or never.
                Executed::Unknown if !matches!(kind, Kind::Get) => {}
                // The operation had no effect, like a read without a result.
                Executed::Unknown | Executed::No => {
                    operation.op = RegisterOp::Nothing;
                }
                Executed::Yes => panic!("the store answered with an error: {error}"),
            },
        }
    }

    fn is_done(&self) -> bool {
        self.ended == self.calls_max
    }
}
