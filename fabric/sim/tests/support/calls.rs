//! A service that counts executions, clients that record their calls, and the check that both agree: no call is
//! executed twice, every call completes, every result belongs to its call.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use farcall_rpc::{
    AnyCaller, Call, CallContext, CallError, CallId, Completion, Deferred, Executed, Handler, HandlerError,
    Reply,
};
use farcall_sim::{Host, Stream};
use farcall_verbs::Nanos;

use super::rpc::Workload;

/// Number of executions by the server, by (client, number).
pub type Executions = Rc<RefCell<BTreeMap<(u32, u32), u32>>>;

/// Returns results that are derived from the request.
pub struct Echo {
    pub host: Host,
    pub executions: Executions,
    pub later: Later,
}

/// Deferred calls.
type Waiting = RefCell<VecDeque<(Deferred, Vec<u8>)>>;

/// Calls that are completed later, with their results. Their number determines which calls are deferred.
#[derive(Clone, Default)]
pub struct Later(pub Option<Rc<Waiting>>);

impl Later {
    /// One call in three.
    fn takes(&self, number: u32) -> Option<&Waiting> {
        self.0.as_deref().filter(|_| number.is_multiple_of(3))
    }

    /// Completes a deferred call, or drops its token.
    pub fn settle(&self, random: &mut Stream) {
        let Some(later) = &self.0 else { return };
        let count = later.borrow().len() as u64;
        if count == 0 {
            return;
        }
        let taken = later.borrow_mut().remove(random.below(count) as usize);
        let (token, answer) = taken.expect("one of them");
        if random.chance_ppm(950_000) {
            token.answer(&answer);
        }
    }
}

/// Request: client, number, length of the result, time to compute in nanoseconds, filling.
pub fn request(client: u32, number: u32, answer_bytes: u32, compute_ns: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        [client, number, answer_bytes, compute_ns].into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.extend(super::pattern(u64::from(number), len));
    bytes
}

pub fn answer(client: u32, number: u32, answer_bytes: u32) -> Vec<u8> {
    super::pattern(u64::from(client) << 32 | u64::from(number), answer_bytes as usize)
}

impl Handler for Echo {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let word = |at: usize| u32::from_le_bytes(call.payload()[4 * at..4 * at + 4].try_into().unwrap());
        let (client, number, answer_bytes, compute_ns) = (word(0), word(1), word(2), word(3));
        let filling = &call.payload()[16..];
        assert_eq!(filling, super::pattern(number.into(), filling.len()), "a request was garbled");
        *self.executions.borrow_mut().entry((client, number)).or_default() += 1;
        self.host.compute(Duration::from_nanos(compute_ns.into()));
        let answer = answer(client, number, answer_bytes);
        match self.later.takes(number) {
            Some(later) => later.borrow_mut().push_back((reply.defer()?, answer)),
            None => reply.extend_from_slice(&answer),
        }
        Ok(())
    }
}

/// A client that makes a number of calls and records how each completed.
pub struct Calls {
    client: u32,
    random: Stream,
    calls_max: u32,
    begun: u32,
    open: BTreeMap<CallId, (u32, u32)>,
    next_at: Nanos,
    pub ended: BTreeMap<u32, Executed>,
    pub well: u32,
}

impl Calls {
    pub fn new(client: u32, random: Stream, calls_max: u32) -> Self {
        Self {
            client,
            random,
            calls_max,
            begun: 0,
            open: BTreeMap::new(),
            next_at: Nanos(0),
            ended: BTreeMap::new(),
            well: 0,
        }
    }
}

impl Workload for Calls {
    fn begin(&mut self, caller: &mut dyn AnyCaller, now: Nanos) -> Option<Nanos> {
        while self.begun < self.calls_max && caller.available() > 0 {
            if now < self.next_at {
                return Some(self.next_at);
            }
            let random = &mut self.random;
            let answer_bytes = [0, 8, 40, 300, 2_000, 9_000, 30_000][random.below(7) as usize];
            let len = [0, 20, 200, 3_000, 12_000][random.below(5) as usize];
            let compute_ns = if random.chance_ppm(100_000) { 20_000 } else { 100 };
            let number = self.begun;
            let payload = request(self.client, number, answer_bytes, compute_ns, len);
            let patience = Duration::from_micros(random.between(50, 3_000_000));
            let deadline = random.chance_ppm(50_000).then(|| now + patience);
            let context = CallContext { deadline, ..CallContext::default() };
            let method = 1 + random.below(2) as u16;
            match caller.submit(method, &payload, context, now) {
                Ok(id) => {
                    self.open.insert(id, (number, answer_bytes));
                    self.begun += 1;
                }
                // A batch has space, but this call is too long for it.
                Err(CallError::WindowFull { .. }) => return None,
                Err(error) => panic!("call {number} was refused: {error}"),
            }
            if self.random.chance_ppm(300_000) {
                self.next_at = now + Duration::from_nanos(self.random.between(100, 200_000));
            }
        }
        None
    }

    fn ended(&mut self, completion: Completion<'_>, _now: Nanos) {
        let (number, answer_bytes) = self.open.remove(&completion.call).expect("a call ended twice");
        let executed = match completion.result {
            Ok(result) => {
                assert!(result == answer(self.client, number, answer_bytes), "call {number}: a wrong result");
                self.well += 1;
                Executed::Yes
            }
            Err(error) => {
                assert!(!matches!(error, CallError::Application { .. }), "{error}");
                error.executed()
            }
        };
        self.ended.insert(number, executed);
    }

    fn is_done(&self) -> bool {
        self.ended.len() as u32 == self.calls_max
    }
}

/// Compares a client's records with the server's.
pub fn check_calls(calls: &Calls, executions: &Executions) {
    let executions = executions.borrow();
    for (number, ended) in &calls.ended {
        let times = executions.get(&(calls.client, *number)).copied().unwrap_or(0);
        let client = calls.client;
        match ended {
            Executed::Yes => assert_eq!(times, 1, "client {client}, call {number} ended well"),
            Executed::No => assert_eq!(times, 0, "client {client}, call {number} says it was not executed"),
            Executed::Unknown => assert!(times <= 1, "client {client}, call {number}: {times} times"),
        }
    }
}
