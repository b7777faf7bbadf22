//! Shared receive queues: receives that the queue pairs of one process consume as messages arrive.
//!
//! They are private to their process. The receives of an ordinary queue pair are advertised to its peer; shared
//! receives cannot be, because another queue pair may consume them first. The receiver therefore matches messages with
//! receives, and a peer's SEND completes when the receiver has matched it (see `qp::shared_receive`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

use farcall_shm::Mutex;
use farcall_verbs::{
    Access, AsyncEvent, AsyncEventKind, Error, PostError, RecvRules, RecvWr, Result, Sge, SrqAttr, SrqCap,
    SrqInitAttr,
};

use super::core::ShmCore;
use super::events::Events;
use super::qp::{MAX_SGE, MAX_WR};

/// A posted receive.
#[derive(Clone)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    count: usize,
    sges: [Sge; MAX_SGE],
}

impl Receive {
    pub(crate) fn new(wr: &RecvWr<'_>) -> Self {
        Self::of(wr.wr_id, wr.sges())
    }

    /// Creates a receive; `elements` has at most [`MAX_SGE`] entries.
    pub(crate) fn of(wr_id: u64, elements: &[Sge]) -> Self {
        let count = elements.len();
        let mut sges = [Sge::default(); MAX_SGE];
        sges[..count].copy_from_slice(elements);
        Self { wr_id, count, sges }
    }

    pub(crate) fn sges(&self) -> &[Sge] {
        &self.sges[..self.count]
    }

    /// Returns the capacity in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.sges().iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// A queue pair with a message for which the shared receive queue had no receive.
pub(crate) trait ReceiveWaiter: Send + Sync {
    /// Called after a receive was posted; `message` is the number of the message.
    fn on_receive_posted(&self, message: u64);
}

struct Queue {
    receives: VecDeque<Receive>,
    max_wr: u32,
    /// SRQ limit; armed if it is not 0.
    limit: u32,
    /// Queue pairs with a message that found no receive, and the number of that message, in the order of the attempts.
    waiting_for_receive: Vec<(Weak<dyn ReceiveWaiter>, u64)>,
}

pub(crate) struct SrqCore {
    shm: Arc<ShmCore>,
    events: Arc<Events>,
    pub(crate) number: u32,
    pub(crate) pd: u32,
    pub(crate) max_sge: u32,
    /// Lock shared by posting and polling threads; several threads may poll queue pairs of one shared receive queue.
    queue: Mutex<Queue>,
    /// Number of batches of posted receives. A queue pair that found no receive reads it without the lock to decide
    /// whether to try again.
    posts: AtomicU64,
    users: AtomicU32,
}

impl SrqCore {
    /// # Errors
    /// Returns an error if a size exceeds the limits of the device.
    pub(crate) fn new(
        shm: &Arc<ShmCore>,
        events: &Arc<Events>,
        pd: u32,
        attr: &SrqInitAttr,
    ) -> Result<Arc<Self>> {
        const OP: &str = "create_srq";
        if attr.max_sge as usize > MAX_SGE {
            return Err(Error::invalid(OP, format!("max_sge {}; the device has {MAX_SGE}", attr.max_sge)));
        }
        let max_wr = checked_depth(OP, attr.max_wr)?;
        Ok(Arc::new(Self {
            shm: shm.clone(),
            events: events.clone(),
            number: shm.process.next_number(),
            pd,
            max_sge: attr.max_sge.max(1),
            queue: Mutex::new(Queue {
                receives: VecDeque::with_capacity(max_wr as usize),
                max_wr,
                limit: 0,
                waiting_for_receive: Vec::new(),
            }),
            posts: AtomicU64::new(0),
            users: AtomicU32::new(0),
        }))
    }

    /// Returns the number of batches posted so far.
    pub(crate) fn posts(&self) -> u64 {
        self.posts.load(Ordering::Acquire)
    }

    /// Records that a queue pair uses this shared receive queue.
    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a queue pair that used it is destroyed.
    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the oldest receive, for `message` of a queue pair. If there is none, the queue pair is announced to its
    /// completion queue after the next post.
    pub(crate) fn take(&self, waiter: &Weak<dyn ReceiveWaiter>, message: u64) -> Option<Receive> {
        let mut queue = self.queue.lock();
        let taken = queue.receives.pop_front();
        if taken.is_some() {
            self.check_limit(&mut queue);
            return taken;
        }
        if queue.waiting_for_receive.len() == queue.waiting_for_receive.capacity() {
            queue.waiting_for_receive.retain(|(qp, _)| qp.strong_count() > 0);
        }
        queue.waiting_for_receive.push((waiter.clone(), message));
        None
    }

    /// Passes the oldest receive to `work`, and removes it if `work` returns a value. If there is no receive, the queue
    /// pair is not registered as waiting.
    pub(crate) fn take_if<R>(&self, work: impl FnOnce(&Receive) -> Option<R>) -> Option<Option<R>> {
        let mut queue = self.queue.lock();
        let made = work(queue.receives.front()?);
        if made.is_some() {
            queue.receives.pop_front();
            self.check_limit(&mut queue);
        }
        Some(made)
    }

    /// Returns whether the first bytes of the receive's scatter elements may take a message of `len_bytes`.
    pub(crate) fn allows(&self, sges: &[Sge], len_bytes: u32) -> bool {
        self.shm.process.regions.allows_first(sges, len_bytes.into(), self.pd, Access::LOCAL_WRITE)
    }

    /// Returns an unused receive to the front of the queue.
    pub(crate) fn put_back(&self, receive: Receive) {
        let mut queue = self.queue.lock();
        queue.receives.push_front(receive);
        self.notify_waiters(queue);
    }

    /// Called after receives were added: announces the queue pairs whose messages wait for one.
    fn notify_waiters(&self, mut queue: MutexGuard<'_, Queue>) {
        self.posts.fetch_add(1, Ordering::Release);
        let waiting_for_receive = std::mem::take(&mut queue.waiting_for_receive);
        drop(queue);
        for (qp, message) in waiting_for_receive {
            if let Some(qp) = qp.upgrade() {
                qp.on_receive_posted(message);
            }
        }
    }

    /// Raises the limit event once, when fewer receives than the limit are left (IBA 10.2.9.3).
    fn check_limit(&self, queue: &mut Queue) {
        if (queue.receives.len() as u64) < u64::from(queue.limit) {
            queue.limit = 0;
            self.events.raise(AsyncEvent { kind: AsyncEventKind::SrqLimitReached, element: self.number });
        }
    }

    /// Returns the number of queue pairs that use it.
    pub(crate) fn users(&self) -> u32 {
        self.users.load(Ordering::Relaxed)
    }

    pub(crate) fn cap(&self) -> SrqCap {
        let queue = self.queue.lock();
        SrqCap { max_wr: queue.max_wr, max_sge: self.max_sge, srq_limit: queue.limit }
    }

    pub(crate) fn modify(&self, attr: &SrqAttr) -> Result<()> {
        const OP: &str = "modify_srq";
        let mut queue = self.queue.lock();
        let max_wr = attr.max_wr.map_or(Ok(queue.max_wr), |max_wr| checked_depth(OP, max_wr))?;
        if queue.receives.len() > max_wr as usize {
            let what = format!("max_wr {max_wr}; {} receives are posted", queue.receives.len());
            return Err(Error::invalid(OP, what));
        }
        let limit = attr.srq_limit.unwrap_or(queue.limit);
        if limit > max_wr {
            return Err(Error::invalid(OP, format!("srq_limit {limit}; the queue holds {max_wr} receives")));
        }
        let missing = (max_wr as usize).saturating_sub(queue.receives.len());
        queue.receives.reserve(missing);
        queue.max_wr = max_wr;
        if attr.srq_limit.is_some() {
            queue.limit = limit;
            self.check_limit(&mut queue);
        }
        Ok(())
    }

    fn check(&self, queue: &Queue, wr: &RecvWr<'_>) -> Result<()> {
        let rules = RecvRules::of_srq(queue.max_wr, self.max_sge);
        rules.check(wr, queue.receives.len() < queue.max_wr as usize)
    }

    pub(crate) fn post(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if let Err(source) = self.shm.process.require_here("post_srq_recv") {
            return Err(PostError::new(0, source));
        }
        let mut queue = self.queue.lock();
        let result = PostError::in_order(wrs, |_, wr| {
            self.check(&queue, wr)?;
            queue.receives.push_back(Receive::new(wr));
            Ok(())
        });
        self.notify_waiters(queue);
        result
    }
}

fn checked_depth(operation: &'static str, max_wr: u32) -> Result<u32> {
    if max_wr > MAX_WR {
        return Err(Error::invalid(operation, format!("max_wr {max_wr}; the device has {MAX_WR}")));
    }
    Ok(max_wr.max(1))
}
