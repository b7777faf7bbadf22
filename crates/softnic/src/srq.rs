//! Shared receive queues: receives that the queue pairs of one process take from as messages arrive.
//!
//! They are private to their owner. What a peer may know of a queue pair's receives it cannot know here, because another
//! pair may take them first; so the owner matches, and a peer's SEND is complete when it has (see `qp::shared_receive`).

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use farcall_verbs::{
    Access, AsyncEvent, AsyncEventKind, Error, PostError, RawSrq, RecvWr, Result, Sge, SrqAttr, SrqCap,
    SrqInUse, SrqInitAttr,
};

use crate::events::Events;
use crate::process::Process;
use crate::qp::{MAX_SGE, MAX_WR, QpCore};

/// A posted receive.
#[derive(Clone)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    count: usize,
    sges: [Sge; MAX_SGE],
}

impl Receive {
    fn new(wr: &RecvWr<'_>) -> Self {
        let count = wr.sges().len();
        let mut sges = [Sge::default(); MAX_SGE];
        sges[..count].copy_from_slice(wr.sges());
        Self { wr_id: wr.wr_id, count, sges }
    }

    pub(crate) fn sges(&self) -> &[Sge] {
        &self.sges[..self.count]
    }

    /// Bytes it has room for.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.sges().iter().map(|sge| u64::from(sge.length)).sum()
    }
}

struct Queue {
    receives: VecDeque<Receive>,
    max_wr: u32,
    /// Armed if not 0.
    limit: u32,
    /// Queue pairs with a message that found no receive, and its number, in the order in which they looked.
    starving: Vec<(Weak<QpCore>, u64)>,
}

pub(crate) struct SrqCore {
    process: Arc<Process>,
    events: Arc<Events>,
    number: u32,
    pd: u32,
    max_sge: u32,
    /// One lock for those who post and those who poll: queue pairs of one queue may be polled by several threads.
    queue: Mutex<Queue>,
    /// Counts batches of posted receives, so that who found none knows without the lock whether to look again.
    posts: AtomicU64,
    users: AtomicU32,
}

impl SrqCore {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pd(&self) -> u32 {
        self.pd
    }

    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Batches posted so far.
    pub(crate) fn posts(&self) -> u64 {
        self.posts.load(Ordering::Acquire)
    }

    /// A queue pair begins to use it.
    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// A queue pair is destroyed.
    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// The oldest receive, for a pair's `message`. If there is none, the pair is announced to its owner after the next
    /// post.
    pub(crate) fn take(&self, hungry: &Weak<QpCore>, message: u64) -> Option<Receive> {
        let mut queue = self.lock();
        let taken = queue.receives.pop_front();
        if taken.is_some() {
            self.check_limit(&mut queue);
            return taken;
        }
        if queue.starving.len() == queue.starving.capacity() {
            queue.starving.retain(|(qp, _)| qp.strong_count() > 0);
        }
        queue.starving.push((hungry.clone(), message));
        None
    }

    /// The oldest receive, given to `work` and then removed, if `work` made something of it. Who finds none does not wait.
    pub(crate) fn take_if<R>(&self, work: impl FnOnce(&Receive) -> Option<R>) -> Option<Option<R>> {
        let mut queue = self.lock();
        let made = work(queue.receives.front()?);
        if made.is_some() {
            queue.receives.pop_front();
            self.check_limit(&mut queue);
        }
        Some(made)
    }

    /// Whether memory may take messages.
    pub(crate) fn allows(&self, sges: &[Sge]) -> bool {
        self.process.regions.allows_all(sges, self.pd, Access::LOCAL_WRITE)
    }

    /// Gives back a receive that was not used after all.
    pub(crate) fn put_back(&self, receive: Receive) {
        let mut queue = self.lock();
        queue.receives.push_front(receive);
        self.feed(queue);
    }

    /// After receives were added: makes the owners of pairs whose messages wait look again.
    fn feed(&self, mut queue: MutexGuard<'_, Queue>) {
        self.posts.fetch_add(1, Ordering::Release);
        let starving = std::mem::take(&mut queue.starving);
        drop(queue);
        for (qp, message) in starving {
            if let Some(qp) = qp.upgrade() {
                qp.end_rnr(message);
                qp.look_at_receives();
            }
        }
    }

    /// The limit event comes once, when fewer receives than the limit are left (IBA 10.2.9.3).
    fn check_limit(&self, queue: &mut Queue) {
        if (queue.receives.len() as u64) < u64::from(queue.limit) {
            queue.limit = 0;
            self.events.raise(AsyncEvent { kind: AsyncEventKind::SrqLimitReached, element: self.number });
        }
    }
}

/// The owner's handle.
pub(crate) struct Srq(Arc<SrqCore>);

impl Srq {
    pub(crate) fn create(
        process: &Arc<Process>,
        events: &Arc<Events>,
        pd: u32,
        attr: &SrqInitAttr,
    ) -> Result<Self> {
        const OP: &str = "create_srq";
        if attr.max_sge as usize > MAX_SGE {
            return Err(Error::invalid(OP, format!("max_sge {}; the device has {MAX_SGE}", attr.max_sge)));
        }
        let max_wr = checked_depth(OP, attr.max_wr)?;
        Ok(Self(Arc::new(SrqCore {
            process: process.clone(),
            events: events.clone(),
            number: process.next_srq(),
            pd,
            max_sge: attr.max_sge.max(1),
            queue: Mutex::new(Queue {
                receives: VecDeque::with_capacity(max_wr as usize),
                max_wr,
                limit: 0,
                starving: Vec::new(),
            }),
            posts: AtomicU64::new(0),
            users: AtomicU32::new(0),
        })))
    }

    /// The queue behind a handle, if it is of this provider.
    pub(crate) fn core_of(srq: &dyn RawSrq) -> Result<Arc<SrqCore>> {
        let ours = srq.as_any().downcast_ref::<Self>().map(|srq| srq.0.clone());
        ours.ok_or_else(|| Error::invalid("create_qp", "a shared receive queue of another provider"))
    }

    fn check(&self, queue: &Queue, wr: &RecvWr<'_>) -> Result<()> {
        const OP: &str = "post_srq_recv";
        let core = &*self.0;
        if queue.receives.len() >= queue.max_wr as usize {
            return Err(Error::Exhausted {
                operation: OP,
                what: "places in the shared receive queue",
                limit: queue.max_wr.into(),
                remedy: "poll the completion queues of its queue pairs, or modify it to a larger max_wr",
            });
        }
        if wr.sges().len() > core.max_sge as usize {
            let what = format!("{} elements; max_sge is {}", wr.sges().len(), core.max_sge);
            return Err(Error::invalid(OP, what));
        }
        if !core.allows(wr.sges()) {
            let what = "an element's lkey, bounds or LOCAL_WRITE permission do not allow it";
            return Err(Error::invalid(OP, what));
        }
        Ok(())
    }
}

fn checked_depth(operation: &'static str, max_wr: u32) -> Result<u32> {
    if max_wr > MAX_WR {
        return Err(Error::invalid(operation, format!("max_wr {max_wr}; the device has {MAX_WR}")));
    }
    Ok(max_wr.max(1))
}

impl RawSrq for Srq {
    fn srq_num(&self) -> u32 {
        self.0.number
    }

    fn query(&self) -> Result<SrqCap> {
        let queue = self.0.lock();
        Ok(SrqCap { max_wr: queue.max_wr, max_sge: self.0.max_sge, srq_limit: queue.limit })
    }

    fn modify(&mut self, attr: &SrqAttr) -> Result<()> {
        const OP: &str = "modify_srq";
        let mut queue = self.0.lock();
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
            self.0.check_limit(&mut queue);
        }
        Ok(())
    }

    fn destroy(self: Box<Self>) -> Result<(), SrqInUse> {
        let users = self.0.users.load(Ordering::Relaxed);
        if users == 0 {
            return Ok(());
        }
        let source = Error::InvalidState {
            operation: "destroy_srq",
            object: format!("shared receive queue {}", self.0.number),
            state: format!("in use by {users} queue pairs"),
            remedy: "destroy them first",
        };
        Err(SrqInUse { srq: self, source })
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if let Err(source) = self.0.process.require_here("post_srq_recv") {
            return Err(PostError { posted: 0, source });
        }
        let mut result = Ok(());
        let mut queue = self.0.lock();
        for (posted, wr) in wrs.iter().enumerate() {
            if let Err(source) = self.check(&queue, wr) {
                result = Err(PostError { posted, source });
                break;
            }
            queue.receives.push_back(Receive::new(wr));
        }
        self.0.feed(queue);
        result
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
