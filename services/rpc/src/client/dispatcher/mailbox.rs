//! The local mailbox between a thread that makes calls and the dispatcher: two rings, each with a single writer.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use farcall_drive::Parker;
use farcall_verbs::Nanos;
use rtrb::{Consumer, Producer, RingBuffer};

use super::super::shared::SharedCall;
use crate::caller::{CallContext, CallId};
use crate::error::CallError;

/// A call from a requester.
pub(super) struct Request {
    pub call: CallId,
    /// Index of the dispatcher's connection.
    pub to: u16,
    pub method: u16,
    pub context: CallContext,
    /// The request. Its memory is reused for the result.
    pub bytes: Vec<u8>,
}

/// Outcome of a call.
pub(super) struct Outcome {
    pub call: CallId,
    pub error: Option<CallError>,
    /// The result.
    pub bytes: Vec<u8>,
}

/// The requester's end.
pub(super) struct RequesterEnd {
    pub requests: Producer<Request>,
    pub outcomes: Consumer<Outcome>,
    /// The requester sleeps on it.
    pub sleeper: Arc<Parker>,
}

/// The dispatcher's end.
pub(super) struct DispatcherEnd {
    pub requests: Consumer<Request>,
    pub outcomes: Outcomes,
}

/// The sending end of a requester's outcomes.
pub(super) struct Outcomes {
    ring: Producer<Outcome>,
    sleeper: Arc<Parker>,
}

impl Outcomes {
    /// Never exceeds the ring: a requester has no more calls in flight than the ring has slots.
    fn push(&mut self, outcome: Outcome) {
        let is_full = self.ring.push(outcome).is_err();
        debug_assert!(!is_full, "an outcome for each request");
        self.sleeper.unpark_if_parked();
    }
}

impl Drop for Outcomes {
    /// Wakes a sleeping requester, which then finds that the dispatcher has ended.
    fn drop(&mut self) {
        // Replaced rather than dropped later, so that the requester finds the ring abandoned when it wakes.
        self.ring = RingBuffer::new(0).0;
        self.sleeper.unpark_if_parked();
    }
}

/// Creates a mailbox for up to `window` calls in flight.
pub(super) fn mailbox(window: usize) -> std::io::Result<(RequesterEnd, DispatcherEnd)> {
    let (requests, taken) = RingBuffer::new(window);
    let (ring, outcomes) = RingBuffer::new(window);
    let sleeper = Arc::new(Parker::new()?);
    let requester = RequesterEnd { requests, outcomes, sleeper: Arc::clone(&sleeper) };
    Ok((requester, DispatcherEnd { requests: taken, outcomes: Outcomes { ring, sleeper } }))
}

/// A call that was dequeued from its mailbox.
pub(super) struct LocalCall {
    pub request: Request,
    pub outcomes: Rc<RefCell<Outcomes>>,
}

impl SharedCall for LocalCall {
    fn method(&self) -> u16 {
        self.request.method
    }

    fn request(&self) -> &[u8] {
        &self.request.bytes
    }

    fn context(&self, _now: Nanos) -> CallContext {
        self.request.context
    }

    fn is_wanted(&self) -> bool {
        !self.outcomes.borrow().ring.is_abandoned()
    }

    fn end(self, outcome: Result<&[u8], CallError>) {
        let Request { call, mut bytes, .. } = self.request;
        bytes.clear();
        let error = outcome.map(|result| bytes.extend_from_slice(result)).err();
        self.outcomes.borrow_mut().push(Outcome { call, error, bytes });
    }
}
