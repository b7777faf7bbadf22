//! Calls without a handler: taken in now, answered later.

use farcall_verbs::{Clock, Nanos};

use super::serve::{Holding, Served};
use super::{ConnectionId, Handler, Responder};

/// A call that was taken in and waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Over which connection it came; it takes in no further call before this one is answered.
    pub connection: ConnectionId,
    /// The method.
    pub method: u16,
}

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Takes in a call from any connection that does not hold one; its payload is appended to `request`. Use this instead
    /// of [`farcall_verbs::Endpoint::progress`], not beside it: that would execute what is held.
    pub fn take_call(&mut self, request: &mut Vec<u8>, now: Nanos) -> Option<Held> {
        self.poll_completions(now);
        let count = self.connections.len();
        for i in 0..count {
            let at = (self.next_to_take + i) % count;
            let connection = &mut self.connections[at];
            if connection.held.is_some() || !connection.has_mail() {
                continue;
            }
            match self.engine.hold(connection, request, now) {
                Holding::Call { method } => {
                    self.next_to_take = at + 1;
                    return Some(Held { connection: connection.id, method });
                }
                Holding::None(Served::Violation) => {
                    self.close_violator(at);
                    return None;
                }
                Holding::None(_) => {}
            }
        }
        None
    }

    /// Answers the call that a connection holds. False if it holds none: it ended meanwhile.
    pub fn answer_call(&mut self, connection: ConnectionId, result: &[u8]) -> bool {
        let Some(at) = self.position(connection) else { return false };
        self.engine.give(&mut self.connections[at], result)
    }
}
