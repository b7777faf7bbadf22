//! Completion queues. A queue holds nothing itself: it looks at the queue pairs that its readiness bitmap names and
//! writes their completions straight into the caller's array. So it cannot overrun.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use farcall_shm::fork::{self, DisableInChild, Generation};
use farcall_shm::readiness::{MAX_BITS, Readiness};
use farcall_shm::{Mutex, Segment};
use farcall_verbs::{Error, Notify, Result, Wc};

use super::qp::QpCore;
use crate::life::Waker;
use crate::life::rendezvous::CqPlace;

pub(crate) struct CqCore {
    id: u32,
    memory: Segment,
    readiness: Readiness,
    waker: Option<Arc<Waker>>,
    /// Armed by the owner, and the event not yet taken from the channel.
    expects_event: AtomicBool,
    /// An event came, was not taken, and the queue was armed again: it is there still.
    unclaimed_event: AtomicBool,
    /// A pair in error has failures for when there is nothing else.
    holds_back: AtomicBool,
    attached: Mutex<Vec<Attachment>>,
    /// Changes whenever `attached` does.
    epoch: AtomicU64,
    born: Generation,
}

/// A connected queue pair at a completion queue, and which of its completions come here.
#[derive(Clone)]
pub(crate) struct AttachedPair {
    pub(crate) qp: Arc<QpCore>,
    pub(crate) sends: bool,
    pub(crate) receives: bool,
}

impl AttachedPair {
    pub(crate) fn has_something(&self) -> bool {
        self.qp.has_something(self.sends, self.receives)
    }
}

/// Completions of a [`Source`] before others have their turn.
pub(crate) const COMPLETIONS_A_TURN: usize = 8;

/// Anything else whose completions come to a completion queue: what datagram queue pairs are made of.
pub(crate) trait Source: Send + Sync {
    /// Delivers completions; called by the owner of the completion queue.
    fn poll(&self, wc: &mut [Wc]) -> usize;

    /// Delivers what [`CqCore::hold_back`] was called for.
    fn poll_failures(&self, _wc: &mut [Wc]) -> usize {
        0
    }

    /// Whether a poll may find something; called by the owner of the completion queue.
    fn has_something(&self) -> bool;

    /// Goes on with what peers have given, for an owner who sleeps, and returns whether one turn was not enough; called
    /// by the service thread.
    fn look_after(&self) -> bool {
        false
    }
}

/// What is at a bit of the readiness bitmap.
#[derive(Clone)]
pub(crate) enum Attachment {
    Free,
    Reserved,
    Pair(AttachedPair),
    Source(Arc<dyn Source>),
}

impl CqCore {
    /// `waker`: of its completion channel, if it has one.
    pub(crate) fn new(id: u32, waker: Option<Arc<Waker>>, memory: Segment) -> Arc<Self> {
        let core = Arc::new(Self {
            id,
            readiness: Readiness::create(memory.memory()),
            memory,
            waker,
            expects_event: AtomicBool::new(false),
            unclaimed_event: AtomicBool::new(false),
            holds_back: AtomicBool::new(false),
            attached: Mutex::default(),
            epoch: AtomicU64::new(0),
            born: Generation::current(),
        });
        let weak: Weak<Self> = Arc::downgrade(&core);
        fork::add_queue(weak);
        core
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// What a peer needs to announce something at `bit`: where that is, and the descriptors that go with it.
    pub(crate) fn place(&self, bit: u32) -> (CqPlace, Vec<BorrowedFd<'_>>) {
        let waker = self.waker.as_ref().map(|waker| waker.fd());
        let place = CqPlace { offset: self.memory.offset() as u32, bit, event: waker.is_some() };
        (place, std::iter::once(self.memory.fd()).chain(waker).collect())
    }

    /// Reserves a bit, to be attached or detached.
    pub(crate) fn reserve_bit(&self) -> Result<u32> {
        let mut attached = self.attached.lock();
        let free =
            attached.iter().position(|place| matches!(place, Attachment::Free)).unwrap_or(attached.len());
        if free >= MAX_BITS {
            return Err(Error::Exhausted {
                operation: "create a queue pair",
                what: "places at its completion queue",
                limit: MAX_BITS as u64,
                remedy: "use another completion queue",
            });
        }
        if free == attached.len() {
            attached.push(Attachment::Free);
        }
        attached[free] = Attachment::Reserved;
        Ok(free as u32)
    }

    /// Puts a connected queue pair at a reserved bit.
    pub(crate) fn attach(&self, bit: u32, qp: &Arc<QpCore>, sends: bool, receives: bool) {
        self.put(bit, Attachment::Pair(AttachedPair { qp: qp.clone(), sends, receives }));
    }

    /// Puts anything else at a reserved bit.
    pub(crate) fn attach_source(&self, bit: u32, source: Arc<dyn Source>) {
        self.put(bit, Attachment::Source(source));
    }

    fn put(&self, bit: u32, place: Attachment) {
        let mut attached = self.attached.lock();
        attached[bit as usize] = place;
        self.readiness.promise(bit);
        self.epoch.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn detach(&self, bit: u32) {
        let mut attached = self.attached.lock();
        attached[bit as usize] = Attachment::Free;
        while attached.last().is_some_and(|place| matches!(place, Attachment::Free)) {
            attached.pop();
        }
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// A producer of this process published something for `bit`.
    #[inline]
    pub(crate) fn announce(&self, bit: u32, solicited: bool) {
        self.readiness.announce(bit, solicited, || self.wake());
    }

    /// A producer of this process, or another, published something for `bit`; `is_due` while it was not taken.
    pub(crate) fn announce_due(&self, bit: u32, solicited: bool, is_due: impl Fn() -> bool) {
        self.readiness.announce_due(bit, solicited, is_due, || self.wake());
    }

    /// Changes whenever something is attached or detached.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// What is attached, by bit, and since which epoch.
    ///
    /// # Errors
    /// If the queue came to us by a fork.
    pub(crate) fn attached(&self) -> Result<(u64, Vec<Attachment>)> {
        self.born.require_current("poll_cq", format_args!("completion queue {}", self.id))?;
        let attached = self.attached.lock();
        for (bit, place) in attached.iter().enumerate() {
            // A poll under way when it was attached may have withdrawn its bit without knowing it.
            if matches!(place, Attachment::Pair(_) | Attachment::Source(_)) {
                self.readiness.promise(bit as u32);
            }
        }
        Ok((self.epoch(), attached.clone()))
    }

    fn name(&self) -> String {
        format!("completion queue {}", self.id)
    }

    /// Asks for an event at the next completion (ibv_req_notify_cq(3)).
    ///
    /// # Errors
    /// If it has no completion channel, or came to us by a fork.
    pub(crate) fn request_event(&self, notify: Notify) -> Result<()> {
        if self.waker.is_none() {
            return Err(Error::InvalidState {
                operation: "req_notify_cq",
                object: self.name(),
                state: "without a completion channel".into(),
                remedy: "create it with a channel",
            });
        }
        self.born.require_current("req_notify_cq", format_args!("completion queue {}", self.id))?;
        let was_expected = self.expects_event.swap(true, Ordering::AcqRel);
        if !self.readiness.arm(notify == Notify::Solicited) && was_expected {
            self.unclaimed_event.store(true, Ordering::Release);
        }
        // Again: another thread may have taken the last event between the two.
        self.expects_event.store(true, Ordering::Release);
        Ok(())
    }

    #[inline]
    pub(crate) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    #[cold]
    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// A pair in error has failures for when there is nothing else.
    pub(crate) fn hold_back(&self) {
        self.holds_back.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn holds_back(&self) -> bool {
        self.holds_back.load(Ordering::Relaxed)
    }

    /// Failures come when a poll finds nothing else. A program that ends when it has the successes never meets those
    /// that the end of its peer caused; one that takes a poll not filled for the last (ibv_poll_cq(3)) has an event
    /// for them.
    #[cold]
    pub(crate) fn tell_failures(&self) {
        // Failures count as solicited (IBA 11.4.2.2).
        self.readiness.fire_if_armed(true, || self.wake());
    }

    /// Whether a poll that found nothing else asks for failures. Only the owner's polls set it and take it.
    #[inline]
    pub(crate) fn takes_held_back(&self) -> bool {
        self.holds_back.load(Ordering::Relaxed) && self.holds_back.swap(false, Ordering::Relaxed)
    }

    /// Whether there is something to look after.
    pub(crate) fn is_nudged(&self) -> bool {
        self.readiness.is_nudged()
    }

    /// Goes on with what peers have given to an owner who sleeps; what completes makes his event. For the service
    /// thread.
    pub(crate) fn look_after(&self) {
        let mut has_more = false;
        self.readiness.take_nudges(|bit| {
            let attached = self.attached.lock();
            let place = attached.get(bit as usize).cloned();
            drop(attached);
            match place {
                Some(Attachment::Pair(pair)) => pair.qp.look_after_sends(),
                Some(Attachment::Source(source)) => has_more |= source.look_after(),
                _ => {}
            }
        });
        if has_more {
            self.take_turns();
        }
    }

    /// Looks after everybody who may have something, turn by turn: what they share must not all go to one who floods.
    /// For the service thread.
    #[cold]
    pub(crate) fn take_turns(&self) {
        let mut waiting = Vec::new();
        for (bit, place) in self.attached.lock().iter().enumerate() {
            if let Attachment::Source(source) = place
                && self.readiness.bits(bit / 64) & 1 << (bit % 64) != 0
            {
                waiting.push(source.clone());
            }
        }
        while !waiting.is_empty() {
            waiting.retain(|source| source.look_after());
        }
    }

    /// Whether an event is waiting to be taken from the channel.
    pub(crate) fn has_fired(&self) -> bool {
        self.unclaimed_event.load(Ordering::Acquire)
            || (self.expects_event.load(Ordering::Acquire) && !self.readiness.is_armed())
    }

    /// The event was taken; if there was one from before it was armed again, that one.
    pub(crate) fn acknowledge(&self) {
        if !self.unclaimed_event.swap(false, Ordering::AcqRel) {
            self.expects_event.store(false, Ordering::Release);
        }
    }
}

impl DisableInChild for CqCore {
    fn disable_in_child(&self) {
        // Whoever polls looks at the list again, and finds whose it is.
        self.epoch.fetch_add(1 << 32, Ordering::Relaxed);
    }
}
