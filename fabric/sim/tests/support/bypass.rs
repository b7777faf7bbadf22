//! A client of a store that is READ; it records its operations.

use std::collections::BTreeMap;
use std::time::Duration;

use farcall_kv::bypass::{Answer, BypassError, Calls, CompletedRequest, OperationId, Operations, Scheme};
use farcall_link::Nic;
use farcall_rpc::{AnyCaller, CallContext, CallError, CallId, Completion, Executed};
use farcall_sim::Stream;
use farcall_sim::check::RegisterOp;
use farcall_verbs::Nanos;

use super::rpc::Workload;
use super::store::{KEYS_MAX, SharedHistory, key, value_bytes, value_of};

const WINDOW: usize = 4;
/// Interval between two polls for completed READs.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// A client that makes a number of requests, a few at a time.
pub struct ReadingClient<S> {
    operations: Operations<S>,
    number: u64,
    random: Stream,
    requests_max: u32,
    begun: u32,
    ended: u32,
    /// Keys and positions in the history.
    open: BTreeMap<OperationId, (u32, usize)>,
    history: SharedHistory,
}

/// The caller at a time.
struct At<'a>(&'a mut dyn AnyCaller, Nanos);

impl Calls for At<'_> {
    fn submit(&mut self, method: u16, request: &[u8]) -> Result<CallId, CallError> {
        self.0.submit(method, request, CallContext::default(), self.1)
    }

    fn incarnation(&self) -> u64 {
        self.0.last_welcome().map_or(0, |welcome| welcome.incarnation)
    }
}

impl<S: Scheme> ReadingClient<S> {
    pub fn new(nic: Nic, number: u32, random: Stream, requests_max: u32, history: SharedHistory) -> Self {
        Self {
            operations: Operations::new(nic, WINDOW),
            number: number.into(),
            random,
            requests_max,
            begun: 0,
            ended: 0,
            open: BTreeMap::new(),
            history,
        }
    }

    fn begin_one(&mut self, calls: &mut impl Calls, now: Nanos) {
        // Most requests use a few keys; the others fill the index.
        let keys = if self.random.chance_ppm(600_000) { 3 } else { KEYS_MAX };
        let number = self.random.below(keys.into()) as u32;
        // Every value is written once.
        let value = (self.number << 32) | (u64::from(self.begun) + 1);
        let len = [0, 24, 200, 3_000, 7_000][self.random.below(5) as usize];
        let key = key(number);
        let (operation, op) = match self.random.below(10) {
            0..=4 => (self.operations.get(&key, calls), RegisterOp::Read { found: None }),
            5..=7 => {
                let bytes = value_bytes(value, len);
                (self.operations.put(&key, &bytes, calls), RegisterOp::Write { value })
            }
            _ => (self.operations.delete(&key, calls), RegisterOp::Delete { found: None }),
        };
        let at = self.history.borrow_mut().called(number, op, now);
        self.open.insert(operation.expect("a request that fits"), (number, at));
        self.begun += 1;
    }

    fn take_ended(&mut self, now: Nanos) {
        while let Some(CompletedRequest { operation, result }) = self.operations.next_completed() {
            let (key, at) = self.open.remove(&operation).expect("a request ended twice");
            self.ended += 1;
            let mut history = self.history.borrow_mut();
            let operation = history.operation(key, at);
            operation.returned_ns = Some(now.0);
            operation.op = match (operation.op, result) {
                (RegisterOp::Read { .. }, Ok(Answer::Value(bytes))) => {
                    RegisterOp::Read { found: Some(value_of(bytes)) }
                }
                (RegisterOp::Delete { .. }, Ok(answer)) => {
                    RegisterOp::Delete { found: Some(answer == Answer::Deleted) }
                }
                (op, Ok(Answer::Missing | Answer::Stored)) => op,
                (op, Ok(answer)) => panic!("{answer:?} to {op:?}"),
                // The operation may take effect at any time after its call, or never.
                (
                    op @ (RegisterOp::Write { .. } | RegisterOp::Delete { .. }),
                    Err(BypassError::Call(error)),
                ) if error.executed() == Executed::Unknown => {
                    operation.returned_ns = None;
                    op
                }
                // A refusal has no effect, like a read without a result.
                (_, Err(_)) => RegisterOp::Nothing,
            };
        }
    }
}

impl<S: Scheme> Workload for ReadingClient<S> {
    fn begin(&mut self, caller: &mut dyn AnyCaller, now: Nanos) -> Option<Nanos> {
        let mut calls = At(caller, now);
        self.operations.progress(&mut calls);
        self.take_ended(now);
        while self.begun < self.requests_max && self.open.len() < WINDOW && self.operations.available() > 0 {
            self.begin_one(&mut calls, now);
            self.take_ended(now);
        }
        self.operations.has_open().then(|| now + LOOK_EVERY)
    }

    fn ended(&mut self, completion: Completion<'_>, now: Nanos) {
        assert!(self.operations.called(completion.call, completion.result), "nobody's call ended");
        self.take_ended(now);
    }

    fn is_done(&self) -> bool {
        self.ended == self.requests_max
    }
}
