//! The requests of a client in progress: GETs as concurrent lookups, PUTs and DELETEs as calls. Has no thread, clock
//! or socket: the caller passes in the results of calls and polls.

use std::collections::{HashMap, VecDeque};

use farcall_link::Nic;
use farcall_rpc::{CallError, CallId, Executed};
use farcall_verbs::with_sources;

use super::extents::encode_pair;
use super::lookup::LookupStep;
use super::reads::{AT_ONCE, ReadPathLost, Reader, UnconnectedReader};
use super::service::{Opened, method};
use super::{BypassError, ReadCounters, Scheme};
use crate::key;

/// Maximum number of lookups of one GET before it is made as a call. A disturbance lasts as long as a PUT, so two in a
/// row are rare.
const LOOKUPS_MAX: u32 = 16;
/// Maximum number of consecutive queue pairs that fail without a successful READ, before GETs fail.
const FAILURES_MAX: u32 = 2;

/// Makes calls to the server.
pub trait Calls {
    /// Starts a call; its result is passed to [`Operations::called`].
    ///
    /// # Errors
    /// Returns the errors of [`farcall_rpc::Client::submit`].
    fn submit(&mut self, method: u16, request: &[u8]) -> Result<CallId, CallError>;

    /// Returns the incarnation of the server that the last call used; each start of the server has another number.
    fn incarnation(&self) -> u64;
}

/// Identifies a request in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId {
    number: u64,
    slot: u32,
}

impl OperationId {
    /// Returns its slot in the window, which no other request in progress has.
    #[must_use]
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Result of a GET: the value.
    Value(&'a [u8]),
    /// Result of a GET or a DELETE: the key is not in the store.
    Missing,
    /// Result of a PUT: the value was stored.
    Stored,
    /// Result of a DELETE: the key was removed.
    Deleted,
}

/// A completed request.
#[derive(Debug)]
pub struct CompletedRequest<'a> {
    /// Identifier of the request.
    pub operation: OperationId,
    /// Its result, borrowed until the next call that returns a request, or the error.
    pub result: Result<Answer<'a>, BypassError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Get,
    Put,
    Delete,
}

/// A slot of the window.
struct Operation {
    id: OperationId,
    kind: Kind,
    key: Vec<u8>,
    /// The value, and whether there is one.
    value: Vec<u8>,
    is_there: bool,
    /// `true` if a READ for it is posted.
    is_reading: bool,
    lookups: u32,
    error: Option<BypassError>,
}

/// State of the connection for READs.
enum ReadPath<S> {
    None,
    /// A queue pair was requested from the server.
    Opening(CallId, Box<UnconnectedReader>),
    Open(Box<Reader<S>>),
}

/// The requests of a client.
pub struct Operations<S> {
    nic: Nic,
    read_path: ReadPath<S>,
    /// Incarnation of the server that granted the connection. Values stored by another incarnation are not read over
    /// it.
    incarnation: u64,
    /// Number of connections lost since the last successful READ.
    failures: u32,
    operations: Vec<Operation>,
    begun: u64,
    free: Vec<usize>,
    /// GETs that were started but have neither READ nor call yet.
    to_look_up: VecDeque<usize>,
    to_call: VecDeque<usize>,
    /// Number of operations for which READs are posted.
    reading: usize,
    calling: HashMap<CallId, usize>,
    ended: VecDeque<usize>,
    lent: Option<usize>,
    request: Vec<u8>,
    counters: ReadCounters,
}

impl<S: Scheme> Operations<S> {
    /// Creates the state for up to `window` requests.
    #[must_use]
    pub fn new(nic: Nic, window: usize) -> Self {
        let operation = |slot| Operation {
            id: OperationId { number: 0, slot },
            kind: Kind::Get,
            key: Vec::new(),
            value: Vec::new(),
            is_there: false,
            is_reading: false,
            lookups: 0,
            error: None,
        };
        Self {
            nic,
            read_path: ReadPath::None,
            incarnation: 0,
            failures: 0,
            operations: (0..window as u32).map(operation).collect(),
            begun: 0,
            free: (0..window).rev().collect(),
            to_look_up: VecDeque::with_capacity(window),
            to_call: VecDeque::with_capacity(window),
            reading: 0,
            calling: HashMap::with_capacity(2 * window),
            ended: VecDeque::with_capacity(window),
            lent: None,
            request: Vec::new(),
            counters: ReadCounters::default(),
        }
    }

    /// Returns the counters of GETs so far.
    #[must_use]
    pub fn counters(&self) -> ReadCounters {
        self.counters
    }

    /// Returns the number of requests that can be started now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len() + usize::from(self.lent.is_some())
    }

    /// Returns whether a request is in progress, or has completed but was not retrieved.
    #[must_use]
    pub fn has_open(&self) -> bool {
        self.available() < self.operations.len()
    }

    /// Returns whether [`Self::next_completed`] would return a request.
    #[must_use]
    pub fn has_completed(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Returns whether READs are posted.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        self.reading > 0
    }

    /// Starts a GET.
    ///
    /// # Errors
    /// If the key is invalid, or the window is full.
    pub fn get(&mut self, key: &[u8], calls: &mut impl Calls) -> Result<OperationId, BypassError> {
        let at = self.begin(Kind::Get, key)?;
        self.counters.gets += 1;
        self.to_look_up.push_back(at);
        self.start_lookups(calls);
        Ok(self.operations[at].id)
    }

    /// Starts a PUT.
    ///
    /// # Errors
    /// Like [`Self::get`].
    pub fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        calls: &mut impl Calls,
    ) -> Result<OperationId, BypassError> {
        let at = self.begin(Kind::Put, key)?;
        self.operations[at].value.extend_from_slice(value);
        self.to_call.push_back(at);
        self.call_all(calls);
        Ok(self.operations[at].id)
    }

    /// Starts a DELETE.
    ///
    /// # Errors
    /// Like [`Self::get`].
    pub fn delete(&mut self, key: &[u8], calls: &mut impl Calls) -> Result<OperationId, BypassError> {
        let at = self.begin(Kind::Delete, key)?;
        self.to_call.push_back(at);
        self.call_all(calls);
        Ok(self.operations[at].id)
    }

    fn begin(&mut self, kind: Kind, key: &[u8]) -> Result<usize, BypassError> {
        key::check(key)?;
        self.release_lent();
        let at = self.free.pop().ok_or(BypassError::WindowFull { window: self.operations.len() })?;
        self.begun += 1;
        let operation = &mut self.operations[at];
        (operation.id.number, operation.kind) = (self.begun, kind);
        operation.key.clear();
        operation.key.extend_from_slice(key);
        operation.value.clear();
        (operation.is_there, operation.lookups, operation.error) = (false, 0, None);
        Ok(at)
    }

    /// Makes progress without waiting: processes completed READs, posts others, makes calls.
    #[inline]
    pub fn progress(&mut self, calls: &mut impl Calls) {
        if self.reading > 0 {
            self.poll();
        }
        if !self.to_look_up.is_empty() {
            self.start_lookups(calls);
        }
        if !self.to_call.is_empty() {
            self.call_all(calls);
        }
    }

    /// Returns the next completed request.
    pub fn next_completed(&mut self) -> Option<CompletedRequest<'_>> {
        self.release_lent();
        let at = self.ended.pop_front()?;
        Some(self.lend(at))
    }

    /// Returns the result of the request `id` if it has completed.
    pub fn ended(&mut self, id: OperationId) -> Option<CompletedRequest<'_>> {
        self.release_lent();
        let position = self.ended.iter().position(|at| *at == id.slot() && self.operations[*at].id == id)?;
        let at = self.ended.remove(position)?;
        Some(self.lend(at))
    }

    fn lend(&mut self, at: usize) -> CompletedRequest<'_> {
        self.lent = Some(at);
        let operation = &mut self.operations[at];
        let result = match (operation.error.take(), operation.kind, operation.is_there) {
            (Some(error), ..) => Err(error),
            (None, Kind::Put, _) => Ok(Answer::Stored),
            (None, Kind::Get, true) => Ok(Answer::Value(&operation.value)),
            (None, Kind::Delete, true) => Ok(Answer::Deleted),
            (None, _, false) => Ok(Answer::Missing),
        };
        CompletedRequest { operation: operation.id, result }
    }

    /// Frees the slot whose value was lent to the caller.
    fn release_lent(&mut self) {
        self.free.extend(self.lent.take());
    }

    fn end(&mut self, at: usize, result: Result<bool, BypassError>) {
        let operation = &mut self.operations[at];
        match result {
            Ok(is_there) => operation.is_there = is_there,
            Err(error) => operation.error = Some(error),
        }
        self.ended.push_back(at);
    }

    /// Records the result of a call. Returns whether the call belongs to this client.
    pub fn called(&mut self, call: CallId, result: Result<&[u8], CallError>) -> bool {
        if matches!(&self.read_path, ReadPath::Opening(opening, _) if *opening == call) {
            self.opened(result);
            return true;
        }
        let Some(at) = self.calling.remove(&call) else { return false };
        let result = result.map(|reply| {
            let operation = &mut self.operations[at];
            operation.value.clear();
            operation.value.extend_from_slice(reply.get(1..).unwrap_or_default());
            !reply.is_empty()
        });
        self.end(at, result.map_err(BypassError::Call));
        true
    }

    fn call_all(&mut self, calls: &mut impl Calls) {
        while let Some(at) = self.to_call.pop_front() {
            let Operation { kind, key, value, .. } = &self.operations[at];
            let (method, value) = match kind {
                Kind::Get => (method::GET, &[][..]),
                Kind::Put => (method::PUT, &value[..]),
                Kind::Delete => (method::DELETE, &[][..]),
            };
            encode_pair(key, value, &mut self.request);
            match calls.submit(method, &self.request) {
                Ok(call) => drop(self.calling.insert(call, at)),
                Err(CallError::WindowFull { .. }) => {
                    self.to_call.push_front(at);
                    return;
                }
                Err(error) => self.end(at, Err(error.into())),
            }
        }
    }

    /// Starts lookups, opening a connection first if there is none.
    fn start_lookups(&mut self, calls: &mut impl Calls) {
        if matches!(self.read_path, ReadPath::Open(_)) && self.incarnation != calls.incarnation() {
            self.restart_lookups();
        }
        if matches!(self.read_path, ReadPath::None) && !self.to_look_up.is_empty() {
            self.open(calls);
        }
        while let ReadPath::Open(reader) = &mut self.read_path
            && let Some(at) = self.to_look_up.pop_front()
        {
            let operation = &mut self.operations[at];
            operation.is_reading = true;
            self.reading += 1;
            if let Err(lost) = reader.begin(at, &operation.key, &mut self.counters) {
                self.on_path_lost(lost, true);
            }
        }
    }

    fn poll(&mut self) {
        let ReadPath::Open(reader) = &mut self.read_path else { return };
        let mut ended = [0; AT_ONCE];
        let count = match reader.poll(&mut ended) {
            Ok(count) => count,
            Err(lost) => return self.on_path_lost(lost, true),
        };
        for at in ended.into_iter().take(count) {
            if let Err(lost) = self.continue_lookup(at) {
                return self.on_path_lost(lost, true);
            }
        }
    }

    /// Continues an operation after a READ of its lookup has completed.
    fn continue_lookup(&mut self, at: usize) -> Result<(), ReadPathLost> {
        let ReadPath::Open(reader) = &mut self.read_path else { return Ok(()) };
        let Some(Operation { key, value, is_reading, lookups, .. }) = self.operations.get_mut(at) else {
            return Err(ReadPathLost("a READ completed that was not posted".into()));
        };
        let step = reader.step(at, key, value, &mut self.counters)?;
        self.failures = 0;
        *lookups += u32::from(matches!(step, LookupStep::Torn | LookupStep::Moved(_)));
        match step {
            LookupStep::Read(_) => return Ok(()),
            LookupStep::Torn | LookupStep::Moved(_) if *lookups < LOOKUPS_MAX => {
                return reader.begin(at, key, &mut self.counters);
            }
            _ => (*is_reading, self.reading) = (false, self.reading - 1),
        }
        if matches!(step, LookupStep::Torn | LookupStep::Moved(_)) {
            self.counters.gets_by_call += 1;
            self.to_call.push_back(at);
        } else {
            self.end(at, Ok(step == LookupStep::Found));
        }
        Ok(())
    }

    /// Creates a queue pair and the request for its peer ([`method::OPEN`]).
    pub(super) fn request_reader(
        &mut self,
        calls: &impl Calls,
    ) -> Result<(UnconnectedReader, Vec<u8>), BypassError> {
        self.incarnation = calls.incarnation();
        let pair = UnconnectedReader::new(&self.nic, self.operations.len())?;
        let request = postcard::to_allocvec(&pair.info());
        Ok((pair, request.map_err(|_| no_store::<S>("a queue pair cannot be notified"))?))
    }

    /// Connects the queue pair as the server's reply states; READs use it from now on.
    pub(super) fn connect_reader(
        &mut self,
        pair: UnconnectedReader,
        reply: &[u8],
    ) -> Result<(), BypassError> {
        let opened: Opened =
            postcard::from_bytes(reply).map_err(|_| no_store::<S>("what it grants is no grant"))?;
        let reader = pair.connect(opened)?.map_err(no_store::<S>)?;
        self.read_path = ReadPath::Open(Box::new(reader));
        Ok(())
    }

    fn open(&mut self, calls: &mut impl Calls) {
        let (pair, request) = match self.request_reader(calls) {
            Ok(asked) => asked,
            Err(error) => return self.fail(&with_sources(&error)),
        };
        match calls.submit(method::OPEN, &request) {
            Ok(call) => self.read_path = ReadPath::Opening(call, Box::new(pair)),
            // The call is made later, when others have completed.
            Err(CallError::WindowFull { .. }) => {}
            Err(error) => self.fail(&error.to_string()),
        }
    }

    fn opened(&mut self, result: Result<&[u8], CallError>) {
        let ReadPath::Opening(_, pair) = std::mem::replace(&mut self.read_path, ReadPath::None) else {
            return;
        };
        match result {
            Ok(reply) => {
                if let Err(error) = self.connect_reader(*pair, reply) {
                    self.on_path_lost(
                        ReadPathLost(with_sources(&error)),
                        !matches!(error, BypassError::NoStore { .. }),
                    );
                }
            }
            // If it is unknown whether the call was executed, the server may have replaced an older queue pair.
            // Another one can be requested even so.
            Err(error) => {
                self.on_path_lost(ReadPathLost(error.to_string()), error.executed() == Executed::Unknown)
            }
        }
    }

    /// Handles the loss of the connection for READs: opens another one, or fails the GETs.
    #[cold]
    fn on_path_lost(&mut self, ReadPathLost(why): ReadPathLost, may_try_again: bool) {
        self.failures += 1;
        self.restart_lookups();
        if !may_try_again || self.failures > FAILURES_MAX {
            self.failures = 0;
            self.fail(&why);
        }
    }

    /// Restarts all lookups, which will use another connection.
    fn restart_lookups(&mut self) {
        self.read_path = ReadPath::None;
        for (at, operation) in self.operations.iter_mut().enumerate() {
            if std::mem::take(&mut operation.is_reading) {
                operation.value.clear();
                self.to_look_up.push_back(at);
            }
        }
        self.reading = 0;
    }

    /// Fails all GETs that wait for a connection.
    fn fail(&mut self, why: &str) {
        while let Some(at) = self.to_look_up.pop_front() {
            self.end(at, Err(BypassError::Unreadable(why.to_owned())));
        }
    }
}

fn no_store<S: Scheme>(why: &'static str) -> BypassError {
    BypassError::NoStore { store: S::NAME, why }
}
