//! What a service implements.

use std::io;
use std::sync::Arc;

use farcall_link::Region;
use farcall_verbs::Nanos;

use super::deferred::{AtHand, Deferred, Deferring, Pending};
use super::session::Session;

use crate::wire::batch::{ENTRY_HEAD_BYTES, entry_head};
use crate::wire::{Status, padded};

/// A service: answers calls. It runs on a server thread, one call at a time, and so needs no locks of its own.
pub trait Handler {
    /// Answers one call: reads the request, appends the result to `reply`.
    ///
    /// A panic is caught: the caller gets an error, the server goes on. What the handler had changed stays changed.
    ///
    /// # Errors
    /// What the caller gets instead of a result.
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError>;

    /// A connection ended, whose number calls had ([`Call::connection`]): nothing more comes over it. A client that
    /// comes back does so over another one. It must not panic.
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

/// A handler's refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerError {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl HandlerError {
    /// An application's own error. The caller sees `code` (15 bits) and the message.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        Self { status: Status::application(code), message: message.into() }
    }

    /// There is no such method.
    pub fn unknown_method(method: u16) -> Self {
        Self { status: Status::UNKNOWN_METHOD, message: format!("method {method}") }
    }
}

/// One call, as its handler sees it.
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
    /// Which method.
    pub const fn method(&self) -> u16 {
        self.method
    }

    /// The request: a private copy, so the caller cannot change it any more.
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The call's number, unique in its session.
    pub const fn call_id(&self) -> u64 {
        self.call_id
    }

    /// The caller's trace; 0 if it has none.
    pub const fn trace_id(&self) -> u64 {
        self.trace_id
    }

    /// When the caller gives up, by the clock of the server thread.
    pub const fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    /// When the server began to take the call in.
    pub const fn arrived(&self) -> Nanos {
        self.arrived
    }

    /// The connection it came over: a number that is unique while the connection lives.
    pub const fn connection(&self) -> u32 {
        self.connection
    }
}

/// Where a result is written: in place, in the slot that the client fetches it from; longer ones go to memory that is
/// kept until the client has all of it.
pub struct Reply<'a> {
    session: &'a Session,
    deferring: &'a mut Deferring,
    /// Calls of the batch at hand that are answered later.
    late: Vec<Arc<Pending>>,
    slot: &'a Region,
    payload_at: usize,
    capacity: usize,
    in_slot: usize,
    spill: &'a mut Vec<u8>,
    max_bytes: usize,
    overflow: bool,
    /// Where the result of the call at hand begins, behind those of the calls of its batch before it.
    begins_at: usize,
}

/// Where a result may go.
pub(super) struct Place {
    pub payload_at: usize,
    pub capacity: usize,
    pub max_bytes: usize,
}

impl<'a> Reply<'a> {
    pub(super) fn new(
        session: &'a Session,
        place: Place,
        spill: &'a mut Vec<u8>,
        deferring: &'a mut Deferring,
    ) -> Self {
        debug_assert!(spill.is_empty());
        let Place { payload_at, capacity, max_bytes } = place;
        let slot = &session.results;
        let late = Vec::new();
        Self {
            session,
            deferring,
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

    /// Leaves the answer for later: the handler returns, other calls are executed, and whoever holds the token answers
    /// when it is time, from any thread. What was appended to the result is forgotten. If the handler returns an error
    /// all the same, the call ends with it at once.
    ///
    /// The calls of a batch end together, with the last of them.
    ///
    /// # Errors
    /// If too many calls of this client or of this thread are to be answered later
    /// ([`crate::ResponderConfig::deferred_of_client_max`], [`crate::ResponderConfig::deferred_max`]), if this one
    /// was deferred before, or if the client is of a version that takes no such answers.
    pub fn defer(&mut self) -> Result<Deferred, HandlerError> {
        self.deferring.defer(self.session, self.late.len())
    }

    /// Whether the call at hand is answered later; if it is one of a batch, its token is kept here. An error takes the
    /// token back: it leads nowhere then.
    #[inline]
    pub(super) fn end_call_of_batch(&mut self, is_ok: bool) -> bool {
        if matches!(self.deferring.at_hand, AtHand::Now) {
            return false;
        }
        self.keep_late(is_ok)
    }

    #[cold]
    fn keep_late(&mut self, is_ok: bool) -> bool {
        match std::mem::take(&mut self.deferring.at_hand) {
            AtHand::Later(pending) if is_ok => {
                self.late.push(pending);
                true
            }
            AtHand::Later(pending) => {
                pending.cancel();
                false
            }
            AtHand::Now | AtHand::Refused => false,
        }
    }

    /// The calls of the batch that are answered later.
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
            // Remembered, and answered with an error when the handler is done; nothing is kept that will not be sent.
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

    /// Forgets what was appended.
    pub fn clear(&mut self) {
        if self.spill.is_empty() {
            self.in_slot = self.begins_at;
        } else {
            self.spill.truncate(self.begins_at);
        }
        self.overflow = false;
    }

    /// Bytes appended so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.end() - self.begins_at
    }

    /// Bytes of all results so far.
    #[inline]
    fn end(&self) -> usize {
        self.in_slot + self.spill.len()
    }

    /// Whether nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How long the result may become.
    pub const fn max_bytes(&self) -> usize {
        self.max_bytes.saturating_sub(self.begins_at)
    }

    /// Keeps room beyond what results may take. `false`: there is not as much.
    pub(super) fn reserve(&mut self, len_bytes: usize) -> bool {
        let left = self.max_bytes.checked_sub(len_bytes);
        self.max_bytes = left.unwrap_or(self.max_bytes);
        left.is_some()
    }

    /// Begins the result of a call of a batch. Returns where its head is to be.
    #[inline]
    pub(super) fn begin_entry(&mut self) -> usize {
        let at = self.end();
        self.append_reserved(&[0; ENTRY_HEAD_BYTES]);
        self.begins_at = self.end();
        at
    }

    /// Ends it.
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

    /// Appends what was reserved.
    #[inline]
    fn append_reserved(&mut self, bytes: &[u8]) {
        if self.spill.is_empty() && bytes.len() <= self.capacity - self.in_slot {
            self.slot.copy_in(self.payload_at + self.in_slot, bytes);
            self.in_slot += bytes.len();
        } else {
            self.spill(bytes);
        }
    }

    /// Whether more was appended than is allowed.
    pub(crate) const fn is_overflown(&self) -> bool {
        self.overflow
    }

    /// Bytes of the result that are in the slot; the rest of it, if any, is all in the spill.
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
