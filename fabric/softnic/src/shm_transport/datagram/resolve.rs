//! Requests of a datagram queue pair for rings to its destinations.

use std::sync::Arc;

use super::blocked_datagrams::SendCounters;
use super::{BlockedDatagrams, DatagramCore, TxRing};
use crate::process::PeerReply;
use crate::process::rendezvous::{ReplyBody, RequestBody};
use crate::shm_transport::flight::Event;

impl DatagramCore {
    pub(super) fn resolve_all(&self) {
        let resolving = self.resolving.lock().clone();
        for blocked in resolving {
            // The references are: the list, this loop, and the route that needs the ring.
            let is_needed = Arc::strong_count(&blocked) > 2;
            if !is_needed || self.resolve(&blocked) {
                self.resolving.lock().retain(|other| !Arc::ptr_eq(other, &blocked));
            }
        }
    }

    /// Requests a ring, then sends the datagrams stored for it. Returns whether no work is left. Datagrams whose
    /// requests have completed are sent only from here.
    fn resolve(&self, blocked: &BlockedDatagrams) -> bool {
        if blocked.is_resolving() {
            blocked.begin_request();
            match self.poll_ring_request(blocked) {
                None => return false,
                Some(None) => return blocked.on_refused(&self.stats),
                Some(Some(tx_ring)) => blocked.on_granted(Box::new(tx_ring), &self.stats),
            }
        } else {
            blocked.advance(SendCounters::late(&self.stats));
        }
        blocked.request_notification();
        !blocked.has_completed_datagrams()
    }

    /// Queues a request for a ring for the service thread; with a delay if the last request was refused.
    pub(crate) fn request_ring(&self, blocked: Arc<BlockedDatagrams>, was_refused: bool) {
        self.stats.ways_asked.increment();
        self.stats.record(Event::Asked as u64, blocked.dst_qpn.into());
        self.resolving.lock().push(blocked);
        if was_refused {
            self.shm.process.service.schedule(&self.is_listed, || self.this.clone());
        } else {
            self.shm.process.service.schedule_now(self.this.clone());
        }
    }

    /// Requests a ring from the destination's process without blocking. Returns `None` if there is no reply yet, and
    /// `Some(None)` if there is no ring.
    fn poll_ring_request(&self, blocked: &BlockedDatagrams) -> Option<Option<TxRing>> {
        let dst_qpn = blocked.dst_qpn;
        let peer = match self.shm.process.peer_of(dst_qpn, &mut blocked.handshake.lock()) {
            Ok(peer) => peer?,
            Err(_) => return Some(None),
        };
        let (instance, src_qpn) = (self.shm.process.instance, self.qpn);
        let request = RequestBody::OpenDatagrams { instance, src_qpn, dst_qpn };
        match peer.request(&blocked.interest, request, &[]) {
            PeerReply::Granted((ReplyBody::OpenDatagrams { recv }, fds)) => {
                let tx_ring = TxRing::from_grant(peer, dst_qpn, recv, fds);
                if tx_ring.is_none() {
                    tracing::warn!(
                        "queue pair {:#x}: the way to {dst_qpn:#x} was granted and cannot be used (out of \
                         descriptors? raise RLIMIT_NOFILE)",
                        self.qpn
                    );
                }
                Some(tx_ring)
            }
            PeerReply::Pending if !peer.liveness.has_exited() => None,
            _ => Some(None),
        }
    }
}
