//! Completion queues. A completion queue stores no completions. A poll visits the queue pairs named by its readiness
//! bitmap and writes their completions directly into the caller's array, so the queue cannot overrun.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use farcall_shm::fork::{self, DisableInChild, Generation};
use farcall_shm::readiness::{MAX_BITS, Readiness};
use farcall_shm::{Mutex, Segment};
use farcall_verbs::{Error, Notify, Result, Wc};

use crate::process::Waker;
use crate::process::rendezvous::CqLocation;

pub(crate) struct CqCore {
    id: u32,
    memory: Segment,
    readiness: Readiness,
    waker: Option<Arc<Waker>>,
    /// `true` from arming until the event is taken from the channel.
    expects_event: AtomicBool,
    /// `true` if the queue was armed again before its previous event was taken; that event is still pending.
    unclaimed_event: AtomicBool,
    /// `true` if a queue pair in error has failures that are delivered when no other completion is available.
    has_deferred_failures: AtomicBool,
    attached: Mutex<Vec<Attachment>>,
    /// Incremented whenever `attached` changes.
    epoch: AtomicU64,
    fork_generation: Generation,
}

/// A connected queue pair, as the service thread uses it. The handle of the completion queue polls the concrete type.
pub(crate) trait ServicedPair: Any + Send + Sync {
    /// Continues waiting requests while the application thread sleeps. Called by the service thread.
    fn service_sends(&self);
}

/// A connected queue pair attached to a completion queue, and the kinds of completion that it delivers there.
#[derive(Clone)]
pub(crate) struct AttachedPair {
    pub(crate) qp: Arc<dyn ServicedPair>,
    pub(crate) sends: bool,
    pub(crate) receives: bool,
}

/// Maximum number of completions of a [`Source`] before other sources are polled.
pub(crate) const COMPLETIONS_PER_QUANTUM: usize = 8;

/// Any other producer of completions at a completion queue: the components of datagram queue pairs.
pub(crate) trait Source: Send + Sync {
    /// Delivers completions. Called by the polling thread of the completion queue.
    fn poll(&self, wc: &mut [Wc]) -> usize;

    /// Delivers the failures for which [`CqCore::defer_failures`] was called.
    fn poll_failures(&self, _wc: &mut [Wc]) -> usize {
        0
    }

    /// Returns whether a poll may find a completion. Called by the polling thread of the completion queue.
    fn may_have_completions(&self) -> bool;

    /// Processes deliveries of peers while the application thread sleeps. Returns whether more work remains. Called by
    /// the service thread.
    fn service_for_sleeper(&self) -> bool {
        false
    }
}

/// Occupant of a bit of the readiness bitmap.
#[derive(Clone)]
pub(crate) enum Attachment {
    Free,
    Reserved,
    Pair(AttachedPair),
    Source(Arc<dyn Source>),
}

impl CqCore {
    /// Creates a completion queue. `waker` belongs to its completion channel; `None` if it has no channel.
    pub(crate) fn new(id: u32, waker: Option<Arc<Waker>>, memory: Segment) -> Arc<Self> {
        let core = Arc::new(Self {
            id,
            readiness: Readiness::create(memory.memory()),
            memory,
            waker,
            expects_event: AtomicBool::new(false),
            unclaimed_event: AtomicBool::new(false),
            has_deferred_failures: AtomicBool::new(false),
            attached: Mutex::default(),
            epoch: AtomicU64::new(0),
            fork_generation: Generation::current(),
        });
        let weak: Weak<Self> = Arc::downgrade(&core);
        fork::add_queue(weak);
        core
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns what a peer needs to announce `bit`: its location, and the file descriptors of the memory and the event.
    pub(crate) fn location(&self, bit: u32) -> (CqLocation, Vec<BorrowedFd<'_>>) {
        let waker = self.waker.as_ref().map(|waker| waker.fd());
        let location = CqLocation { offset: self.memory.offset() as u32, bit, event: waker.is_some() };
        (location, std::iter::once(self.memory.fd()).chain(waker).collect())
    }

    /// Reserves a bit. The caller then attaches a producer to it, or releases it with [`detach`](Self::detach).
    pub(crate) fn reserve_bit(&self) -> Result<u32> {
        let mut attached = self.attached.lock();
        let free = attached
            .iter()
            .position(|attachment| matches!(attachment, Attachment::Free))
            .unwrap_or(attached.len());
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

    /// Attaches a connected queue pair to a reserved bit.
    pub(crate) fn attach(&self, bit: u32, qp: Arc<dyn ServicedPair>, sends: bool, receives: bool) {
        self.put(bit, Attachment::Pair(AttachedPair { qp, sends, receives }));
    }

    /// Attaches another producer to a reserved bit.
    pub(crate) fn attach_source(&self, bit: u32, source: Arc<dyn Source>) {
        self.put(bit, Attachment::Source(source));
    }

    fn put(&self, bit: u32, attachment: Attachment) {
        let mut attached = self.attached.lock();
        attached[bit as usize] = attachment;
        self.readiness.set_polled(bit);
        self.epoch.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn detach(&self, bit: u32) {
        let mut attached = self.attached.lock();
        attached[bit as usize] = Attachment::Free;
        while attached.last().is_some_and(|attachment| matches!(attachment, Attachment::Free)) {
            attached.pop();
        }
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Announces that a producer of this process published a completion for `bit`.
    #[inline]
    pub(crate) fn announce(&self, bit: u32, solicited: bool) {
        self.readiness.announce(bit, solicited, || self.wake());
    }

    /// Announces that a producer of any process published a completion for `bit`. `is_due` returns whether it has not
    /// been consumed yet.
    pub(crate) fn announce_due(&self, bit: u32, solicited: bool, is_due: impl Fn() -> bool) {
        self.readiness.announce_due(bit, solicited, is_due, || self.wake());
    }

    /// Returns a counter that changes whenever a producer is attached or detached.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the current epoch and the occupants of all bits.
    ///
    /// # Errors
    /// Returns an error if the queue was inherited through a fork.
    pub(crate) fn attached(&self) -> Result<(u64, Vec<Attachment>)> {
        self.fork_generation.require_current("poll_cq", format_args!("completion queue {}", self.id))?;
        let attached = self.attached.lock();
        for (bit, attachment) in attached.iter().enumerate() {
            // A poll that was in progress at the attachment may have cleared the bit without visiting the producer.
            if matches!(attachment, Attachment::Pair(_) | Attachment::Source(_)) {
                self.readiness.set_polled(bit as u32);
            }
        }
        Ok((self.epoch(), attached.clone()))
    }

    fn name(&self) -> String {
        format!("completion queue {}", self.id)
    }

    /// Requests an event at the next completion (ibv_req_notify_cq(3)).
    ///
    /// # Errors
    /// Returns an error if the queue has no completion channel or was inherited through a fork.
    pub(crate) fn request_event(&self, notify: Notify) -> Result<()> {
        if self.waker.is_none() {
            return Err(Error::InvalidState {
                operation: "req_notify_cq",
                object: self.name(),
                state: "without a completion channel".into(),
                remedy: "create it with a channel",
            });
        }
        self.fork_generation
            .require_current("req_notify_cq", format_args!("completion queue {}", self.id))?;
        let was_expected = self.expects_event.swap(true, Ordering::AcqRel);
        if !self.readiness.arm(notify == Notify::Solicited) && was_expected {
            self.unclaimed_event.store(true, Ordering::Release);
        }
        // Repeated because another thread may have taken the previous event after the first store.
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

    /// Records that a queue pair in error has failures that are delivered when no other completion is available.
    pub(crate) fn defer_failures(&self) {
        self.has_deferred_failures.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn has_deferred_failures(&self) -> bool {
        self.has_deferred_failures.load(Ordering::Relaxed)
    }

    /// Raises the event for deferred failures.
    ///
    /// Failures are delivered by a poll that finds no other completion. A program that stops polling after its last
    /// success therefore never receives the failures caused by its peer's exit. A program that treats a partly filled
    /// poll as the last one (ibv_poll_cq(3)) receives an event for the failures.
    #[cold]
    pub(crate) fn deliver_deferred_failures(&self) {
        // Failures count as solicited (IBA 11.4.2.2).
        self.readiness.wake_if_armed(true, || self.wake());
    }

    /// Returns whether a poll that found no other completion must fetch deferred failures, and clears the mark. Only
    /// the application thread's polls set and clear it.
    #[inline]
    pub(crate) fn take_deferred_failures(&self) -> bool {
        self.has_deferred_failures.load(Ordering::Relaxed)
            && self.has_deferred_failures.swap(false, Ordering::Relaxed)
    }

    /// Returns whether a peer has requested service for this queue.
    pub(crate) fn has_service_request(&self) -> bool {
        self.readiness.has_service_request()
    }

    /// Processes deliveries of peers while the application thread sleeps. The completions that result raise the event.
    /// Called by the service thread.
    pub(crate) fn service_for_sleeper(&self) {
        let mut has_more = false;
        self.readiness.take_service_requests(|bit| {
            let attached = self.attached.lock();
            let attachment = attached.get(bit as usize).cloned();
            drop(attached);
            match attachment {
                Some(Attachment::Pair(pair)) => pair.qp.service_sends(),
                Some(Attachment::Source(source)) => has_more |= source.service_for_sleeper(),
                _ => {}
            }
        });
        if has_more {
            self.run_service_quantum();
        }
    }

    /// Services all sources that may have deliveries, in round-robin order, so that one flooding sender cannot take all
    /// shared receives. Called by the service thread.
    #[cold]
    pub(crate) fn run_service_quantum(&self) {
        let mut waiting = Vec::new();
        for (bit, attachment) in self.attached.lock().iter().enumerate() {
            if let Attachment::Source(source) = attachment
                && self.readiness.bits(bit / 64) & 1 << (bit % 64) != 0
            {
                waiting.push(source.clone());
            }
        }
        while !waiting.is_empty() {
            waiting.retain(|source| source.service_for_sleeper());
        }
    }

    /// Returns whether an event is waiting in the channel.
    pub(crate) fn has_fired(&self) -> bool {
        self.unclaimed_event.load(Ordering::Acquire)
            || (self.expects_event.load(Ordering::Acquire) && !self.readiness.is_armed())
    }

    /// Records that one event was taken: the one from before the last arming if it is still pending, otherwise the
    /// current one.
    pub(crate) fn acknowledge(&self) {
        if !self.unclaimed_event.swap(false, Ordering::AcqRel) {
            self.expects_event.store(false, Ordering::Release);
        }
    }
}

impl DisableInChild for CqCore {
    fn disable_in_child(&self) {
        // The changed epoch makes the next poll read the list, which fails with an error that names the process it
        // belongs to.
        self.epoch.fetch_add(1 << 32, Ordering::Relaxed);
    }
}
