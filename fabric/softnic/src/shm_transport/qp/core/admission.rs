//! Access of the peer to a queue pair: how it is granted, and how it is revoked on failure, reset and destruction.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{self, Ordering};
use std::time::Instant;

use farcall_shm::fence;
use farcall_shm::ring::{ACCEPT, GREETING, Kind, RNR_TIMER, UNCHECKED_RECEIVES, VIOLATION};
use farcall_verbs::{AsyncEvent, AsyncEventKind, QpState, Result, RnrTimer};

use super::QpCore;
use crate::process::rendezvous::{Refusal, ReplyBody, RequestBody};
use crate::process::{Peer, ProcessLiveness};
use crate::shm_transport::flight::Event;
use crate::shm_transport::qp::inbound::{HAZARD_WAIT, PeerQpId, wait_until};
use crate::shm_transport::qp::{Accept, Connected, RemoteCq};
use crate::shm_transport::state::{State, StateEvent};

impl QpCore {
    /// Enters the error state: no request of the peer is executed any more, and later polls flush the posted requests.
    /// `why` is raised as an event unless the queue pair has failed already.
    #[cold]
    pub(crate) fn fail(&self, why: Option<AsyncEventKind>) {
        let fail = || self.apply_event(StateEvent::Fail);
        let has_failed = match why {
            Some(kind) => self.events.raise_if(AsyncEvent { kind, element: self.qpn }, fail),
            None => fail(),
        };
        if has_failed {
            self.revoke_peer_access();
        }
    }

    /// Fails the queue pair if the peer has recorded a violation: the peer's request has failed, although no thread of
    /// this process has polled since.
    pub(crate) fn check_violation(&self) {
        if self.transport != Connected::Reliable || !self.state().responds() {
            return;
        }
        let violation = self.inbound.lock().mem.load(VIOLATION, Ordering::Acquire);
        match Kind::from_bits(violation as u8) {
            Some(Kind::AccessNak) => self.fail(Some(AsyncEventKind::QpAccessErr)),
            Some(Kind::InvalidNak) => self.fail(Some(AsyncEventKind::QpReqErr)),
            // The completion of the receive reports the error.
            Some(Kind::TooLong | Kind::BadReceive) => self.fail(None),
            _ => {}
        }
    }

    /// Enters the error state on behalf of the application thread (`modify_qp` to ERR).
    pub(crate) fn enter_error(&self) {
        if self.apply_event(StateEvent::Modify(QpState::Err)) {
            self.revoke_peer_access();
        }
    }

    /// Completes a transition to the error state by revoking the peer's access.
    #[cold]
    fn revoke_peer_access(&self) {
        self.close();
        self.apply_event(StateEvent::PeerAccessRevoked);
        if self.shares_receives {
            // The shared receives that it holds must be released even if no thread polls.
            self.set_flush_waits(true);
        }
        self.announce_locally(true);
    }

    /// Requests a notification of the first message in RTR. The application may wait for that event without polling.
    pub(crate) fn set_comm_est_wanted(&self, wanted: bool) {
        self.inbound.lock().mem.store(GREETING, wanted.into(), Ordering::Release);
    }

    /// Sets how long an initiator waits that finds no receive here (IBA 9.7.5.2.8).
    pub(crate) fn set_rnr_timer(&self, timer: RnrTimer) {
        self.inbound.lock().mem.store(RNR_TIMER, timer.0.into(), Ordering::Relaxed);
    }

    /// Requires the peer to check the memory of receives with sequence numbers below `until` before it writes to them.
    #[cold]
    pub(crate) fn require_checks(&self, until: u64) {
        let mem = &self.inbound.lock().mem;
        // Under the lock, because the posting thread and deregistering threads call this concurrently.
        if mem.load(UNCHECKED_RECEIVES, Ordering::Relaxed) < until {
            mem.store(UNCHECKED_RECEIVES, until, Ordering::Release);
        }
    }

    /// Called when a region was revoked: receives posted with its key are checked when a message arrives for them.
    pub(crate) fn region_was_revoked(&self, lkey: u32) {
        let until = self.inbound.lock().posted_with(lkey);
        if until > 0 {
            self.require_checks(until);
        }
    }

    /// Revokes all access that the peer was granted through this queue pair.
    pub(crate) fn close(&self) {
        self.inbound.lock().mem.store(ACCEPT, 0, Ordering::Release);
        fence::heavy();
        // Waits for an access that the service thread executes for the peer. Later ones find the queue pair closed.
        self.shm.access_turn.wait();
    }

    /// Opens the queue pair to its peer, unless it has failed.
    pub(crate) fn open(&self, accept: Accept) {
        let inbound = self.inbound.lock();
        // Checked under the lock: a thread that fails the queue pair changes the state first and then closes it.
        if self.state().responds() {
            inbound.mem.store(ACCEPT, accept.word(), Ordering::Release);
        }
    }

    /// Returns whether no new access of the peer is admitted.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state.get(), State::Reset | State::Init | State::Err)
    }

    pub(crate) fn raise(&self, kind: AsyncEventKind) {
        self.events.raise(AsyncEvent { kind, element: self.qpn });
    }

    /// Waits until no access of the peer whose hazard `concerns` selects is in progress. Returns `false` if one still
    /// is at `deadline`, because the peer is stopped.
    pub(crate) fn wait_until_no_access(&self, deadline: Instant, concerns: impl Fn(u64) -> bool) -> bool {
        wait_until(deadline, || self.inbound.lock().has_no_access(&concerns))
    }

    /// Returns, after `close`, whether no access of the peer is in progress.
    pub(crate) fn is_quiesced(&self) -> bool {
        self.inbound.lock().has_no_access(|hazard| hazard != 0)
    }

    /// Returns whether the process that was granted access has exited.
    pub(crate) fn initiator_has_exited(&self) -> bool {
        self.inbound.lock().initiator.as_ref().is_some_and(|process| process.has_exited())
    }

    /// Ends an incarnation, after `close`. If the peer is stopped inside an access, stores the access until the peer
    /// ends it or exits.
    pub(crate) fn record_suspended_access(&self) {
        if !self.wait_until_no_access(Instant::now() + HAZARD_WAIT, |hazard| hazard != 0) {
            tracing::warn!("queue pair {:#x}: its peer is stopped inside an access", self.qpn);
            let domains = (self.pd, self.receives_pd);
            self.shm.suspended.record(self.qpn, domains, self.inbound.lock().revoked());
        }
    }

    /// Returns the incarnation: the number of resets.
    pub(crate) fn incarnation(&self) -> u32 {
        self.inbound.lock().incarnation
    }

    /// Grants the peer's queue pair access to the inbound segment. It is granted once per incarnation, because a ring
    /// has one producer, which starts at its first slot.
    ///
    /// # Errors
    /// Returns the reason of refusal.
    pub(crate) fn grant_inbound<R>(
        &self,
        peer: PeerQpId,
        transport: Connected,
        client: u64,
        initiator: impl FnOnce() -> (Option<Arc<ProcessLiveness>>, Option<RemoteCq>),
        send: impl FnOnce(ReplyBody, &[BorrowedFd<'_>]) -> R,
    ) -> Result<R, Refusal> {
        let mut inbound = self.inbound.lock();
        if !self.state().responds() {
            return Err(Refusal::NotReady);
        }
        if self.transport != transport {
            return Err(Refusal::Transport);
        }
        let is_taken =
            |granted: PeerQpId| granted != peer && !inbound.may_replace(granted, peer, &self.layout);
        if self.dest_qpn() != peer.1 || inbound.granted_to.is_some_and(is_taken) {
            return Err(Refusal::Taken);
        }
        inbound.granted_to = Some(peer);
        inbound.client = Some(client);
        if inbound.initiator.is_none() {
            (inbound.initiator, inbound.credit_waiter) = initiator();
            if !self.shares_receives
                && let Some(credit_waiter) = &mut inbound.credit_waiter
            {
                credit_waiter.announce_only();
            }
        }
        let (recv, queue) = self.recv_slot.cq.location(self.recv_slot.bit);
        let mut fds = vec![inbound.segment.fd()];
        fds.extend(queue);
        if recv.event && self.shares_receives {
            fds.push(self.shm.process.service.waker_fd());
        }
        let ring = (inbound.segment.offset() as u64, inbound.segment.len_bytes() as u64);
        Ok(send(ReplyBody::Connect { pd: self.pd, ring, recv }, &fds))
    }

    /// Handles the peer's message that it is ready to receive: a connect request that it refused before is repeated.
    pub(crate) fn on_peer_ready(&self) {
        self.stats.peer_became_ready.increment();
        self.peer_is_ready.store(true, Ordering::Relaxed);
        // A thread that begins to wait reads `peer_is_ready` after setting `send_waits`.
        atomic::fence(Ordering::SeqCst);
        if self.send_waits.load(Ordering::Acquire) {
            self.shm.process.service.schedule_now(self.work.clone());
        }
    }

    /// Returns whether the peer has become ready since the last call.
    pub(crate) fn take_peer_ready(&self) -> bool {
        self.peer_is_ready.swap(false, Ordering::AcqRel)
    }

    /// Returns, after a wait began, whether the peer became ready before it; no further notification would arrive.
    pub(crate) fn peer_was_ready(&self) -> bool {
        atomic::fence(Ordering::SeqCst);
        self.peer_is_ready.load(Ordering::Relaxed)
    }

    /// Notifies the peer that this queue pair is ready to receive, because its connect request may have come too early.
    /// If the handshake with its process has not completed, the service thread sends the notification afterwards.
    pub(crate) fn notify_ready(&self) {
        let dst_qpn = self.dest_qpn();
        let mut ready_handshake = self.ready_handshake.lock();
        let was_pending = ready_handshake.is_some();
        if let Ok(Some(peer)) = self.shm.process.peer_of(dst_qpn, &mut ready_handshake) {
            peer.send_oneway(RequestBody::Ready { dst_qpn });
        }
        let is_new = !was_pending && ready_handshake.is_some();
        drop(ready_handshake);
        if is_new {
            self.shm.process.service.schedule_now(self.work.clone());
        }
    }

    /// Returns whether no client other than `client` has been granted access.
    pub(crate) fn is_granted_to(&self, client: u64) -> bool {
        self.inbound.lock().client.is_none_or(|granted| granted == client)
    }

    /// Returns what the queue pair accepts from `client`, whose queue pair is in this incarnation.
    ///
    /// # Errors
    /// Returns the reason of refusal.
    pub(crate) fn accepts_from(&self, client: u64, incarnation: u32) -> Result<Accept, Refusal> {
        let inbound = self.inbound.lock();
        if inbound.client != Some(client) || inbound.granted_to.is_none_or(|peer| peer.2 != incarnation) {
            return Err(Refusal::Taken);
        }
        let accept = Accept::from_word(inbound.mem.load(ACCEPT, Ordering::Acquire));
        if accept.is_open() { Ok(accept) } else { Err(Refusal::NotReady) }
    }

    /// Records that the connection to the peer was established.
    pub(crate) fn connected(&self, peer: &Peer) {
        self.peer_instance.store(peer.instance, Ordering::Release);
        self.stats.record(Event::Connected as u64, self.dest_qpn().into());
    }

    /// Called when a process has exited: if it was the peer's, the queue pair is announced to its completion queues. An
    /// unreliable transport does not detect the loss of its peer.
    pub(crate) fn on_process_exit(&self, instance: u64) {
        if self.transport == Connected::Reliable && self.peer_instance.load(Ordering::Acquire) == instance {
            self.announce_locally(true);
        }
    }
}
