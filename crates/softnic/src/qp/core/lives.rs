//! How a life of a queue pair is granted to a peer, fails and ends.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use farcall_verbs::{AsyncEvent, AsyncEventKind, QpState, Result, RnrTimer};

use super::QpCore;
use crate::fence;
use crate::flight::Event;
use crate::peer::Peer;
use crate::qp::inbound::{Asker, HAZARD_WAIT, Inbound, wait_until};
use crate::qp::place::Place;
use crate::qp::receive::{RecvQueue, RecvSide};
use crate::qp::remote::RemoteCq;
use crate::qp::{Accept, Connected};
use crate::rendezvous::{ReplyBody, has_died, refusal};
use crate::ring::{ACCEPT, Consumer, GREETING, RNR_TIMER};
use crate::shared::SharedMem;

impl QpCore {
    /// Goes to the error state: nothing of the peer is executed any more, what is posted is flushed by later polls.
    #[cold]
    pub(crate) fn enter_error(&self) {
        self.fail(None);
    }

    /// As `enter_error`; `why` is told by an event, unless the pair has failed already.
    #[cold]
    pub(crate) fn fail(&self, why: Option<AsyncEventKind>) {
        if !self.has_failed.swap(true, Ordering::AcqRel) {
            let change = || self.set_state(QpState::Err);
            match why {
                Some(kind) => self.events.raise_with(AsyncEvent { kind, element: self.qpn }, change),
                None => change(),
            }
            self.close();
            if self.shares_receives() {
                // What it holds of the shared receives is given back, also if nobody polls.
                self.set_flush_waits(true);
            }
            self.announce_locally(true);
        }
    }

    /// Goes from one state to another, unless an error was faster.
    pub(in crate::qp) fn change_state(&self, from: QpState, to: QpState) -> bool {
        let changed =
            self.state.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if changed {
            self.stats.record(Event::State as u64, to as u64);
        }
        changed
    }

    /// In RTR the peer tells its first message: nobody may poll before there is an event.
    pub(in crate::qp) fn want_greeting(&self, wanted: bool) {
        self.greeted.store(!wanted, Ordering::Release);
        self.lock_inbound().mem.store(GREETING, wanted.into(), Ordering::Release);
    }

    /// How long an initiator that finds no receive here waits (IBA 9.7.5.2.8).
    pub(in crate::qp) fn set_rnr_timer(&self, timer: RnrTimer) {
        self.lock_inbound().mem.store(RNR_TIMER, timer.0.into(), Ordering::Relaxed);
    }

    /// Goes to the send queue error state: sends are flushed, receives go on (IBA 10.3.1, all transports but RC).
    #[cold]
    pub(in crate::qp) fn enter_send_error(&self) {
        let (from, to) = (QpState::Rts as u32, QpState::Sqe as u32);
        if self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.stats.record(Event::State as u64, to.into());
        }
    }

    /// Revokes what the peer was granted through this pair.
    pub(in crate::qp) fn close(&self) {
        self.lock_inbound().mem.store(ACCEPT, 0, Ordering::Release);
        fence::heavy();
        // What the service thread does for the peer ends before it lets us in; later it finds the pair closed.
        self.process.access_turn.wait();
        self.revoked.store(true, Ordering::Release);
    }

    pub(in crate::qp) fn open(&self, accept: Accept) {
        self.revoked.store(false, Ordering::Release);
        self.lock_inbound().mem.store(ACCEPT, accept.word(), Ordering::Release);
    }

    /// Whether `close` is done: an access of the peer that is not under way now is refused.
    pub(in crate::qp) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    pub(crate) fn raise(&self, kind: AsyncEventKind) {
        self.events.raise(AsyncEvent { kind, element: self.qpn });
    }

    /// Waits until no access of the peer is under way that `concerns` selects by its hazard, but not beyond `deadline`,
    /// for a stopped peer; returns whether there is none.
    pub(crate) fn wait_clear(&self, deadline: Instant, concerns: impl Fn(u64) -> bool) -> bool {
        wait_until(deadline, || self.lock_inbound().is_clear(&concerns))
    }

    /// After `close`: whether no access of the peer is left.
    pub(crate) fn is_quiesced(&self) -> bool {
        self.lock_inbound().is_clear(|hazard| hazard != 0)
    }

    /// Whether the process that was granted the way in has ended.
    pub(in crate::qp) fn initiator_has_died(&self) -> bool {
        self.lock_inbound().initiator.as_ref().is_some_and(|life| has_died(life))
    }

    /// Ends a life, after `close`: whoever is still inside an access is remembered until he leaves or dies.
    pub(in crate::qp) fn leave_behind(&self) {
        if !self.wait_clear(Instant::now() + HAZARD_WAIT, |hazard| hazard != 0) {
            tracing::warn!("queue pair {:#x}: its peer is stopped inside an access", self.qpn);
            let domains = (self.pd, self.receives_pd());
            self.process.past_lives.remember(self.qpn, domains, self.lock_inbound().past());
        }
    }

    /// How often the pair was reset.
    pub(in crate::qp) fn life(&self) -> u32 {
        self.lock_inbound().life
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
        life: impl FnOnce() -> (Option<Arc<OwnedFd>>, Option<RemoteCq>),
        send: impl FnOnce(ReplyBody, &[BorrowedFd<'_>]) -> R,
    ) -> Result<R, u32> {
        let mut inbound = self.lock_inbound();
        if !self.state().responds() {
            return Err(refusal::NOT_READY);
        }
        if self.transport != transport {
            return Err(refusal::TRANSPORT);
        }
        if self.dest_qpn() != asker.1 || inbound.granted_to.is_some_and(|granted| granted != asker) {
            return Err(refusal::TAKEN);
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
        let recv = &self.recv_place;
        let mut fds = vec![inbound.segment.fd(), recv.cq.segment_fd()];
        let waker = recv.cq.waker_fd();
        fds.extend(waker);
        fds.extend(waker.filter(|_| self.shared.is_some()).map(|_| self.process.service.waker_fd()));
        let body = ReplyBody::Connect { pd: self.pd, recv_bit: recv.bit, recv_event: waker.is_some() };
        Ok(send(body, &fds))
    }

    /// Whether nobody but `client` has the way in.
    pub(crate) fn is_granted_to(&self, client: u64) -> bool {
        self.lock_inbound().client.is_none_or(|granted| granted == client)
    }

    /// What is accepted from the peer that asks as `client` in its `life`.
    ///
    /// # Errors
    /// The reason of refusal.
    pub(crate) fn accepts_from(&self, client: u64, life: u32) -> Result<Accept, u32> {
        let inbound = self.lock_inbound();
        if inbound.client != Some(client) || inbound.granted_to.is_none_or(|asker| asker.2 != life) {
            return Err(refusal::TAKEN);
        }
        let accept = Accept::from_word(inbound.mem.load(ACCEPT, Ordering::Acquire));
        if accept.is_open() { Ok(accept) } else { Err(refusal::NOT_READY) }
    }

    /// Where we wait for credit, for the peer.
    pub(in crate::qp) fn send_place(&self) -> &Place {
        &self.send_place
    }

    /// Tells the peer object whose end is to be told to us.
    pub(in crate::qp) fn connected(&self, peer: &Arc<Peer>) {
        peer.attach(self.this.clone());
    }

    /// Begins a new life: new inbound segment, new queues. The peer's mapping of the old segment leads nowhere.
    pub(in crate::qp) fn renew(&self) -> Result<(Arc<RecvQueue>, SharedMem)> {
        let fresh = Inbound::create(&self.layout, self.life().wrapping_add(1))?;
        let queue = Arc::new(RecvQueue::new(&self.layout));
        let consumer = Consumer::new(fresh.mem.clone(), &self.layout);
        // SAFETY: called by the owner of the queue pair.
        unsafe { self.recv.visit(|recv| *recv = RecvSide::new(consumer, queue.clone())) };
        if let Some(shared) = &self.shared {
            shared.renew(self, Consumer::new(fresh.mem.clone(), &self.layout));
        }
        let mem = fresh.mem.clone();
        *self.lock_inbound() = fresh;
        Ok((queue, mem))
    }

    /// Leaves the completion queues. Afterwards no poll is inside our receives.
    pub(in crate::qp) fn detach(&self) {
        Place::release(&self.send_place, &self.recv_place);
        // A poll that began before may still come in by its own copy of the list: it must find nothing to do.
        // SAFETY: called by the owner of the queue pair.
        unsafe { self.send.owner() }.renew(self);
        // SAFETY: as above; visits wait for the resident.
        unsafe { self.recv.visit(RecvSide::end) };
        if let Some(shared) = &self.shared {
            shared.end(self);
        }
    }
}
