//! How a queue pair lets its peer in, and shuts it out: when it fails, is reset or ends.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{self, Ordering};
use std::time::Instant;

use farcall_shm::ring::{ACCEPT, Consumer, GREETING, Kind, RNR_TIMER, UNCHECKED_RECEIVES, VIOLATION};
use farcall_shm::{SharedMem, fence};
use farcall_verbs::{AsyncEvent, AsyncEventKind, QpState, Result, RnrTimer};

use super::QpCore;
use crate::host::CqSlot;
use crate::host::flight::Event;
use crate::host::qp::inbound::{Asker, HAZARD_WAIT, Inbound, wait_until};
use crate::host::qp::receive::{RecvQueue, RecvSide};
use crate::host::qp::{Accept, Connected, RemoteCq};
use crate::host::state::{State, Step};
use crate::life::rendezvous::{Refusal, ReplyBody, RequestBody};
use crate::life::{Lifetime, Peer};

impl QpCore {
    /// Goes to the error state: nothing of the peer is executed any more, what is posted is flushed by later polls.
    /// `why` is told by an event, unless the pair has failed already.
    #[cold]
    pub(crate) fn fail(&self, why: Option<AsyncEventKind>) {
        let fail = || self.make_step(Step::Fail);
        let has_failed = match why {
            Some(kind) => self.events.raise_if(AsyncEvent { kind, element: self.qpn }, fail),
            None => fail(),
        };
        if has_failed {
            self.shut_out_peer();
        }
    }

    /// Fails if the peer has noted that we refused it something: its request has failed, though nobody looked here yet.
    pub(crate) fn notice_violation(&self) {
        if self.transport != Connected::Reliable || !self.state().responds() {
            return;
        }
        let violation = self.inbound.lock().mem.load(VIOLATION, Ordering::Acquire);
        match Kind::from_bits(violation as u8) {
            Some(Kind::AccessNak) => self.fail(Some(AsyncEventKind::QpAccessErr)),
            Some(Kind::InvalidNak) => self.fail(Some(AsyncEventKind::QpReqErr)),
            // What that completes tells it.
            Some(Kind::TooLong | Kind::BadReceive) => self.fail(None),
            _ => {}
        }
    }

    /// As [`QpCore::fail`], by the owner (`modify_qp` to ERR).
    pub(crate) fn enter_error(&self) {
        if self.make_step(Step::Modify(QpState::Err)) {
            self.shut_out_peer();
        }
    }

    /// Completes a failure.
    #[cold]
    fn shut_out_peer(&self) {
        self.close();
        self.make_step(Step::PeerShutOut);
        if self.shares_receives() {
            // What it holds of the shared receives is given back, also if nobody polls.
            self.set_flush_waits(true);
        }
        self.announce_locally(true);
    }

    /// In RTR the peer tells its first message: nobody may poll before there is an event.
    pub(crate) fn want_greeting(&self, wanted: bool) {
        self.inbound.lock().mem.store(GREETING, wanted.into(), Ordering::Release);
    }

    /// How long an initiator that finds no receive here waits (IBA 9.7.5.2.8).
    pub(crate) fn set_rnr_timer(&self, timer: RnrTimer) {
        self.inbound.lock().mem.store(RNR_TIMER, timer.0.into(), Ordering::Relaxed);
    }

    /// The peer places into receives with sequence numbers below `until`, which checks their memory.
    #[cold]
    pub(crate) fn require_checks(&self, until: u64) {
        let mem = &self.inbound.lock().mem;
        // Under the lock: the thread that posts and threads that deregister come here.
        if mem.load(UNCHECKED_RECEIVES, Ordering::Relaxed) < until {
            mem.store(UNCHECKED_RECEIVES, until, Ordering::Release);
        }
    }

    /// A region was revoked: receives that were posted with its key are checked when messages meet them.
    pub(crate) fn region_was_revoked(&self, lkey: u32) {
        let until = self.inbound.lock().posted_with(lkey);
        if until > 0 {
            self.require_checks(until);
        }
    }

    /// Revokes what the peer was granted through this pair.
    pub(crate) fn close(&self) {
        self.inbound.lock().mem.store(ACCEPT, 0, Ordering::Release);
        fence::heavy();
        // What the service thread does for the peer ends before it lets us in; later it finds the pair closed.
        self.host.access_turn.wait();
    }

    /// Lets the peer in, unless the pair has failed.
    pub(crate) fn open(&self, accept: Accept) {
        let inbound = self.inbound.lock();
        // Under the lock: who fails changes the state first and then closes.
        if self.state().responds() {
            inbound.mem.store(ACCEPT, accept.word(), Ordering::Release);
        }
    }

    /// Whether no new access of the peer is admitted.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state.get(), State::Reset | State::Init | State::Err)
    }

    pub(crate) fn raise(&self, kind: AsyncEventKind) {
        self.events.raise(AsyncEvent { kind, element: self.qpn });
    }

    /// Waits until no access of the peer is under way that `concerns` selects by its hazard, but not beyond `deadline`,
    /// for a stopped peer; returns whether there is none.
    pub(crate) fn wait_clear(&self, deadline: Instant, concerns: impl Fn(u64) -> bool) -> bool {
        wait_until(deadline, || self.inbound.lock().is_clear(&concerns))
    }

    /// After `close`: whether no access of the peer is left.
    pub(crate) fn is_quiesced(&self) -> bool {
        self.inbound.lock().is_clear(|hazard| hazard != 0)
    }

    /// Whether the process that was granted the way in has ended.
    pub(crate) fn initiator_has_died(&self) -> bool {
        self.inbound.lock().initiator.as_ref().is_some_and(|life| life.has_ended())
    }

    /// Ends a life, after `close`: whoever is still inside an access is remembered until he leaves or dies.
    pub(crate) fn remember_stopped_access(&self) {
        if !self.wait_clear(Instant::now() + HAZARD_WAIT, |hazard| hazard != 0) {
            tracing::warn!("queue pair {:#x}: its peer is stopped inside an access", self.qpn);
            let domains = (self.pd, self.receives_pd());
            self.host.stopped.remember(self.qpn, domains, self.inbound.lock().past());
        }
    }

    /// How often the pair was reset.
    pub(crate) fn life(&self) -> u32 {
        self.inbound.lock().life
    }

    /// Grants the way in to the peer's queue pair, once: a ring has one producer, which begins at its beginning.
    ///
    /// # Errors
    /// The reason of refusal.
    pub(crate) fn grant_inbound<R>(
        &self,
        asker: Asker,
        transport: Connected,
        client: u64,
        life: impl FnOnce() -> (Option<Arc<Lifetime>>, Option<RemoteCq>),
        send: impl FnOnce(ReplyBody, &[BorrowedFd<'_>]) -> R,
    ) -> Result<R, Refusal> {
        let mut inbound = self.inbound.lock();
        if !self.state().responds() {
            return Err(Refusal::NotReady);
        }
        if self.transport != transport {
            return Err(Refusal::Transport);
        }
        let is_taken = |granted: Asker| granted != asker && !inbound.may_pass(granted, asker, &self.layout);
        if self.dest_qpn() != asker.1 || inbound.granted_to.is_some_and(is_taken) {
            return Err(Refusal::Taken);
        }
        inbound.granted_to = Some(asker);
        inbound.client = Some(client);
        if inbound.initiator.is_none() {
            (inbound.initiator, inbound.creditor) = life();
            if self.shared.is_none()
                && let Some(creditor) = &mut inbound.creditor
            {
                creditor.announce_only();
            }
        }
        let (recv, queue) = self.recv_slot.cq.place(self.recv_slot.bit);
        let mut fds = vec![inbound.segment.fd()];
        fds.extend(queue);
        if recv.event && self.shared.is_some() {
            fds.push(self.host.process.service.waker_fd());
        }
        let ring = (inbound.segment.offset() as u64, inbound.segment.len_bytes() as u64);
        Ok(send(ReplyBody::Connect { pd: self.pd, ring, recv }, &fds))
    }

    /// The peer says that it is ready to receive: what it was not ready for before is asked again.
    pub(crate) fn peer_became_ready(&self) {
        self.stats.peer_became_ready.increment();
        self.peer_is_ready.store(true, Ordering::Relaxed);
        // Who begins to wait looks here after that.
        atomic::fence(Ordering::SeqCst);
        if self.send_waits.load(Ordering::Acquire) {
            self.host.process.service.retry_now(self, &self.this);
        }
    }

    /// Whether the peer said that it is ready, since this was last called.
    pub(crate) fn takes_readiness(&self) -> bool {
        self.peer_is_ready.swap(false, Ordering::AcqRel)
    }

    /// After a wait began: whether the peer became ready before that, so that nobody will say so.
    pub(crate) fn peer_was_ready(&self) -> bool {
        atomic::fence(Ordering::SeqCst);
        self.peer_is_ready.load(Ordering::Relaxed)
    }

    /// Tells the peer that we are ready to receive: it may have asked too early. If its process has not answered yet
    /// who it is, the service thread does it then.
    pub(crate) fn tell_ready(&self) {
        let dst_qpn = self.dest_qpn();
        let mut untold = self.untold.lock();
        let was_untold = untold.is_some();
        if let Ok(Some(peer)) = self.host.process.peer_of(dst_qpn, &mut untold) {
            peer.tell(RequestBody::Ready { dst_qpn });
        }
        let is_new = !was_untold && untold.is_some();
        drop(untold);
        if is_new {
            self.host.process.service.retry_now(self, &self.this);
        }
    }

    /// Whether nobody but `client` has the way in.
    pub(crate) fn is_granted_to(&self, client: u64) -> bool {
        self.inbound.lock().client.is_none_or(|granted| granted == client)
    }

    /// What is accepted from the peer that asks as `client` in its `life`.
    ///
    /// # Errors
    /// The reason of refusal.
    pub(crate) fn accepts_from(&self, client: u64, life: u32) -> Result<Accept, Refusal> {
        let inbound = self.inbound.lock();
        if inbound.client != Some(client) || inbound.granted_to.is_none_or(|asker| asker.2 != life) {
            return Err(Refusal::Taken);
        }
        let accept = Accept::from_word(inbound.mem.load(ACCEPT, Ordering::Acquire));
        if accept.is_open() { Ok(accept) } else { Err(Refusal::NotReady) }
    }

    /// It has reached its peer.
    pub(crate) fn connected(&self, peer: &Peer) {
        self.peer_instance.store(peer.instance, Ordering::Release);
        self.stats.record(Event::Connected as u64, self.dest_qpn().into());
    }

    /// A process has ended: if it was our peer's, the owner looks here. Over an unreliable transport nobody hears of
    /// it.
    pub(crate) fn process_ended(&self, instance: u64) {
        if self.transport == Connected::Reliable && self.peer_instance.load(Ordering::Acquire) == instance {
            self.announce_locally(true);
        }
    }

    /// Begins a new life: new inbound segment, new queues. The peer's mapping of the old segment leads nowhere.
    pub(crate) fn renew(&self) -> Result<(Arc<RecvQueue>, SharedMem)> {
        let life = self.life().wrapping_add(1);
        let queue = Arc::new(RecvQueue::new(&self.layout));
        let fresh = Inbound::create(&self.host.pair_memory, &self.layout, life, queue.clone())?;
        let consumer = Consumer::new(fresh.mem.clone(), &self.layout);
        // SAFETY: called by the owner of the queue pair.
        unsafe { self.recv.revoke(|recv| *recv = RecvSide::new(consumer, queue.clone())) };
        if let Some(shared) = &self.shared {
            shared.renew(self, Consumer::new(fresh.mem.clone(), &self.layout));
        }
        let mem = fresh.mem.clone();
        *self.inbound.lock() = fresh;
        *self.untold.lock() = None;
        Ok((queue, mem))
    }

    /// Leaves the completion queues. Afterwards no poll is inside our receives.
    pub(crate) fn detach(&self) {
        CqSlot::release(&self.send_slot, &self.recv_slot);
        // A poll that began before may still come in by its own copy of the list: it must find nothing to do.
        // SAFETY: called by the owner of the queue pair.
        unsafe { self.send.owner() }.renew(self);
        // SAFETY: as above; visits wait for the resident.
        unsafe { self.recv.revoke(RecvSide::end) };
        if let Some(shared) = &self.shared {
            shared.end(self);
        }
    }
}
