//! Requests of a datagram queue pair for rings to its destinations.

use std::sync::Arc;

use super::blocked_datagrams::Tally;
use super::{DatagramCore, Outlet, Pending};
use crate::process::PeerReply;
use crate::process::rendezvous::{ReplyBody, RequestBody};
use crate::shm_transport::flight::Event;

impl DatagramCore {
    pub(super) fn seek_all(&self) {
        let sought = self.sought.lock().clone();
        for pending in sought {
            // The references are: the list, this loop, and the route that needs the ring.
            let is_wanted = Arc::strong_count(&pending) > 2;
            if !is_wanted || self.find(&pending) {
                self.sought.lock().retain(|other| !Arc::ptr_eq(other, &pending));
            }
        }
    }

    /// Requests a ring, then sends the datagrams stored for it. Returns whether no work is left. Datagrams whose
    /// requests have completed are sent only from here.
    fn find(&self, pending: &Pending) -> bool {
        if pending.is_sought() {
            pending.begin_ask();
            match self.seek(pending) {
                None => return false,
                Some(None) => return pending.refused(&self.stats),
                Some(Some(outlet)) => pending.found(Box::new(outlet), &self.stats),
            }
        } else {
            pending.advance(Tally::late(&self.stats));
        }
        pending.ask();
        !pending.keeps_early()
    }

    /// Queues a request for a ring for the service thread; with a delay if the last request was refused.
    pub(crate) fn ask(&self, pending: Arc<Pending>, was_lost: bool) {
        self.stats.ways_asked.increment();
        self.stats.record(Event::Asked as u64, pending.dst_qpn.into());
        self.sought.lock().push(pending);
        if was_lost {
            self.host.process.service.schedule(self, &self.this);
        } else {
            self.host.process.service.schedule_now(self, &self.this);
        }
    }

    /// Requests a ring from the destination's process without blocking. Returns `None` if there is no reply yet, and
    /// `Some(None)` if there is no ring.
    fn seek(&self, pending: &Pending) -> Option<Option<Outlet>> {
        let dst_qpn = pending.dst_qpn;
        let peer = match self.host.process.peer_of(dst_qpn, &mut pending.handshake.lock()) {
            Ok(peer) => peer?,
            Err(_) => return Some(None),
        };
        let (instance, src_qpn) = (self.host.process.instance, self.qpn);
        let request = RequestBody::OpenDatagrams { instance, src_qpn, dst_qpn };
        match peer.request(&pending.interest, request, &[]) {
            PeerReply::Granted((ReplyBody::OpenDatagrams { recv }, fds)) => {
                let outlet = Outlet::from_grant(peer, dst_qpn, recv, fds);
                if outlet.is_none() {
                    tracing::warn!(
                        "queue pair {:#x}: the way to {dst_qpn:#x} was granted and cannot be used (out of \
                         descriptors? raise RLIMIT_NOFILE)",
                        self.qpn
                    );
                }
                Some(outlet)
            }
            PeerReply::Pending if !peer.liveness.has_exited() => None,
            _ => Some(None),
        }
    }
}
