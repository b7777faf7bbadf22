//! A session: threads submit requests to it, and it plans, posts and completes them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use farcall_link::bootstrap::QpInfo;
use farcall_link::{Connection, Nic, Region, RemoteRegion, Transport};
use farcall_verbs::{Access, Error, Wc, with_sources};

use crate::combining_queue::{CombinerGuard, CombiningQueue};
use crate::grants::Grants;
use crate::merging::{MergeQueue, Span, Work};
use crate::poller::SharedCq;
use crate::post_scheduler::{Batch, Message, PostScheduler};
use crate::request::{AttachedRegion, Entry, Local};
use crate::session_qp::{CompletedWork, SessionQp, WorkStatus};
use crate::{
    Admission, Attached, Config, Counts, Direction, Handler, Refusal, Request, SessionEnd, SubmitError,
    TransferCompletion, TransferFailure,
};

/// Maximum number of batches that a thread posts before it returns, as long as work requests are in flight: the poller
/// plans again when they end.
const BATCHES_AT_ONCE: usize = 4;

/// Maximum length of a request in bytes: the maximum message length that every device supports.
const REQUEST_MAX_BYTES: u64 = 1 << 30;

/// State of a session that its handles and its poller share.
pub(crate) struct Shared<H: Handler> {
    nic: Nic,
    config: Config,
    /// Number of the session in this process.
    serial: u64,
    messages: CombiningQueue<Message<H::Context>>,
    /// Locked by the holder of the combiner role, and to read the counters. Hence the lock is rarely contended.
    scheduler: Mutex<PostScheduler<H::Context>>,
    qps: Box<[Mutex<SessionQp<H::Context>>]>,
    // Declared after the queue pairs, which must be dropped first.
    _cq: SharedCq,
    pool: Arc<Region>,
    grants: Grants,
    is_connected: OnceLock<()>,
    /// Number of accepted requests that have not completed.
    outstanding: AtomicUsize,
    end: OnceLock<SessionEnd>,
    handler: H,
}

/// The combiner role of a session.
pub(crate) type SessionCombiner<'a, H> = CombinerGuard<'a, Message<<H as Handler>::Context>>;

/// Locks `mutex`, even after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Poisoning is ignored: after a panic, the data is consistent, or its next use panics again.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<H: Handler> Shared<H> {
    pub fn new(
        nic: &Nic,
        cq: &SharedCq,
        config: Config,
        admission: Box<dyn Admission>,
        handler: H,
    ) -> Result<Self, Error> {
        static SESSIONS: AtomicU64 = AtomicU64::new(0);
        config.check()?;
        let pool = Arc::new(Region::alloc(&**nic.pd(), config.pool_bytes, Access::LOCAL_WRITE)?);
        let qp = |index| {
            let connection =
                Connection::new(nic, Transport::Rc, &**lock(cq), config.pair(nic.attr().max_sge), None)?;
            Ok(Mutex::new(SessionQp::new(index, connection, &pool, config.send_depth)))
        };
        let qps = (0..config.connections).map(qp).collect::<Result<Box<[_]>, Error>>()?;
        let queue = MergeQueue::new(config.limits(nic.attr().max_sge), admission, config.pool_bytes);
        // One message per request, per work request that has ended, per queue pair, and one for the end of the session.
        let messages = config.outstanding + qps.len() * (config.send_depth as usize + 1) + 1;
        Ok(Self {
            nic: nic.clone(),
            config,
            serial: SESSIONS.fetch_add(1, Ordering::Relaxed),
            messages: CombiningQueue::new(messages),
            // One slot of each send queue is reserved for the drain marker.
            scheduler: Mutex::new(PostScheduler::new(queue, qps.len(), config.send_depth - 1)),
            qps,
            _cq: Arc::clone(cq),
            pool,
            grants: Grants::new(),
            is_connected: OnceLock::new(),
            outstanding: AtomicUsize::new(0),
            end: OnceLock::new(),
            handler,
        })
    }

    fn submit(&self, request: Request<H::Context>) -> Result<(), SubmitError<H::Context>> {
        let span = match self.validate(&request) {
            Ok(span) => span,
            Err(why) => return Err(SubmitError { request, why }),
        };
        let Request { direction, buffer, context, .. } = request;
        let len_bytes = buffer.len_bytes();
        let local = Local::of(buffer, self.config.register_from_bytes);
        let entry = Entry { len_bytes, local, context };
        self.schedule(self.messages.enqueue(Message::Submitted { direction, span, entry }));
        Ok(())
    }

    /// Checks a request, and counts it as outstanding. Returns its range of remote memory.
    fn validate(&self, request: &Request<H::Context>) -> Result<Span, Refusal> {
        self.is_connected.get().ok_or(Refusal::NotConnected)?;
        if let Some(end) = self.end.get() {
            return Err(Refusal::Ended(end.clone()));
        }
        let Request { grant, offset, buffer, .. } = request;
        let len_bytes = buffer.len_bytes();
        let max_bytes = match buffer {
            // Shared memory is copied regardless of its length.
            crate::Buffer::Shared(_) => (self.config.pool_bytes / 64 * 64) as u64,
            _ => REQUEST_MAX_BYTES,
        };
        if len_bytes as u64 > max_bytes {
            return Err(Refusal::TooLong { len_bytes, max_bytes });
        }
        if let crate::Buffer::Registered(slice) = buffer
            && slice.memory.0.session != self.serial
        {
            return Err(Refusal::ForeignMemory);
        }
        if matches!(buffer, crate::Buffer::Shared(_)) && request.direction == Direction::Read {
            return Err(Refusal::SharedMemory);
        }
        let granted = self.grants.get(*grant).copied().unwrap_or_default();
        let span = Span::new(*grant, *offset, len_bytes as u64).filter(|span| span.end <= granted.len_bytes);
        let (grant, offset, granted_bytes) = (*grant, *offset, granted.len_bytes);
        let span = span.ok_or(Refusal::NoSuchRange { grant, offset, len_bytes, granted_bytes })?;
        let outstanding = self.config.outstanding;
        if self.outstanding.fetch_add(1, Ordering::Relaxed) >= outstanding {
            self.outstanding.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Full { outstanding });
        }
        Ok(span)
    }

    /// Plans and posts while this thread holds the combiner role and there is something to post.
    pub fn schedule<'a>(&'a self, mut combiner: Option<SessionCombiner<'a, H>>) {
        let mut posted = 0;
        while let Some(batch) = self.plan(combiner.take(), posted) {
            combiner = self.post(batch);
            posted += 1;
        }
    }

    /// Dequeues messages, selects the next batch to post, and releases the combiner role. `posted` is the number of
    /// batches that this thread has already posted.
    fn plan(&self, combiner: Option<SessionCombiner<'_, H>>, posted: usize) -> Option<Batch<H::Context>> {
        let mut combiner = combiner?;
        let (mut batch, mut unposted) = (None, Vec::new());
        loop {
            let mut scheduler = lock(&self.scheduler);
            combiner.dequeue_all(|message| scheduler.handle(message));
            if self.end.get().is_some() {
                scheduler.take_waiting(&mut unposted);
            } else if batch.is_none() && (posted < BATCHES_AT_ONCE || !scheduler.has_work_in_flight()) {
                // If this thread has posted its share, the poller plans again when the work requests in flight end.
                batch = scheduler.next_batch();
            }
            drop(scheduler);
            match combiner.release() {
                None => break,
                Some(more) => combiner = more,
            }
        }
        self.fail_unposted(unposted);
        batch
    }

    /// Posts a batch, and enqueues a message that its queue pair is free. Returns the combiner role if that message or
    /// another one obtained it.
    fn post(&self, mut batch: Batch<H::Context>) -> Option<SessionCombiner<'_, H>> {
        let mut combiner = None;
        if let Err(failure) = self.prepare(&mut batch) {
            // Only memory that is registered for its request can fail here, and such a request is alone in its batch.
            let completed = batch.entries.drain(..).map(|entry| entry.complete(Err(failure.clone())));
            self.notify_handler(&mut completed.collect());
        } else {
            let mut qp = lock(&self.qps[batch.qp_index]);
            // Read under the lock of the queue pair. `end` sets the reason before it locks and closes the queue pairs,
            // so a batch that is posted here is flushed by that close.
            let refused = match self.end.get() {
                Some(_) => None,
                None => qp.post(&mut batch, &self.grants).err(),
            };
            drop(qp);
            let ended = refused.is_some_and(|why| self.end(SessionEnd::PostRefused(with_sources(&why))));
            self.fail_unposted(std::mem::take(&mut batch.entries));
            combiner = ended.then(|| self.messages.enqueue(Message::Recheck)).flatten();
        }
        // The work requests that remain were not posted.
        for work in std::mem::take(&mut batch.doorbell.work) {
            combiner =
                self.messages.enqueue(Message::WorkEnded { qp_index: batch.qp_index, work }).or(combiner);
        }
        self.messages.enqueue(Message::QpFree(batch)).or(combiner)
    }

    /// Copies the data of writes into the pool, and registers memory that is used in place.
    ///
    /// # Errors
    /// If memory cannot be registered.
    fn prepare(&self, batch: &mut Batch<H::Context>) -> Result<(), TransferFailure> {
        for work in &batch.doorbell.work {
            let mut offset = work.pool_slice.offset;
            for entry in &mut batch.entries[work.members.clone()] {
                match &mut entry.local {
                    Local::Pool(bytes) => {
                        if work.direction == Direction::Write {
                            self.pool.copy_in(offset, bytes);
                        }
                        offset += entry.len_bytes;
                    }
                    // `validate` refuses reads into shared memory.
                    Local::Shared(bytes) => {
                        self.pool.copy_in(offset, bytes);
                        offset += entry.len_bytes;
                    }
                    Local::ToRegister(bytes) => {
                        let registered = Region::register(&**self.nic.pd(), std::mem::take(bytes));
                        entry.local = match registered {
                            Ok(region) => Local::Registered(Arc::new(region)),
                            Err((why, bytes)) => {
                                let len_bytes = bytes.len();
                                entry.local = Local::ToRegister(bytes);
                                return Err(TransferFailure::NotRegistered {
                                    len_bytes,
                                    why: with_sources(&why),
                                });
                            }
                        };
                    }
                    Local::Slice(_) | Local::Registered(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Completes requests that were never posted, if the session has ended.
    fn fail_unposted(&self, entries: Vec<Entry<H::Context>>) {
        if let Some(end) = self.end.get() {
            let completed =
                entries.into_iter().map(|entry| entry.complete(Err(TransferFailure::NotPosted(end.clone()))));
            self.notify_handler(&mut completed.collect());
        }
    }

    /// Handles a completion of the queue pair with index `at`. Appends the requests that it completes to `completed`,
    /// and returns the combiner role if this thread obtained it. `entries` is a reused buffer, which is empty before
    /// and after the call.
    pub fn complete(
        &self,
        at: usize,
        wc: &Wc,
        entries: &mut Vec<Entry<H::Context>>,
        completed: &mut Vec<TransferCompletion<H::Context>>,
    ) -> Option<SessionCombiner<'_, H>> {
        let CompletedWork { work, outcome } = lock(&self.qps[at]).complete(wc, entries)?;
        let (qp_num, status) = (wc.qp_num, wc.status);
        let ended = outcome != WorkStatus::Success && self.end(SessionEnd::PairFailed { qp_num, status });
        let combiner = ended.then(|| self.messages.enqueue(Message::Recheck)).flatten();
        let result = match (outcome, self.end.get()) {
            (WorkStatus::Flushed, Some(end)) => Err(TransferFailure::Unknown(end.clone())),
            (WorkStatus::Success, _) => {
                self.copy_out(&work, entries);
                Ok(())
            }
            _ => Err(TransferFailure::Failed(status)),
        };
        completed.extend(entries.drain(..).map(|entry| entry.complete(result.clone())));
        self.messages.enqueue(Message::WorkEnded { qp_index: at, work }).or(combiner)
    }

    /// Copies the data of reads out of the pool.
    fn copy_out(&self, work: &Work, entries: &mut [Entry<H::Context>]) {
        if work.direction == Direction::Write {
            return;
        }
        let mut offset = work.pool_slice.offset;
        for entry in entries {
            if let Local::Pool(bytes) = &mut entry.local {
                self.pool.copy_out(offset, bytes);
                offset += bytes.len();
            }
        }
    }

    /// Calls the handler for completed requests.
    pub fn notify_handler(&self, completed: &mut Vec<TransferCompletion<H::Context>>) {
        self.outstanding.fetch_sub(completed.len(), Ordering::Relaxed);
        completed.drain(..).for_each(|completed| self.handler.on_completion(completed));
    }

    /// Ends the session, unless it has ended: every queue pair enters the error state, and the work requests in flight
    /// are flushed. Returns whether this call ended the session; the caller must then enqueue a [`Message::Recheck`].
    fn end(&self, why: SessionEnd) -> bool {
        let ended = self.end.set(why).is_ok();
        if ended {
            self.qps.iter().for_each(|qp| lock(qp).connection.close());
        }
        ended
    }

    /// Ends the session on request of the user.
    fn close(&self) {
        if self.end(SessionEnd::Closed) {
            self.schedule(self.messages.enqueue(Message::Recheck));
        }
    }

    /// Ends the session because its completion queue is not polled any more.
    pub fn fail(&self, why: &str) {
        if self.end(SessionEnd::PollFailed(why.to_owned())) {
            self.schedule(self.messages.enqueue(Message::Recheck));
        }
    }

    /// Returns the maximum number of its completions in the completion queue.
    pub fn completions(&self) -> u64 {
        self.qps.len() as u64 * u64::from(self.config.send_depth)
    }

    /// Returns the numbers of its queue pairs, in their order.
    pub fn pair_numbers(&self) -> impl Iterator<Item = u32> {
        self.qps.iter().map(|qp| lock(qp).connection.qp_num())
    }

    /// Returns whether the session has ended and has nothing in flight.
    pub fn has_ended(&self) -> bool {
        self.end.get().is_some()
            && self.outstanding.load(Ordering::Relaxed) == 0
            && self.qps.iter().all(|qp| lock(qp).connection.is_drained())
    }
}

/// A session with one peer: reads and writes ranges of the memory that the peer granted. Clones refer to the same
/// session, which is closed when the last one is dropped.
pub struct Session<H: Handler>(Arc<Handle<H>>);

struct Handle<H: Handler>(Arc<Shared<H>>);

impl<H: Handler> Drop for Handle<H> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<H: Handler> Clone for Session<H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<H: Handler> Session<H> {
    pub(crate) fn new(shared: Arc<Shared<H>>) -> Self {
        Self(Arc::new(Handle(shared)))
    }

    fn shared(&self) -> &Shared<H> {
        &self.0.0
    }

    /// Returns the information that the peer needs to connect, one element per queue pair.
    pub fn infos(&self) -> Vec<QpInfo> {
        let shared = self.shared();
        shared.qps.iter().map(|qp| lock(qp).connection.info(&shared.nic)).collect()
    }

    /// Connects to the peer's queue pairs, which must have the same number and order as those of this session. Requests
    /// refer to `grants` by index. The memory of two grants must not overlap; otherwise the order of requests is not
    /// guaranteed.
    ///
    /// # Errors
    /// If the number of queue pairs differs, the session was connected before, or a queue pair cannot be connected.
    pub fn connect(&self, peer: &[QpInfo], grants: &[RemoteRegion]) -> Result<(), Error> {
        const OP: &str = "connect session";
        let shared = self.shared();
        if peer.len() != shared.qps.len() {
            let what = format!("{} queue pairs of the peer; ours are {}", peer.len(), shared.qps.len());
            return Err(Error::invalid(OP, what));
        }
        for (qp, info) in shared.qps.iter().zip(peer) {
            lock(qp).connection.connect(&shared.nic, info)?;
        }
        shared
            .is_connected
            .set(())
            .map_err(|()| Error::invalid(OP, "it is connected already; open another session"))?;
        grants.iter().try_for_each(|grant| self.grant(*grant).map(drop))
    }

    /// Adds a grant of the peer. Returns its number, by which requests refer to it. A grant that the peer revokes
    /// retains its number: requests that use it fail, and end the session.
    ///
    /// # Errors
    /// If the session has the maximum number of grants (16 million).
    pub fn grant(&self, grant: RemoteRegion) -> Result<u32, Error> {
        let number = self.shared().grants.push(grant);
        number.ok_or_else(|| Error::invalid("grant", "more grants than a session has numbers; open another"))
    }

    /// Attaches registered memory, for requests without copies. READs need [`Access::LOCAL_WRITE`]. The session holds
    /// the region until it has ended.
    pub fn attach(&self, region: Arc<Region>) -> Attached {
        let shared = self.shared();
        let ids = shared.qps.iter().map(|qp| lock(qp).connection.attach(Arc::clone(&region))).collect();
        Attached(Arc::new(AttachedRegion { region, session: shared.serial, ids }))
    }

    /// Submits a request without waiting; the handler is called when the request has completed. A single request is
    /// posted at once, unless it must wait for the window or for an earlier request that it overlaps. Requests that
    /// accumulate are merged.
    ///
    /// # Errors
    /// If the session is full or has ended, or the request is invalid. The error returns the request.
    pub fn submit(&self, request: Request<H::Context>) -> Result<(), Box<SubmitError<H::Context>>> {
        self.shared().submit(request).map_err(Box::new)
    }

    /// Ends the session: nothing more is posted, and requests in flight complete with [`TransferFailure::Unknown`].
    /// Their handlers are called only if the poller continues to run.
    pub fn close(&self) {
        self.shared().close();
    }

    /// Returns why the session has ended, or `None` if it has not.
    pub fn ended(&self) -> Option<&SessionEnd> {
        self.shared().end.get()
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        lock(&self.shared().scheduler).counts()
    }
}
