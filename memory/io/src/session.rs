//! A session: threads submit requests to it, and it plans, posts and completes them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use farcall_link::bootstrap::QpInfo;
use farcall_link::{Connection, Nic, Region, RemoteRegion, Transport};
use farcall_verbs::{Access, Error, Wc};

use crate::combining_queue::{Arrivals, Turn};
use crate::grants::Grants;
use crate::merging::{MergeQueue, Span, Work};
use crate::poller::SharedCq;
use crate::post_scheduler::{Batch, Message, Planner};
use crate::request::{AttachedRegion, Entry, Local};
use crate::session_qp::{EndedWork, Line, Outcome};
use crate::{
    Admission, Attached, Config, Counts, Direction, Done, Failure, Handler, Refusal, Refused, Request,
    SessionEnd,
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
    arrivals: Arrivals<Message<H::Context>>,
    /// Locked by the holder of the combiner role, and to read the counters. Hence the lock is rarely contended.
    planner: Mutex<Planner<H::Context>>,
    lines: Box<[Mutex<Line<H::Context>>]>,
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
pub(crate) type SessionTurn<'a, H> = Turn<'a, Message<<H as Handler>::Context>>;

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
        let pool = Arc::new(Region::alloc(&*nic.pd, config.pool_bytes, Access::LOCAL_WRITE)?);
        let line = |index| {
            let connection =
                Connection::new(nic, Transport::Rc, &**lock(cq), config.pair(nic.attr.max_sge), None)?;
            Ok(Mutex::new(Line::new(index, connection, &pool, config.send_depth)))
        };
        let lines = (0..config.connections).map(line).collect::<Result<Box<[_]>, Error>>()?;
        let queue = MergeQueue::new(config.limits(nic.attr.max_sge), admission, config.pool_bytes);
        // One message per request, per work request that has ended, per queue pair, and one for the end of the session.
        let messages = config.outstanding + lines.len() * (config.send_depth as usize + 1) + 1;
        Ok(Self {
            nic: nic.clone(),
            config,
            serial: SESSIONS.fetch_add(1, Ordering::Relaxed),
            arrivals: Arrivals::new(messages),
            // One slot of each send queue is reserved for the drain marker.
            planner: Mutex::new(Planner::new(queue, lines.len(), config.send_depth - 1)),
            lines,
            _cq: Arc::clone(cq),
            pool,
            grants: Grants::new(),
            is_connected: OnceLock::new(),
            outstanding: AtomicUsize::new(0),
            end: OnceLock::new(),
            handler,
        })
    }

    fn submit(&self, request: Request<H::Context>) -> Result<(), Refused<H::Context>> {
        let span = match self.admit(&request) {
            Ok(span) => span,
            Err(why) => return Err(Refused { request, why }),
        };
        let Request { direction, buffer, context, .. } = request;
        let len_bytes = buffer.len_bytes();
        let local = Local::of(buffer, self.config.register_from_bytes);
        let entry = Entry { len_bytes, local, context };
        self.run(self.arrivals.leave(Message::Asked { direction, span, entry }));
        Ok(())
    }

    /// Checks a request, and counts it as outstanding. Returns its range of remote memory.
    fn admit(&self, request: &Request<H::Context>) -> Result<Span, Refusal> {
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
    pub fn run<'a>(&'a self, mut turn: Option<SessionTurn<'a, H>>) {
        let mut posted = 0;
        while let Some(batch) = self.plan(turn.take(), posted) {
            turn = self.post(batch);
            posted += 1;
        }
    }

    /// Dequeues messages, selects the next batch to post, and releases the combiner role. `posted` is the number of
    /// batches that this thread has already posted.
    fn plan(&self, turn: Option<SessionTurn<'_, H>>, posted: usize) -> Option<Batch<H::Context>> {
        let mut turn = turn?;
        let (mut batch, mut over) = (None, Vec::new());
        loop {
            let mut planner = lock(&self.planner);
            turn.take(|message| planner.accept(message));
            if self.end.get().is_some() {
                planner.take_waiting(&mut over);
            } else if batch.is_none() && (posted < BATCHES_AT_ONCE || !planner.is_under_way()) {
                // If this thread has posted its share, the poller plans again when the work requests in flight end.
                batch = planner.next();
            }
            drop(planner);
            match turn.give_back() {
                None => break,
                Some(more) => turn = more,
            }
        }
        self.over_unposted(over);
        batch
    }

    /// Posts a batch, and enqueues a message that its queue pair is free. Returns the combiner role if that message or
    /// another one obtained it.
    fn post(&self, mut batch: Batch<H::Context>) -> Option<SessionTurn<'_, H>> {
        let mut turn = None;
        if let Err(failure) = self.prepare(&mut batch) {
            // Only memory that is registered for its request can fail here, and such a request is alone in its batch.
            let done = batch.entries.drain(..).map(|entry| entry.done(Err(failure.clone())));
            self.call_back(&mut done.collect());
        } else {
            let mut line = lock(&self.lines[batch.line]);
            // Read under the lock of the queue pair. `end` sets the reason before it locks and closes the queue pairs,
            // so a batch that is posted here is flushed by that close.
            let refused = match self.end.get() {
                Some(_) => None,
                None => line.post(&mut batch, &self.grants).err(),
            };
            drop(line);
            let ended = refused.is_some_and(|why| self.end(SessionEnd::PostRefused(why.to_string())));
            self.over_unposted(std::mem::take(&mut batch.entries));
            turn = ended.then(|| self.arrivals.leave(Message::Look)).flatten();
        }
        // The work requests that remain were not posted.
        for work in std::mem::take(&mut batch.doorbell.work) {
            turn = self.arrivals.leave(Message::Ended { line: batch.line, work }).or(turn);
        }
        self.arrivals.leave(Message::Free(batch)).or(turn)
    }

    /// Copies the data of writes into the pool, and registers memory that is used in place.
    ///
    /// # Errors
    /// If memory cannot be registered.
    fn prepare(&self, batch: &mut Batch<H::Context>) -> Result<(), Failure> {
        for work in &batch.doorbell.work {
            let mut offset = work.piece.offset;
            for entry in &mut batch.entries[work.members.clone()] {
                match &mut entry.local {
                    Local::Pool(bytes) => {
                        if work.direction == Direction::Write {
                            self.pool.copy_in(offset, bytes);
                        }
                        offset += entry.len_bytes;
                    }
                    // `admit` refuses reads into shared memory.
                    Local::Shared(bytes) => {
                        self.pool.copy_in(offset, bytes);
                        offset += entry.len_bytes;
                    }
                    Local::ToRegister(bytes) => {
                        let registered = Region::register(&*self.nic.pd, std::mem::take(bytes));
                        entry.local = match registered {
                            Ok(region) => Local::Registered(Arc::new(region)),
                            Err((why, bytes)) => {
                                let len_bytes = bytes.len();
                                entry.local = Local::ToRegister(bytes);
                                return Err(Failure::NotRegistered { len_bytes, why: why.to_string() });
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
    fn over_unposted(&self, entries: Vec<Entry<H::Context>>) {
        if let Some(end) = self.end.get() {
            let done = entries.into_iter().map(|entry| entry.done(Err(Failure::NotPosted(end.clone()))));
            self.call_back(&mut done.collect());
        }
    }

    /// Handles a completion of the queue pair with index `at`. Appends the requests that it completes to `done`, and
    /// returns the combiner role if this thread obtained it. `entries` is a reused buffer, which is empty before and
    /// after the call.
    pub fn complete(
        &self,
        at: usize,
        wc: &Wc,
        entries: &mut Vec<Entry<H::Context>>,
        done: &mut Vec<Done<H::Context>>,
    ) -> Option<SessionTurn<'_, H>> {
        let EndedWork { work, outcome } = lock(&self.lines[at]).complete(wc, entries)?;
        let (qp_num, status) = (wc.qp_num, wc.status);
        let ended = outcome != Outcome::Done && self.end(SessionEnd::PairFailed { qp_num, status });
        let turn = ended.then(|| self.arrivals.leave(Message::Look)).flatten();
        let result = match (outcome, self.end.get()) {
            (Outcome::Flushed, Some(end)) => Err(Failure::Unknown(end.clone())),
            (Outcome::Done, _) => {
                self.copy_out(&work, entries);
                Ok(())
            }
            _ => Err(Failure::Failed(status)),
        };
        done.extend(entries.drain(..).map(|entry| entry.done(result.clone())));
        self.arrivals.leave(Message::Ended { line: at, work }).or(turn)
    }

    /// Copies the data of reads out of the pool.
    fn copy_out(&self, work: &Work, entries: &mut [Entry<H::Context>]) {
        if work.direction == Direction::Write {
            return;
        }
        let mut offset = work.piece.offset;
        for entry in entries {
            if let Local::Pool(bytes) = &mut entry.local {
                self.pool.copy_out(offset, bytes);
                offset += bytes.len();
            }
        }
    }

    /// Calls the handler for completed requests.
    pub fn call_back(&self, done: &mut Vec<Done<H::Context>>) {
        self.outstanding.fetch_sub(done.len(), Ordering::Relaxed);
        done.drain(..).for_each(|done| self.handler.done(done));
    }

    /// Ends the session, unless it has ended: every queue pair enters the error state, and the work requests in flight
    /// are flushed. Returns whether this call ended the session; the caller must then enqueue a [`Message::Look`].
    fn end(&self, why: SessionEnd) -> bool {
        let ended = self.end.set(why).is_ok();
        if ended {
            self.lines.iter().for_each(|line| lock(line).connection.close());
        }
        ended
    }

    /// Ends the session on request of the user.
    fn close(&self) {
        if self.end(SessionEnd::Closed) {
            self.run(self.arrivals.leave(Message::Look));
        }
    }

    /// Ends the session because its completion queue is not polled any more.
    pub fn fail(&self, why: &str) {
        if self.end(SessionEnd::PollFailed(why.to_owned())) {
            self.run(self.arrivals.leave(Message::Look));
        }
    }

    /// Returns the maximum number of its completions in the completion queue.
    pub fn completions(&self) -> u64 {
        self.lines.len() as u64 * u64::from(self.config.send_depth)
    }

    /// Returns the numbers of its queue pairs, in their order.
    pub fn pair_numbers(&self) -> impl Iterator<Item = u32> {
        self.lines.iter().map(|line| lock(line).connection.qp_num())
    }

    /// Returns whether the session has ended and has nothing in flight.
    pub fn is_over(&self) -> bool {
        self.end.get().is_some()
            && self.outstanding.load(Ordering::Relaxed) == 0
            && self.lines.iter().all(|line| lock(line).connection.is_drained())
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
        shared.lines.iter().map(|line| lock(line).connection.info(&shared.nic)).collect()
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
        if peer.len() != shared.lines.len() {
            let what = format!("{} queue pairs of the peer; ours are {}", peer.len(), shared.lines.len());
            return Err(Error::invalid(OP, what));
        }
        for (line, info) in shared.lines.iter().zip(peer) {
            lock(line).connection.connect(&shared.nic, info)?;
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
        let ids = shared.lines.iter().map(|line| lock(line).connection.attach(Arc::clone(&region))).collect();
        Attached(Arc::new(AttachedRegion { region, session: shared.serial, ids }))
    }

    /// Submits a request without waiting; the handler is called when the request has completed. A single request is
    /// posted at once, unless it must wait for the window or for an earlier request that it overlaps. Requests that
    /// accumulate are merged.
    ///
    /// # Errors
    /// If the session is full or has ended, or the request is invalid. The error returns the request.
    pub fn submit(&self, request: Request<H::Context>) -> Result<(), Box<Refused<H::Context>>> {
        self.shared().submit(request).map_err(Box::new)
    }

    /// Ends the session: nothing more is posted, and requests in flight complete with [`Failure::Unknown`]. Their
    /// handlers are called only if the poller continues to run.
    pub fn close(&self) {
        self.shared().close();
    }

    /// Returns why the session has ended, or `None` if it has not.
    pub fn ended(&self) -> Option<&SessionEnd> {
        self.shared().end.get()
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        lock(&self.shared().planner).counts()
    }
}
