//! A session that several callers share: their calls queue for free slots of the window, and each caller gets its
//! outcome.

use std::collections::{HashMap, VecDeque};

use farcall_verbs::{Endpoint, Nanos, Progress, Result, WaitSet};

use super::erased::AnyCaller;
use super::session::Session;
use crate::caller::{CallContext, CallId};
use crate::error::{Broken, CallError};
use crate::wire::Status;

/// Rounds of driver iterations between two checks of the bootstrap connection, in addition to those after sleeping.
const TURNS_PER_CHECK: u32 = 256;

/// A call of one of the callers.
pub(super) trait SharedCall {
    fn method(&self) -> u16;

    fn request(&self) -> &[u8];

    fn context(&self, now: Nanos) -> CallContext;

    /// Returns whether a caller still waits for the outcome.
    fn is_wanted(&self) -> bool;

    /// Delivers the outcome. The caller may no longer exist.
    fn end(self, outcome: std::result::Result<&[u8], CallError>);
}

/// The session, and the callers that wait for its calls.
pub(super) struct SharedSession<W> {
    pub session: Session<dyn AnyCaller>,
    queue: VecDeque<W>,
    waiting: HashMap<CallId, W>,
    turns_to_check: u32,
}

impl<W: SharedCall> SharedSession<W> {
    pub fn new(session: Session<dyn AnyCaller>) -> Self {
        Self { session, queue: VecDeque::new(), waiting: HashMap::new(), turns_to_check: TURNS_PER_CHECK }
    }

    /// Queues a call for the next free slot of the window.
    pub fn push(&mut self, call: W) {
        self.queue.push_back(call);
    }

    fn submit(&mut self, now: Nanos) {
        while let Some(call) = self.queue.pop_front() {
            if !call.is_wanted() {
                continue;
            }
            match self.session.caller.submit(call.method(), call.request(), call.context(now), now) {
                Ok(id) => drop(self.waiting.insert(id, call)),
                Err(CallError::WindowFull { .. }) => {
                    self.queue.push_front(call);
                    break;
                }
                Err(error) => call.end(Err(error)),
            }
        }
        // Send the batch: calls submitted together are sent together, and waiting for more would only add latency.
        self.session.caller.flush(now);
    }

    fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.session.caller.next_completion() {
            any = true;
            let Some(call) = self.waiting.remove(&done.call) else { continue };
            match done.result {
                // Certainly not executed: it is repeated when there is a new connection.
                Err(CallError::Server { status: Status::GOING_AWAY, .. }) => self.queue.push_back(call),
                outcome => call.end(outcome),
            }
        }
        any
    }

    /// Cancels the calls that no caller waits for any more. This happens with futures, which can be dropped, but not
    /// with mailboxes.
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

    fn check_bootstrap(&mut self) {
        self.turns_to_check = TURNS_PER_CHECK;
        self.session.check_bootstrap();
    }

    /// Ends the queued calls, because there will be no connection.
    pub fn abandon(&mut self, why: &Broken) {
        self.deliver();
        for call in self.queue.drain(..) {
            call.end(Err(CallError::NotSent(why.clone())));
        }
    }
}

impl<W: SharedCall> Endpoint for SharedSession<W> {
    fn progress(&mut self, now: Nanos) -> Progress {
        self.submit(now);
        let next = self.session.turns(now);
        self.turns_to_check -= 1;
        if self.turns_to_check == 0 {
            self.check_bootstrap();
        }
        // A slot may be free again although no call completed: that of a cancelled call.
        let may_submit = !self.queue.is_empty() && self.session.caller.available() > 0;
        if self.deliver() || may_submit { Progress::Again } else { next }
    }

    fn arm(&mut self) -> Result<()> {
        // Check the bootstrap connection in the last iteration before sleeping and in the first one after it.
        self.check_bootstrap();
        self.turns_to_check = 2;
        self.session.caller.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        if let Some(bootstrap) = &self.session.bootstrap {
            set.insert(bootstrap.fd());
        }
        self.session.caller.wait_set(set);
    }

    fn prefers_sleep(&self) -> bool {
        self.session.caller.prefers_sleep()
    }
}
