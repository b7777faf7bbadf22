//! Attachment of a queue pair with shared receives to a completion queue.

use std::sync::Arc;

use farcall_verbs::Wc;

use super::QueuePair;
use super::shared_receive::SharedReceiveSide;
use crate::shm_transport::cq::Source;

/// A queue pair with shared receives attached to a completion queue, and the kinds of completion that it delivers
/// there.
pub(crate) struct SharedRecvSource {
    qp: Arc<QueuePair>,
    sends: bool,
    receives: bool,
}

impl SharedRecvSource {
    pub(crate) fn new(qp: &Arc<QueuePair>, sends: bool, receives: bool) -> Arc<Self> {
        Arc::new(Self { qp: qp.clone(), sends, receives })
    }

    fn receive_side(&self) -> Option<&SharedReceiveSide> {
        self.qp.shared().filter(|_| self.receives)
    }
}

impl Source for SharedRecvSource {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        let delivered = self.qp.poll(self.sends, false, wc);
        delivered + self.receive_side().map_or(0, |shared| shared.poll(&self.qp, &mut wc[delivered..]))
    }

    fn poll_failures(&self, wc: &mut [Wc]) -> usize {
        self.qp.poll_failures(self.sends, false, wc)
    }

    fn may_have_completions(&self) -> bool {
        self.qp.may_have_completions(self.sends, false)
            || self.receive_side().is_some_and(|shared| shared.may_have_completions(&self.qp))
    }

    fn service_for_sleeper(&self) -> bool {
        if self.sends {
            self.qp.resume_for_sleeper();
        }
        self.receive_side().is_some_and(|shared| self.qp.match_quantum(shared))
    }
}
