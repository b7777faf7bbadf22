//! A session whose calls several callers make: they wait in turn for a place in the window, and each gets its outcome.

use std::collections::{HashMap, VecDeque};

use farcall_verbs::{Endpoint, Nanos, Next, Result, WaitSet};

use super::erased::AnyCaller;
use super::session::Session;
use crate::caller::{CallId, CallOptions};
use crate::error::{Broken, CallError};
use crate::wire::Status;

/// Rounds of turns between two looks at the bootstrap connection, besides those after sleeping.
const TURNS_PER_LOOK: u32 = 256;

/// A call of one of them.
pub(super) trait SharedCall {
    fn method(&self) -> u16;

    fn request(&self) -> &[u8];

    fn options(&self, now: Nanos) -> CallOptions;

    /// Whether anybody still waits for the outcome.
    fn is_wanted(&self) -> bool;

    /// The outcome is known. Whoever waited for it may be gone.
    fn end(self, outcome: std::result::Result<&[u8], CallError>);
}

/// The session, and those who wait for its calls.
pub(super) struct SharedSession<W> {
    pub session: Session<dyn AnyCaller>,
    queue: VecDeque<W>,
    waiting: HashMap<CallId, W>,
    turns_to_look: u32,
}

impl<W: SharedCall> SharedSession<W> {
    pub fn new(session: Session<dyn AnyCaller>) -> Self {
        Self { session, queue: VecDeque::new(), waiting: HashMap::new(), turns_to_look: TURNS_PER_LOOK }
    }

    /// A call for the next free place of the window.
    pub fn push(&mut self, call: W) {
        self.queue.push_back(call);
    }

    fn submit(&mut self, now: Nanos) {
        while let Some(call) = self.queue.pop_front() {
            if !call.is_wanted() {
                continue;
            }
            match self.session.caller.submit(call.method(), call.request(), call.options(now), now) {
                Ok(id) => drop(self.waiting.insert(id, call)),
                Err(CallError::WindowFull { .. }) => {
                    self.queue.push_front(call);
                    break;
                }
                Err(error) => call.end(Err(error)),
            }
        }
        // What came together travels together; waiting for more would only be waiting.
        self.session.caller.flush(now);
    }

    fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.session.caller.next_completion() {
            any = true;
            let Some(call) = self.waiting.remove(&done.call) else { continue };
            match done.result {
                // Certainly not executed: it is made again when there is a connection.
                Err(CallError::Server { status: Status::GOING_AWAY, .. }) => self.queue.push_back(call),
                outcome => call.end(outcome),
            }
        }
        any
    }

    /// Gives up the calls that nobody waits for any more: a future can be dropped, a mailbox cannot.
    #[cfg(feature = "tokio")]
    pub fn cancel_unwanted(&mut self) {
        let Self { session, waiting, .. } = self;
        waiting.retain(|id, call| {
            let is_wanted = call.is_wanted();
            if !is_wanted {
                session.caller.cancel(*id);
            }
            is_wanted
        });
    }

    fn look(&mut self) {
        self.turns_to_look = TURNS_PER_LOOK;
        self.session.look();
    }

    /// There will be no connection: those whose calls were not sent are told why.
    pub fn give_up(&mut self, why: &Broken) {
        self.deliver();
        for call in self.queue.drain(..) {
            call.end(Err(CallError::NotSent(why.clone())));
        }
    }
}

impl<W: SharedCall> Endpoint for SharedSession<W> {
    fn progress(&mut self, now: Nanos) -> Next {
        self.submit(now);
        let next = self.session.turns(now);
        self.turns_to_look -= 1;
        if self.turns_to_look == 0 {
            self.look();
        }
        // A place may be free again without anything to deliver: of a call that was given up.
        let may_submit = !self.queue.is_empty() && self.session.caller.available() > 0;
        if self.deliver() || may_submit { Next::Again } else { next }
    }

    fn arm(&mut self) -> Result<()> {
        // The next turn is the last one before sleeping, the one after it the first one after: both look.
        self.look();
        self.turns_to_look = 2;
        self.session.caller.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        if let Some(bootstrap) = &self.session.bootstrap {
            set.insert(bootstrap.fd());
        }
        self.session.caller.wait_set(set);
    }

    fn waits_long(&self) -> bool {
        self.session.caller.waits_long()
    }
}
