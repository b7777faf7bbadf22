//! The calls of a client: a slab of records, which are reused without allocation.

use std::collections::VecDeque;

use farcall_verbs::Nanos;

use crate::error::CallError;
use crate::wire::RequestFlags;

/// A call of one client; unique in its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// Deadline and trace of a call, for endpoints, which have no clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallContext {
    /// When the call expires, by the clock of the client's driver.
    pub deadline: Option<Nanos>,
    /// The trace that the call belongs to; 0: none.
    pub trace_id: u64,
}

/// State of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Free,
    /// There is no outcome yet.
    Pending,
    /// The outcome has not been returned yet.
    Done,
    /// The outcome has been returned, or the call was cancelled. Becomes free when no message of the call is in
    /// flight.
    Ended,
}

#[derive(Default)]
pub(crate) struct Record {
    pub state: State,
    pub id: CallId,
    pub method: u16,
    pub context: CallContext,
    /// The payload, if it could not be sent at once.
    pub request: Vec<u8>,
    /// Bytes of the payload that have been sent.
    pub sent_bytes: usize,
    /// Flags of its requests, if it is a batch.
    pub flags: RequestFlags,
    /// `true` if the payload may still grow, so that it is not sent yet.
    pub is_open: bool,
    /// `true` if the message has been sent that makes the server execute the call.
    pub may_be_executed: bool,
    /// `true` if the server deferred the call, so that the answer is to be collected.
    pub is_deferred: bool,
    /// Number of messages in flight.
    pub in_flight: u32,
    /// The bytes of the result received so far.
    pub reply: Vec<u8>,
    /// Length of the complete result, once known.
    pub total_bytes: usize,
    /// Bytes of the result that have been requested.
    pub requested_bytes: usize,
    pub error: Option<CallError>,
}

impl Record {
    /// Returns whether the record is a batch of calls.
    #[inline]
    pub fn is_batch(&self) -> bool {
        self.flags.contains(RequestFlags::BATCH)
    }
}

/// Maximum memory in bytes that an idle record retains for the next call.
const KEEP_BYTES: usize = 64 << 10;

pub(crate) struct Calls {
    pub records: Vec<Record>,
    free: Vec<u16>,
    done: VecDeque<u16>,
    lent: Option<u16>,
    next_id: u64,
    /// Lower bound of all deadlines.
    pub earliest_deadline: Option<Nanos>,
    /// Number of calls whose answers are to be collected.
    pub deferred: usize,
}

impl Calls {
    pub fn new(count: u16) -> Self {
        Self {
            records: (0..count).map(|_| Record::default()).collect(),
            free: (0..count).rev().collect(),
            done: VecDeque::with_capacity(usize::from(count)),
            lent: None,
            next_id: 0,
            earliest_deadline: None,
            deferred: 0,
        }
    }

    /// Allocates a record.
    #[inline]
    pub fn begin(&mut self, method: u16, context: CallContext) -> Result<u16, CallError> {
        if self.free.is_empty() {
            self.reclaim_lent();
        }
        let Some(at) = self.free.pop() else {
            return Err(CallError::WindowFull { window: self.records.len() });
        };
        let record = &mut self.records[usize::from(at)];
        debug_assert!(record.state == State::Free && record.in_flight == 0);
        record.state = State::Pending;
        self.next_id += 1;
        record.id = CallId(self.next_id);
        record.method = method;
        record.context = context;
        record.sent_bytes = 0;
        record.flags = RequestFlags::empty();
        record.is_open = false;
        record.may_be_executed = false;
        debug_assert!(!record.is_deferred);
        record.request.clear();
        record.reply.clear();
        record.total_bytes = 0;
        record.requested_bytes = 0;
        record.error = None;
        self.earliest_deadline = Nanos::earlier(self.earliest_deadline, context.deadline);
        Ok(at)
    }

    /// Sets the deadline of a call to `deadline` if that is earlier.
    #[inline]
    pub fn shorten_deadline(&mut self, at: u16, deadline: Option<Nanos>) {
        let own = &mut self.records[usize::from(at)].context.deadline;
        *own = Nanos::earlier(*own, deadline);
        self.earliest_deadline = Nanos::earlier(self.earliest_deadline, deadline);
    }

    /// Reserves `count` call ids. Returns the first of them.
    pub fn reserve_ids(&mut self, count: u16) -> CallId {
        let first = CallId(self.next_id + 1);
        self.next_id += u64::from(count);
        first
    }

    #[inline]
    pub fn get(&mut self, at: u16) -> &mut Record {
        &mut self.records[usize::from(at)]
    }

    /// Returns the record of a call whose outcome has not been returned yet.
    pub fn find(&self, id: CallId) -> Option<u16> {
        let is_open = |r: &Record| matches!(r.state, State::Pending | State::Done) && r.id == id;
        let at = self.records.iter().position(is_open).filter(|at| self.lent != Some(*at as u16))?;
        u16::try_from(at).ok()
    }

    /// Completes a pending call; its outcome waits to be returned.
    #[inline]
    pub fn finish(&mut self, at: u16, error: Option<CallError>) {
        let record = self.get(at);
        if record.state == State::Pending {
            record.state = State::Done;
            record.error = error;
            self.done.push_back(at);
            self.unmark_deferred(at);
        }
    }

    /// Marks a call as deferred by the server.
    #[cold]
    pub fn defer(&mut self, at: u16) {
        let record = self.get(at);
        if !std::mem::replace(&mut record.is_deferred, true) {
            record.reply.clear();
            self.deferred += 1;
        }
    }

    /// Unmarks a deferred call whose answer has arrived, or that was cancelled.
    #[inline]
    pub fn unmark_deferred(&mut self, at: u16) {
        if std::mem::take(&mut self.get(at).is_deferred) {
            self.deferred -= 1;
        }
    }

    /// Returns the record of a pending deferred call.
    pub fn find_deferred(&self, call_id: u64) -> Option<u16> {
        let is_it = |r: &Record| r.is_deferred && r.state == State::Pending && r.id.0 == call_id;
        self.records.iter().position(is_it).and_then(|at| u16::try_from(at).ok())
    }

    /// Ends a cancelled call.
    pub fn forget(&mut self, at: u16) {
        self.done.retain(|done| *done != at);
        self.unmark_deferred(at);
        self.get(at).state = State::Ended;
        self.release_if_ended(at);
    }

    /// Records that a message of the call is no longer in flight.
    #[inline]
    pub fn on_message_end(&mut self, at: u16) {
        let record = self.get(at);
        record.in_flight -= 1;
        if record.state == State::Ended {
            self.release_if_ended(at);
        }
    }

    fn release_if_ended(&mut self, at: u16) {
        let record = self.get(at);
        if record.in_flight > 0 {
            return;
        }
        record.state = State::Free;
        for buffer in [&mut record.request, &mut record.reply] {
            if buffer.capacity() > KEEP_BYTES {
                *buffer = Vec::new();
            }
        }
        self.free.push(at);
    }

    #[inline]
    fn reclaim_lent(&mut self) {
        if let Some(at) = self.lent.take() {
            self.get(at).state = State::Ended;
            self.release_if_ended(at);
        }
    }

    /// Returns the next completed call. The record remains borrowed until the next one is requested.
    #[inline]
    pub fn next_done(&mut self) -> Option<(u16, &mut Record)> {
        self.reclaim_lent();
        let at = self.done.pop_front()?;
        self.lent = Some(at);
        Some((at, self.get(at)))
    }

    /// Returns whether the next completed call is a batch; `None` if there is none.
    #[inline]
    pub fn next_is_batch(&self) -> Option<bool> {
        self.done.front().map(|at| self.records[usize::from(*at)].is_batch())
    }

    /// Returns whether there are completed calls.
    #[inline]
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns the number of calls without an outcome.
    pub fn pending(&self) -> usize {
        self.records.iter().filter(|r| r.state == State::Pending).count()
    }

    /// Returns the number of records that can be allocated now.
    pub fn available(&self) -> usize {
        self.free.len()
            + usize::from(self.lent.is_some_and(|at| self.records[usize::from(at)].in_flight == 0))
    }
}
