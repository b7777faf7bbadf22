//! Several calls in one message: RF-RPC, section 4.1.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use farcall_link::{BatchConfig, Batching, Nic};
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Next, Result as VerbsResult, WaitSet};

use super::calls::{Record, State};
use super::{CallId, CallOptions, Caller, CallerState, Completion};
use crate::config::CallerConfig;
use crate::error::{Broken, CallError, UnknownBecause};
use crate::paths::Path;
use crate::tune::BatchSize;
use crate::wire::batch::{
    BATCH_HEAD_BYTES, ENTRY_HEAD_BYTES, batch_head, entry_bytes, push_entry, take_result,
};
use crate::wire::{RequestFlags, Status};

/// A [`Caller`] that gathers calls and sends them in batches: when there are as many as its size, as many bytes as its
/// limit, when the first has waited for long enough, or when it is told to. Several batches are under way at once: as
/// many as the window has slots.
///
/// A batch is executed at most once, as a whole: its calls in the order in which they were made, none before all of the
/// batch has come. A call that alone exceeds the limit of bytes, or has a trace, is sent by itself. The calls of a batch
/// share the earliest of their deadlines.
pub struct BatchCaller<P: Path> {
    caller: Caller<P>,
    config: BatchConfig,
    wait: Duration,
    size: BatchSize,
    /// For each record of the caller: the batch that it is.
    batches: Box<[Batch]>,
    /// The record of the batch that takes calls.
    open: Option<u16>,
    /// The batch whose outcomes are being told.
    told: Told,
    /// The time of the last turn.
    now: Nanos,
}

/// The calls of a batch.
#[derive(Default)]
struct Batch {
    /// The number of the first; the others follow.
    first: CallId,
    /// How many it takes.
    size: u16,
    calls: Vec<BatchedCall>,
}

#[derive(Clone, Copy)]
struct BatchedCall {
    submitted: Nanos,
    is_given_up: bool,
}

/// A batch that ended.
#[derive(Default)]
struct Told {
    batch: Batch,
    /// Calls whose outcome was taken.
    count: usize,
    /// The results, and how far they were taken.
    reply: Vec<u8>,
    taken_bytes: usize,
    /// Why there are none.
    error: Option<CallError>,
}

impl<P: Path> Deref for BatchCaller<P> {
    type Target = CallerState;

    #[inline]
    fn deref(&self) -> &CallerState {
        &self.caller
    }
}

impl<P: Path> DerefMut for BatchCaller<P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut CallerState {
        &mut self.caller
    }
}

impl<P: Path> BatchCaller<P> {
    /// As [`Caller::new`], with the plan's batches, or else the usual ones.
    ///
    /// # Errors
    /// As [`Caller::new`].
    pub fn new(nic: Nic, caller: CallerConfig) -> VerbsResult<Self> {
        let config = match caller.plan.batching {
            Batching::Calls(config) => config,
            _ => BatchConfig::default(),
        };
        config.check().map_err(|why| farcall_verbs::Error::invalid("create caller", why))?;
        let caller = Caller::new(nic, caller)?;
        let batches = caller.calls.records.iter().map(|_| Batch::default()).collect();
        let size = BatchSize::new(config.size);
        let wait = Duration::from_micros(config.wait_us.into());
        Ok(Self { caller, config, wait, size, batches, open: None, told: Told::default(), now: Nanos(0) })
    }

    /// Begins a call, as [`Caller::submit`]. It travels with the batch.
    ///
    /// # Errors
    /// If as many batches as the window holds are not over, or the request is longer than the server takes.
    #[inline]
    pub fn submit(
        &mut self,
        method: u16,
        payload: &[u8],
        options: CallOptions,
        now: Nanos,
    ) -> Result<CallId, CallError> {
        if entry_bytes(payload.len()) > self.config.bytes_max as usize || options.trace_id != 0 {
            // Calls are executed in the order in which they were made.
            self.flush(now);
            return self.caller.submit(method, payload, options, now);
        }
        let at = match self.open_batch() {
            Some(at) => at,
            None => self.begin_batch(method)?,
        };
        let calls = &mut self.caller.state.calls;
        calls.shorten_deadline(at, options.deadline);
        let request = &mut calls.get(at).request;
        push_entry(request, method, payload);
        let is_full = request.len() - BATCH_HEAD_BYTES >= self.config.bytes_max as usize;
        self.caller.state.counters.calls.increment();
        let batch = &mut self.batches[usize::from(at)];
        let id = CallId(batch.first.0 + batch.calls.len() as u64);
        batch.calls.push(BatchedCall { submitted: now, is_given_up: false });
        if is_full || batch.calls.len() >= usize::from(batch.size) {
            self.flush(now);
        }
        Ok(id)
    }

    /// The record of the batch that takes calls, unless it ended meanwhile.
    #[inline]
    fn open_batch(&mut self) -> Option<u16> {
        let at = self.open?;
        let record = self.caller.state.calls.get(at);
        if !record.is_open || record.state != State::Pending {
            self.open = None;
        }
        self.open
    }

    fn begin_batch(&mut self, method: u16) -> Result<u16, CallError> {
        let calls = &mut self.caller.state.calls;
        let at = calls.begin(method, CallOptions::default())?;
        let record = calls.get(at);
        (record.flags, record.is_open) = (RequestFlags::BATCH, true);
        // Its place; how many there are is known at the end.
        record.request.extend_from_slice(&batch_head(0));
        let id = record.id;
        let batch = &mut self.batches[usize::from(at)];
        batch.size = self.size.get();
        batch.first = id;
        // The first has the batch's own number.
        calls.reserve_ids(batch.size - 1);
        batch.calls.clear();
        self.open = Some(at);
        Ok(at)
    }

    /// Sends the calls that wait for others.
    pub fn flush(&mut self, now: Nanos) {
        let Some(at) = self.open_batch() else { return };
        self.open = None;
        let Caller { state, path } = &mut self.caller;
        let record = state.calls.get(at);
        let entries = self.batches[usize::from(at)].calls.len() as u16;
        record.request[..BATCH_HEAD_BYTES].copy_from_slice(&batch_head(entries));
        record.is_open = false;
        state.counters.batches.increment();
        state.to_send.push_back(at);
        state.pump::<P::Response, P::Request>(path, now);
    }

    /// The next call that ended.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion<'_>> {
        while !self.told.has_next() {
            if !self.caller.calls.next_is_batch()? {
                return self.caller.next_completion();
            }
            self.begin_to_tell();
        }
        let call = self.told.call();
        let batch = &self.told.batch;
        self.size.sample(self.now.since(call.submitted), batch.size, batch.is_full());
        Some(self.told.next())
    }

    /// Takes over the batch that ended first.
    fn begin_to_tell(&mut self) {
        let Some((at, record)) = self.caller.state.calls.next_done() else { return };
        let told = &mut self.told;
        std::mem::swap(&mut told.batch, &mut self.batches[usize::from(at)]);
        std::mem::swap(&mut told.reply, &mut record.reply);
        (told.count, told.taken_bytes, told.error) = (0, 0, record.error.take());
        if told.error.is_none() && !told.is_whole() {
            let why = Broken::Protocol(format!("batch {}: results that are none", record.id.0));
            told.error = Some(CallError::OutcomeUnknown(UnknownBecause::Disconnected(why.clone())));
            self.caller.break_off(why);
        }
        self.told.skip_given_up();
    }

    /// Whether [`BatchCaller::next_completion`] would give something.
    #[inline]
    pub fn has_completion(&self) -> bool {
        self.told.has_next() || self.caller.has_completion()
    }

    /// How many calls can be begun now, if none is too long for a batch.
    pub fn available(&self) -> usize {
        let room = |at| {
            let batch: &Batch = &self.batches[usize::from(at)];
            usize::from(batch.size) - batch.calls.len()
        };
        self.open.map_or(0, room) + self.caller.available() * usize::from(self.size.get())
    }

    /// How many calls have no outcome yet.
    pub fn pending(&self) -> usize {
        let records = self.caller.calls.records.iter().zip(&self.batches);
        let pending = records.filter(|(record, _)| record.state == State::Pending);
        pending.map(|(record, batch)| if record.is_batch() { batch.wanted().count() } else { 1 }).sum()
    }

    /// Gives a call up: its outcome will not be told. Returns whether it is certain that the call was and will not be
    /// executed. In a batch with others it never is: the batch travels as a whole.
    pub fn cancel(&mut self, call: CallId) -> bool {
        if self.told.give_up(call) {
            self.caller.counters.cancelled.increment();
            return false;
        }
        let records = self.caller.calls.records.iter();
        let is_open =
            |record: &Record| matches!(record.state, State::Pending | State::Done) && record.is_batch();
        let batches = records.zip(&mut self.batches).filter(|(record, _)| is_open(record));
        for (record, batch) in batches {
            let Some(given_up) = batch.find(call) else { continue };
            given_up.is_given_up = true;
            if batch.wanted().next().is_none() {
                // Nobody wants any of it.
                let whole = record.id;
                return self.caller.cancel(whole);
            }
            self.caller.counters.cancelled.increment();
            return false;
        }
        self.caller.cancel(call)
    }

    /// See [`Caller::probe`].
    pub(crate) fn probe(&mut self, clock: &MonotonicClock) {
        self.caller.probe(clock);
    }

    /// How many calls a batch takes now.
    pub fn batch_size(&self) -> u16 {
        self.size.get()
    }
}

impl<P: Path> Endpoint for BatchCaller<P> {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Next {
        self.now = now;
        let due = self.open_batch().map(|at| self.batches[usize::from(at)].calls[0].submitted + self.wait);
        if due.is_some_and(|due| now >= due) {
            self.flush(now);
            return self.caller.progress(now);
        }
        let next = self.caller.progress(now);
        if due.is_some() { next.merge(Next::Idle { until: due }) } else { next }
    }

    fn arm(&mut self) -> VerbsResult<()> {
        self.caller.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        self.caller.wait_set(set);
    }

    fn waits_long(&self) -> bool {
        self.caller.waits_long()
    }
}

impl Batch {
    /// Whether it took as many calls as it could.
    fn is_full(&self) -> bool {
        self.calls.len() == usize::from(self.size)
    }

    fn find(&mut self, call: CallId) -> Option<&mut BatchedCall> {
        self.calls.get_mut(usize::try_from(call.0.checked_sub(self.first.0)?).ok()?)
    }

    /// Those whose outcomes somebody waits for.
    fn wanted(&self) -> impl Iterator<Item = &BatchedCall> {
        self.calls.iter().filter(|call| !call.is_given_up)
    }
}

impl Told {
    #[inline]
    fn has_next(&self) -> bool {
        self.count < self.batch.calls.len()
    }

    /// The call whose outcome is next.
    fn call(&self) -> BatchedCall {
        self.batch.calls[self.count]
    }

    /// Whether there is a result for each call, and nothing else.
    fn is_whole(&self) -> bool {
        let mut rest = &self.reply[..];
        self.batch.calls.iter().all(|_| take_result(&mut rest).is_ok()) && rest.is_empty()
    }

    fn give_up(&mut self, call: CallId) -> bool {
        let from = self.batch.first.0 + self.count as u64;
        let Some(given_up) = self.batch.find(call).filter(|_| call.0 >= from) else { return false };
        given_up.is_given_up = true;
        self.skip_given_up();
        true
    }

    /// To the next call that somebody waits for.
    fn skip_given_up(&mut self) {
        let mut rest = &self.reply[self.taken_bytes..];
        while self.has_next() && self.call().is_given_up {
            // All are whole, or there is an error and nothing to skip.
            let _ = take_result(&mut rest);
            self.count += 1;
        }
        self.taken_bytes = self.reply.len() - rest.len();
    }

    /// The next outcome.
    #[inline]
    fn next(&mut self) -> Completion<'_> {
        let call = CallId(self.batch.first.0 + self.count as u64);
        let at = self.taken_bytes;
        let mut rest = &self.reply[at..];
        let (status, len_bytes) =
            take_result(&mut rest).map_or((Status::OK, 0), |(status, bytes)| (status, bytes.len()));
        self.taken_bytes = self.reply.len() - rest.len();
        self.count += 1;
        self.skip_given_up();
        let bytes = || &self.reply[at + ENTRY_HEAD_BYTES..][..len_bytes];
        let result = match &self.error {
            Some(error) => Err(error.clone()),
            None if status == Status::OK => Ok(bytes()),
            None => Err(CallError::of_status(status, bytes())),
        };
        Completion { call, result }
    }
}
