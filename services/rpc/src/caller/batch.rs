//! Several calls in one message: RF-RPC, section 4.1.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use farcall_link::{BatchConfig, Batching, Nic};
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Progress, Result as VerbsResult, WaitSet};

use super::calls::{Record, State};
use super::{CallContext, CallId, Caller, CallerState, Completion};
use crate::config::CallerConfig;
use crate::error::{Broken, CallError, UnknownBecause};
use crate::paths::Path;
use crate::tune::BatchSize;
use crate::wire::batch::{
    BATCH_HEAD_BYTES, ENTRY_HEAD_BYTES, batch_head, entry_bytes, push_entry, take_result,
};
use crate::wire::{RequestFlags, Status};

/// A [`Caller`] that collects calls and sends them in batches. A batch is sent when it has reached its number of calls
/// or its limit of bytes, when its first call has waited for the configured time, or on [`BatchCaller::flush`].
/// Several batches are in flight at once: up to the number of slots of the window.
///
/// A batch is executed at most once as a unit: its calls run in submission order, and none runs before all of the
/// batch has arrived. A call that alone exceeds the limit of bytes, or has a trace, is sent by itself. The calls of a
/// batch share the earliest of their deadlines.
pub struct BatchCaller<P: Path> {
    caller: Caller<P>,
    config: BatchConfig,
    wait: Duration,
    size: BatchSize,
    /// The batch of each of the caller's records.
    batches: Box<[Batch]>,
    /// The record of the batch that accepts calls.
    open: Option<u16>,
    /// The batch whose outcomes are being returned.
    completed: CompletedBatch,
    /// The time of the last driver iteration.
    now: Nanos,
}

/// The calls of a batch.
#[derive(Default)]
struct Batch {
    /// Id of the first call; the others follow consecutively.
    first: CallId,
    /// Maximum number of calls.
    size: u16,
    calls: Vec<BatchedCall>,
}

#[derive(Clone, Copy)]
struct BatchedCall {
    submitted: Nanos,
    is_cancelled: bool,
}

/// A batch that has completed.
#[derive(Default)]
struct CompletedBatch {
    batch: Batch,
    /// Number of calls whose outcome has been returned.
    count: usize,
    /// The results, and the number of bytes already returned.
    reply: Vec<u8>,
    taken_bytes: usize,
    /// The error of the batch, if it has no results.
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
    /// Like [`Caller::new`], with the batches of the plan, or the default ones.
    ///
    /// # Errors
    /// Returns the errors of [`Caller::new`].
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
        Ok(Self {
            caller,
            config,
            wait,
            size,
            batches,
            open: None,
            completed: CompletedBatch::default(),
            now: Nanos(0),
        })
    }

    /// Begins a call like [`Caller::submit`]. The call is sent with its batch.
    ///
    /// # Errors
    /// Returns an error if the window is full of incomplete batches, or the request exceeds the server's limit.
    #[inline]
    pub fn submit(
        &mut self,
        method: u16,
        payload: &[u8],
        context: CallContext,
        now: Nanos,
    ) -> Result<CallId, CallError> {
        if entry_bytes(payload.len()) > self.config.bytes_max as usize || context.trace_id != 0 {
            // Calls are executed in submission order.
            self.flush(now);
            return self.caller.submit(method, payload, context, now);
        }
        let at = match self.open_batch() {
            Some(at) => at,
            None => self.begin_batch(method)?,
        };
        let calls = &mut self.caller.state.calls;
        calls.shorten_deadline(at, context.deadline);
        let request = &mut calls.get(at).request;
        push_entry(request, method, payload);
        let is_full = request.len() - BATCH_HEAD_BYTES >= self.config.bytes_max as usize;
        self.caller.state.counters.calls.increment();
        let batch = &mut self.batches[usize::from(at)];
        let id = CallId(batch.first.0 + batch.calls.len() as u64);
        batch.calls.push(BatchedCall { submitted: now, is_cancelled: false });
        if is_full || batch.calls.len() >= usize::from(batch.size) {
            self.flush(now);
        }
        Ok(id)
    }

    /// Returns the record of the batch that accepts calls, unless the batch has ended in the meantime.
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
        let at = calls.begin(method, CallContext::default())?;
        let record = calls.get(at);
        (record.flags, record.is_open) = (RequestFlags::BATCH, true);
        // Placeholder: the number of calls is known when the batch is sent.
        record.request.extend_from_slice(&batch_head(0));
        let id = record.id;
        let batch = &mut self.batches[usize::from(at)];
        batch.size = self.size.get();
        batch.first = id;
        // The first call has the id of the batch.
        calls.reserve_ids(batch.size - 1);
        batch.calls.clear();
        self.open = Some(at);
        Ok(at)
    }

    /// Sends the open batch.
    pub fn flush(&mut self, now: Nanos) {
        let Some(at) = self.open_batch() else { return };
        self.open = None;
        let Caller { state, path } = &mut self.caller;
        let record = state.calls.get(at);
        let entries = self.batches[usize::from(at)].calls.len() as u16;
        record.request[..BATCH_HEAD_BYTES].copy_from_slice(&batch_head(entries));
        record.is_open = false;
        state.counters.batches.increment();
        state.queue.push_call(at);
        state.pump::<P::Response, P::Request>(path, now);
    }

    /// Returns the next call that has completed.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion<'_>> {
        while !self.completed.has_next() {
            if !self.caller.calls.next_is_batch()? {
                return self.caller.next_completion();
            }
            self.take_completed_batch();
        }
        let call = self.completed.call();
        let batch = &self.completed.batch;
        self.size.sample(self.now.since(call.submitted), batch.size, batch.is_full());
        Some(self.completed.next())
    }

    /// Takes the results of the batch that completed first.
    fn take_completed_batch(&mut self) {
        let Some((at, record)) = self.caller.state.calls.next_done() else { return };
        let completed = &mut self.completed;
        std::mem::swap(&mut completed.batch, &mut self.batches[usize::from(at)]);
        std::mem::swap(&mut completed.reply, &mut record.reply);
        (completed.count, completed.taken_bytes, completed.error) = (0, 0, record.error.take());
        if completed.error.is_none() && !completed.is_complete() {
            let why = Broken::Protocol(format!("batch {}: results that are none", record.id.0));
            completed.error = Some(CallError::OutcomeUnknown(UnknownBecause::Disconnected(why.clone())));
            self.caller.disconnect(why);
        }
        self.completed.skip_cancelled();
    }

    /// Returns whether [`BatchCaller::next_completion`] would return a call.
    #[inline]
    pub fn has_completion(&self) -> bool {
        self.completed.has_next() || self.caller.has_completion()
    }

    /// Returns how many calls can be submitted now, if none is too long for a batch.
    pub fn available(&self) -> usize {
        let room = |at| {
            let batch: &Batch = &self.batches[usize::from(at)];
            usize::from(batch.size) - batch.calls.len()
        };
        self.open.map_or(0, room) + self.caller.available() * usize::from(self.size.get())
    }

    /// Returns the number of calls without an outcome.
    pub fn pending(&self) -> usize {
        let records = self.caller.calls.records.iter().zip(&self.batches);
        let pending = records.filter(|(record, _)| record.state == State::Pending);
        pending.map(|(record, batch)| if record.is_batch() { batch.wanted().count() } else { 1 }).sum()
    }

    /// Cancels a call: its outcome is not returned. Returns whether the call certainly was not and will not be
    /// executed. For a call in a batch with others this is never certain, because the batch is sent as a unit.
    pub fn cancel(&mut self, call: CallId) -> bool {
        if self.completed.cancel(call) {
            self.caller.counters.cancelled.increment();
            return false;
        }
        let records = self.caller.calls.records.iter();
        let is_open =
            |record: &Record| matches!(record.state, State::Pending | State::Done) && record.is_batch();
        let batches = records.zip(&mut self.batches).filter(|(record, _)| is_open(record));
        for (record, batch) in batches {
            let Some(cancelled) = batch.find(call) else { continue };
            cancelled.is_cancelled = true;
            if batch.wanted().next().is_none() {
                // All calls of the batch are cancelled.
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

    /// Returns the current number of calls of a batch.
    pub fn batch_size(&self) -> u16 {
        self.size.get()
    }
}

impl<P: Path> Endpoint for BatchCaller<P> {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Progress {
        self.now = now;
        let due = self.open_batch().map(|at| self.batches[usize::from(at)].calls[0].submitted + self.wait);
        if due.is_some_and(|due| now >= due) {
            self.flush(now);
            return self.caller.progress(now);
        }
        let next = self.caller.progress(now);
        if due.is_some() { next.merge(Progress::Idle { until: due }) } else { next }
    }

    fn arm(&mut self) -> VerbsResult<()> {
        self.caller.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        self.caller.wait_set(set);
    }

    fn prefers_sleep(&self) -> bool {
        self.caller.prefers_sleep()
    }
}

impl Batch {
    /// Returns whether the batch has as many calls as it may.
    fn is_full(&self) -> bool {
        self.calls.len() == usize::from(self.size)
    }

    fn find(&mut self, call: CallId) -> Option<&mut BatchedCall> {
        self.calls.get_mut(usize::try_from(call.0.checked_sub(self.first.0)?).ok()?)
    }

    /// Returns the calls that are not cancelled.
    fn wanted(&self) -> impl Iterator<Item = &BatchedCall> {
        self.calls.iter().filter(|call| !call.is_cancelled)
    }
}

impl CompletedBatch {
    #[inline]
    fn has_next(&self) -> bool {
        self.count < self.batch.calls.len()
    }

    /// Returns the call whose outcome is next.
    fn call(&self) -> BatchedCall {
        self.batch.calls[self.count]
    }

    /// Returns whether there is exactly one result for each call.
    fn is_complete(&self) -> bool {
        let mut rest = &self.reply[..];
        self.batch.calls.iter().all(|_| take_result(&mut rest).is_ok()) && rest.is_empty()
    }

    fn cancel(&mut self, call: CallId) -> bool {
        let from = self.batch.first.0 + self.count as u64;
        let Some(cancelled) = self.batch.find(call).filter(|_| call.0 >= from) else { return false };
        cancelled.is_cancelled = true;
        self.skip_cancelled();
        true
    }

    /// Skips cancelled calls.
    fn skip_cancelled(&mut self) {
        let mut rest = &self.reply[self.taken_bytes..];
        while self.has_next() && self.call().is_cancelled {
            // All results are valid, or there is an error and nothing to skip.
            let _ = take_result(&mut rest);
            self.count += 1;
        }
        self.taken_bytes = self.reply.len() - rest.len();
    }

    /// Returns the next outcome.
    #[inline]
    fn next(&mut self) -> Completion<'_> {
        let call = CallId(self.batch.first.0 + self.count as u64);
        let at = self.taken_bytes;
        let mut rest = &self.reply[at..];
        let (status, len_bytes) =
            take_result(&mut rest).map_or((Status::OK, 0), |(status, bytes)| (status, bytes.len()));
        self.taken_bytes = self.reply.len() - rest.len();
        self.count += 1;
        self.skip_cancelled();
        let bytes = || &self.reply[at + ENTRY_HEAD_BYTES..][..len_bytes];
        let result = match &self.error {
            Some(error) => Err(error.clone()),
            None if status == Status::OK => Ok(bytes()),
            None => Err(CallError::of_status(status, bytes())),
        };
        Completion { call, result }
    }
}
