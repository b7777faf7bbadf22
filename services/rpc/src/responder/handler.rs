//! The interface of a service.

use std::io;
use std::sync::Arc;

use farcall_link::Region;
use farcall_verbs::Nanos;

use super::deferred::{Deferred, Pending};
use super::deferred_calls::{DeferredCalls, HandlerDisposition};
use super::session::Session;
use crate::error::HandlerError;
use crate::wire::batch::{ENTRY_HEAD_BYTES, entry_head};
use crate::wire::{Status, padded};

/// A service, which answers calls. It runs on a server thread, one call at a time, and therefore needs no locks.
pub trait Handler {
    /// Answers one call: reads the request and appends the result to `reply`.
    ///
    /// A panic is caught: the caller gets an error, and the server continues. Earlier changes by the handler are not
    /// undone.
    ///
    /// # Errors
    /// Returns the error that the caller receives instead of a result.
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError>;

    /// Called when a connection has ended, with the number that its calls had ([`Call::connection`]): no more calls
    /// arrive over it. A client that reconnects has another number. It must not panic.
    fn closed(&mut self, _connection: u32) {}
}

impl<F> Handler for F
where
    F: FnMut(&Call<'_>, &mut Reply<'_>) -> Result<(), HandlerError>,
{
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        self(call, reply)
    }
}

/// One call, as passed to its handler.
#[derive(Debug)]
pub struct Call<'a> {
    pub(crate) method: u16,
    pub(crate) payload: &'a [u8],
    pub(crate) call_id: u64,
    pub(crate) trace_id: u64,
    pub(crate) deadline: Option<Nanos>,
    pub(crate) arrived: Nanos,
    pub(crate) connection: u32,
}

impl<'a> Call<'a> {
    /// Returns the method.
    pub const fn method(&self) -> u16 {
        self.method
    }

    /// Returns the request. It is a private copy, so the caller cannot change it any more.
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the call's number, unique in its session.
    pub const fn call_id(&self) -> u64 {
        self.call_id
    }

    /// Returns the caller's trace; 0 if it has none.
    pub const fn trace_id(&self) -> u64 {
        self.trace_id
    }

    /// Returns the caller's deadline, by the clock of the server thread.
    pub const fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    /// Returns when the server began to receive the call.
    pub const fn arrived(&self) -> Nanos {
        self.arrived
    }

    /// Returns the number of the connection over which the call arrived. It is unique while the connection exists.
    pub const fn connection(&self) -> u32 {
        self.connection
    }
}

/// The result of a call. It is written directly to the slot that the client fetches it from. A longer result is
/// written to memory that is retained until the client has received all of it.
pub struct Reply<'a> {
    session: &'a Session,
    deferred_calls: &'a mut DeferredCalls,
    /// Deferred calls of the current batch.
    late: Vec<Arc<Pending>>,
    slot: &'a Region,
    payload_at: usize,
    capacity: usize,
    in_slot: usize,
    spill: &'a mut Vec<u8>,
    max_bytes: usize,
    overflow: bool,
    /// Where the result of the current call begins, after the results of earlier calls of its batch.
    begins_at: usize,
}

farcall_verbs::opaque_debug!(Reply<'_>);

/// Where a result may be written.
pub(super) struct ResultBuffer {
    pub payload_at: usize,
    pub capacity: usize,
    pub max_bytes: usize,
}

impl<'a> Reply<'a> {
    pub(super) fn new(
        session: &'a Session,
        buffer: ResultBuffer,
        spill: &'a mut Vec<u8>,
        deferred_calls: &'a mut DeferredCalls,
    ) -> Self {
        debug_assert!(spill.is_empty());
        let ResultBuffer { payload_at, capacity, max_bytes } = buffer;
        let slot = &session.results;
        let late = Vec::new();
        Self {
            session,
            deferred_calls,
            late,
            slot,
            payload_at,
            capacity,
            in_slot: 0,
            spill,
            max_bytes,
            overflow: false,
            begins_at: 0,
        }
    }

    /// Defers the answer: the handler returns, other calls are executed, and the holder of the token answers later,
    /// from any thread. Bytes that were appended to the result are discarded. If the handler returns an error
    /// nevertheless, the call ends with that error at once.
    ///
    /// The calls of a batch end together, when the last of them is answered.
    ///
    /// # Errors
    /// Returns an error if too many calls of this client or of this thread are deferred
    /// ([`crate::ResponderConfig::deferred_of_client_max`], [`crate::ResponderConfig::deferred_max`]), if this call
    /// was deferred before, or if the client's version does not support deferred answers.
    pub fn defer(&mut self) -> Result<Deferred, HandlerError> {
        self.deferred_calls.defer(&self.session.deferred, self.session.id.tag(), self.late.len())
    }

    /// Returns whether the current call is deferred. If it belongs to a batch, its token's state is stored here. If
    /// the handler returned an error, the token is cancelled.
    #[inline]
    pub(super) fn end_call_of_batch(&mut self, is_ok: bool) -> bool {
        if self.deferred_calls.is_immediate() {
            return false;
        }
        self.store_late(is_ok)
    }

    #[cold]
    fn store_late(&mut self, is_ok: bool) -> bool {
        match self.deferred_calls.take_disposition() {
            HandlerDisposition::Deferred(pending) if is_ok => {
                self.late.push(pending);
                true
            }
            HandlerDisposition::Deferred(pending) => {
                pending.cancel();
                false
            }
            HandlerDisposition::Immediate | HandlerDisposition::Refused => false,
        }
    }

    /// Returns the deferred calls of the batch.
    #[inline]
    pub(super) fn take_late(&mut self) -> Vec<Arc<Pending>> {
        std::mem::take(&mut self.late)
    }

    /// Appends bytes to the result.
    #[inline]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        if self.spill.is_empty() && bytes.len() <= self.capacity - self.in_slot {
            self.slot.copy_in(self.payload_at + self.in_slot, bytes);
            self.in_slot += bytes.len();
        } else {
            self.extend_beyond(bytes);
        }
    }

    #[cold]
    fn extend_beyond(&mut self, bytes: &[u8]) {
        if self.end() + bytes.len() > self.max_bytes {
            // The handler's caller answers with an error when the handler returns; bytes that will not be sent are not
            // stored.
            self.overflow = true;
            return;
        }
        self.spill(bytes);
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        if self.spill.is_empty() {
            self.slot.append_to(self.payload_at, self.in_slot, self.spill);
            self.in_slot = 0;
        }
        self.spill.extend_from_slice(bytes);
    }

    /// Discards the appended bytes.
    pub fn clear(&mut self) {
        if self.spill.is_empty() {
            self.in_slot = self.begins_at;
        } else {
            self.spill.truncate(self.begins_at);
        }
        self.overflow = false;
    }

    /// Returns the number of appended bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.end() - self.begins_at
    }

    /// Returns the number of bytes of all results so far.
    #[inline]
    fn end(&self) -> usize {
        self.in_slot + self.spill.len()
    }

    /// Returns whether nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum length of the result.
    pub const fn max_bytes(&self) -> usize {
        self.max_bytes.saturating_sub(self.begins_at)
    }

    /// Reserves bytes that results may not use. Returns `false` if there are not as many.
    pub(super) fn reserve(&mut self, len_bytes: usize) -> bool {
        let left = self.max_bytes.checked_sub(len_bytes);
        self.max_bytes = left.unwrap_or(self.max_bytes);
        left.is_some()
    }

    /// Begins the result of a call of a batch. Returns the offset of its head.
    #[inline]
    pub(super) fn begin_entry(&mut self) -> usize {
        let at = self.end();
        self.append_reserved(&[0; ENTRY_HEAD_BYTES]);
        self.begins_at = self.end();
        at
    }

    /// Ends the result of a call of a batch.
    #[inline]
    pub(super) fn end_entry(&mut self, head_at: usize, status: Status) {
        let len_bytes = self.len();
        self.append_reserved(&[0; 8][..padded(len_bytes) - len_bytes]);
        let head = entry_head(len_bytes as u32, status.0);
        if self.spill.is_empty() {
            self.slot.copy_in(self.payload_at + head_at, &head);
        } else {
            self.spill[head_at..head_at + ENTRY_HEAD_BYTES].copy_from_slice(&head);
        }
    }

    /// Appends bytes that were reserved.
    #[inline]
    fn append_reserved(&mut self, bytes: &[u8]) {
        if self.spill.is_empty() && bytes.len() <= self.capacity - self.in_slot {
            self.slot.copy_in(self.payload_at + self.in_slot, bytes);
            self.in_slot += bytes.len();
        } else {
            self.spill(bytes);
        }
    }

    /// Returns whether more was appended than is allowed.
    pub(crate) const fn has_overflowed(&self) -> bool {
        self.overflow
    }

    /// Returns the number of bytes of the result that are in the slot. If there are more, all bytes are in the spill.
    pub(crate) const fn in_slot(&self) -> usize {
        self.in_slot
    }
}

impl io::Write for Reply<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the text of a handler's panic.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a text")
}
