//! Completions of datagrams: sent results and received requests.

use farcall_link::Completed;
use farcall_verbs::{Clock, Nanos, WcStatus};

use super::mailbox::ReceivedRequest;
use super::{Handler, Responder};
use crate::error::Broken;

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Handles a completion of the thread's queue pair.
    pub(super) fn completed_datagram(&mut self, completed: Completed, source_qp: u32, now: Nanos) {
        match completed {
            Completed::Received { tag, len_bytes, .. } => {
                return self.arrived(tag as usize, len_bytes, source_qp);
            }
            Completed::Send { .. } | Completed::Flushed => {}
            Completed::Failed(status) => self.close_shared_ud_qp(status, now),
        }
        self.release_closing();
    }

    /// Ends the connections of all clients that use the thread's queue pair.
    #[cold]
    fn close_shared_ud_qp(&mut self, status: WcStatus, now: Nanos) {
        self.engine.shared_ud_qp.close();
        self.closing.iter_mut().for_each(|end| end.reply_to = None);
        while let Some(at) = self.connections.iter().position(|open| open.end.reply_to.is_some()) {
            self.connections[at].end.reply_to = None;
            self.end(at, Broken::Completion(status), None, Some(now));
        }
    }

    /// Handles a received datagram. Its receive is posted again at once, because all clients share the receives.
    #[inline]
    fn arrived(&mut self, receive: usize, filled_bytes: u32, source_qp: u32) {
        let Some(datagram) = self.engine.shared_ud_qp.datagram(receive, filled_bytes) else { return };
        let id = self.by_tag.get(&datagram.session_tag());
        let arrived = match id.and_then(|id| self.position(*id)).map(|at| &mut self.connections[at].end) {
            Some(end) if end.dedicated_qp.is_none() && end.source_qp == source_qp => {
                let arrived = end.arrived(&datagram, &mut self.engine.message);
                if let ReceivedRequest::Duplicate(seq) = arrived {
                    let had_work_due = end.has_work_due();
                    end.on_duplicate_request(seq);
                    self.due_connections += usize::from(!had_work_due && end.has_work_due());
                }
                arrived
            }
            _ => ReceivedRequest::Invalid,
        };
        match arrived {
            ReceivedRequest::New => {}
            ReceivedRequest::Duplicate(_) => self.engine.counters.repeated.increment(),
            ReceivedRequest::Invalid => self.engine.counters.strangers.increment(),
        }
        self.engine.shared_ud_qp.repost(receive);
    }
}
