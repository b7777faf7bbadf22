//! Completions of datagrams: sent results and received requests.

use farcall_link::Completed;
use farcall_verbs::{Clock, Nanos, WcStatus};

use super::{Handler, Responder};
use crate::error::Broken;
use crate::paths::Arrived;

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Handles a completion of the thread's queue pair.
    pub(super) fn completed_datagram(&mut self, completed: Completed, source_qp: u32, now: Nanos) {
        match completed {
            Completed::Received { tag, len_bytes, .. } => {
                return self.arrived(tag as usize, len_bytes, source_qp);
            }
            Completed::Send { .. } | Completed::Flushed => {}
            Completed::Failed(status) => self.close_thread_pair(status, now),
        }
        self.release_closing();
    }

    /// Ends the connections of all clients that use the thread's queue pair.
    #[cold]
    fn close_thread_pair(&mut self, status: WcStatus, now: Nanos) {
        self.engine.thread_pair.close();
        self.closing.iter_mut().for_each(|end| end.reply_to = None);
        while let Some(at) = self.connections.iter().position(|open| open.end.reply_to.is_some()) {
            self.connections[at].end.reply_to = None;
            self.end(at, Broken::Completion(status), None, Some(now));
        }
    }

    /// Handles a received datagram. Its receive is posted again at once, because all clients share the receives.
    #[inline]
    fn arrived(&mut self, receive: usize, filled_bytes: u32, source_qp: u32) {
        let Some(datagram) = self.engine.thread_pair.datagram(receive, filled_bytes) else { return };
        let id = self.by_tag.get(&datagram.session_tag());
        let arrived = match id.and_then(|id| self.position(*id)).map(|at| &mut self.connections[at].end) {
            Some(end) if end.own.is_none() && end.source_qp == source_qp => {
                let arrived = end.arrived(&datagram, &mut self.engine.message);
                if let Arrived::Again(seq) = arrived {
                    let owed_before = end.owes();
                    end.asked_again(seq);
                    self.owing += usize::from(!owed_before && end.owes());
                }
                arrived
            }
            _ => Arrived::Strange,
        };
        match arrived {
            Arrived::Waiting => {}
            Arrived::Again(_) => self.engine.counters.repeated.increment(),
            Arrived::Strange => self.engine.counters.strangers.increment(),
        }
        self.engine.thread_pair.give_back(receive);
    }
}
