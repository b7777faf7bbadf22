//! A session: what threads submit to, and how their requests are planned, posted and ended.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use farcall_link::bootstrap::QpInfo;
use farcall_link::{Connection, Nic, Region, RemoteRegion, Transport};
use farcall_verbs::{Access, Error, Wc};

use crate::arrivals::{Arrivals, Turn};
use crate::grants::Grants;
use crate::line::{EndedWork, Line, Outcome};
use crate::merging::{MergeQueue, Span, Work};
use crate::planner::{Batch, Message, Planner};
use crate::poller::SharedCq;
use crate::request::{AttachedRegion, Entry, Local};
use crate::{
    Admission, Attached, Config, Counts, Direction, Done, Failure, Handler, Refusal, Refused, Request,
    SessionEnd,
};

/// Batches that a thread posts for others before it returns, if somebody comes back anyway.
const BATCHES_AT_ONCE: usize = 4;

/// The longest request: what every device takes in one message.
const REQUEST_MAX_BYTES: u64 = 1 << 30;

pub(crate) struct Shared<H: Handler> {
    nic: Nic,
    config: Config,
    serial: u64,
    arrivals: Arrivals<Message<H::Context>>,
    /// Entered by whoever has the turn: nobody ever waits for it but to ask for counts.
    planner: Mutex<Planner<H::Context>>,
    lines: Box<[Mutex<Line<H::Context>>]>,
    // After the queue pairs, which must go first.
    _cq: SharedCq,
    pool: Arc<Region>,
    grants: Grants,
    is_connected: OnceLock<()>,
    /// Requests that are not over.
    outstanding: AtomicUsize,
    end: OnceLock<SessionEnd>,
    handler: H,
}

/// The turn of a session.
pub(crate) type SessionTurn<'a, H> = Turn<'a, Message<<H as Handler>::Context>>;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic left is whole, or the panic comes again.
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
        // A message for each request, each work request that has ended, each queue pair, and one for the end.
        let messages = config.outstanding + lines.len() * (config.send_depth as usize + 1) + 1;
        Ok(Self {
            nic: nic.clone(),
            config,
            serial: SESSIONS.fetch_add(1, Ordering::Relaxed),
            arrivals: Arrivals::new(messages),
            // One place of a queue pair is kept for the mark that ends draining.
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

    /// Checks a request, and counts it.
    fn admit(&self, request: &Request<H::Context>) -> Result<Span, Refusal> {
        self.is_connected.get().ok_or(Refusal::NotConnected)?;
        if let Some(end) = self.end.get() {
            return Err(Refusal::Ended(end.clone()));
        }
        let Request { grant, offset, buffer, .. } = request;
        let len_bytes = buffer.len_bytes();
        let max_bytes = match buffer {
            // It is copied, whatever its length.
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

    /// Plans and posts as long as we have the turn and there is something to post.
    pub fn run<'a>(&'a self, mut turn: Option<SessionTurn<'a, H>>) {
        let mut posted = 0;
        while let Some(batch) = self.plan(turn.take(), posted) {
            turn = self.post(batch);
            posted += 1;
        }
    }

    /// Takes what has come, chooses what to post, and gives the turn back.
    fn plan(&self, turn: Option<SessionTurn<'_, H>>, posted: usize) -> Option<Batch<H::Context>> {
        let mut turn = turn?;
        let (mut batch, mut over) = (None, Vec::new());
        loop {
            let mut planner = lock(&self.planner);
            turn.take(|message| planner.accept(message));
            if self.end.get().is_some() {
                planner.take_waiting(&mut over);
            } else if batch.is_none() && (posted < BATCHES_AT_ONCE || !planner.is_under_way()) {
                // What is under way ends, and then somebody plans again: we need not stay.
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

    /// Posts a batch, and leaves word that its queue pair is free.
    fn post(&self, mut batch: Batch<H::Context>) -> Option<SessionTurn<'_, H>> {
        let mut turn = None;
        if let Err(failure) = self.prepare(&mut batch) {
            // It goes alone.
            let done = batch.entries.drain(..).map(|entry| entry.done(Err(failure.clone())));
            self.call_back(&mut done.collect());
        } else {
            let mut line = lock(&self.lines[batch.line]);
            // Under the lock: what ends the session closes this pair after that.
            let refused = match self.end.get() {
                Some(_) => None,
                None => line.post(&mut batch, &self.grants).err(),
            };
            drop(line);
            let ended = refused.is_some_and(|why| self.end(SessionEnd::PostRefused(why.to_string())));
            self.over_unposted(std::mem::take(&mut batch.entries));
            turn = ended.then(|| self.arrivals.leave(Message::Look)).flatten();
        }
        // What is left was not posted.
        for work in std::mem::take(&mut batch.doorbell.work) {
            turn = self.arrivals.leave(Message::Ended { line: batch.line, work }).or(turn);
        }
        self.arrivals.leave(Message::Free(batch)).or(turn)
    }

    /// Copies what is written into the pool; registers memory that is used in place.
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
                    // It is written from only.
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

    /// Requests that were never posted are over: the session is.
    fn over_unposted(&self, entries: Vec<Entry<H::Context>>) {
        if let Some(end) = self.end.get() {
            let done = entries.into_iter().map(|entry| entry.done(Err(Failure::NotPosted(end.clone()))));
            self.call_back(&mut done.collect());
        }
    }

    /// A completion of one of its queue pairs. Requests that are over by it are appended to `done`; `entries` is empty
    /// before and after.
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

    /// Copies what was read out of the pool.
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

    /// Tells of requests that are over.
    pub fn call_back(&self, done: &mut Vec<Done<H::Context>>) {
        self.outstanding.fetch_sub(done.len(), Ordering::Relaxed);
        done.drain(..).for_each(|done| self.handler.done(done));
    }

    /// Ends the session, unless it has ended: every queue pair goes to the error state, and what is under way is
    /// flushed. Whoever ended it leaves a [`Message::Look`].
    fn end(&self, why: SessionEnd) -> bool {
        let ended = self.end.set(why).is_ok();
        if ended {
            self.lines.iter().for_each(|line| lock(line).connection.close());
        }
        ended
    }

    fn close(&self) {
        if self.end(SessionEnd::Closed) {
            self.run(self.arrivals.leave(Message::Look));
        }
    }

    /// Nobody looks for its completions any more.
    pub fn fail(&self, why: &str) {
        if self.end(SessionEnd::PollFailed(why.to_owned())) {
            self.run(self.arrivals.leave(Message::Look));
        }
    }

    /// The most completions that it has under way.
    pub fn completions(&self) -> u64 {
        self.lines.len() as u64 * u64::from(self.config.send_depth)
    }

    pub fn pair_numbers(&self) -> impl Iterator<Item = u32> {
        self.lines.iter().map(|line| lock(line).connection.qp_num())
    }

    /// Whether it has ended and nothing of it is under way.
    pub fn is_over(&self) -> bool {
        self.end.get().is_some()
            && self.outstanding.load(Ordering::Relaxed) == 0
            && self.lines.iter().all(|line| lock(line).connection.is_drained())
    }
}

/// A session with one peer: reads and writes ranges of the memory that it granted. Clones are the same session; when
/// the last one is dropped it is closed.
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

    /// What the peer needs to connect: for each queue pair.
    pub fn infos(&self) -> Vec<QpInfo> {
        let shared = self.shared();
        shared.lines.iter().map(|line| lock(line).connection.info(&shared.nic)).collect()
    }

    /// Connects to the peer's queue pairs, as many as ours and in the same order. Requests name `grants` by their
    /// index; two of them must have no memory in common, or the order of requests holds no more.
    ///
    /// # Errors
    /// If there are not as many, the session was connected before, or a pair cannot be connected.
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

    /// Takes a further grant of the peer's. Returns the number by which requests name it. A grant that the peer takes
    /// back keeps its number: requests that name it fail, and end the session.
    ///
    /// # Errors
    /// If there are too many (16 million).
    pub fn grant(&self, grant: RemoteRegion) -> Result<u32, Error> {
        let number = self.shared().grants.push(grant);
        number.ok_or_else(|| Error::invalid("grant", "more grants than a session has numbers; open another"))
    }

    /// Makes registered memory known, for requests without copies. READs need [`Access::LOCAL_WRITE`]. It is kept until
    /// the session is over.
    pub fn attach(&self, region: Arc<Region>) -> Attached {
        let shared = self.shared();
        let ids = shared.lines.iter().map(|line| lock(line).connection.attach(Arc::clone(&region))).collect();
        Attached(Arc::new(AttachedRegion { region, session: shared.serial, ids }))
    }

    /// Takes a request: it is merged with others if they stack up, and posted at once if it is alone, unless it must
    /// wait for the window, or for a request before it that it overlaps. Returns without waiting; the handler is told
    /// when the request is over.
    ///
    /// # Errors
    /// If it is not taken: the session is full or over, or the request is impossible. It comes back.
    pub fn submit(&self, request: Request<H::Context>) -> Result<(), Box<Refused<H::Context>>> {
        self.shared().submit(request).map_err(Box::new)
    }

    /// Ends the session: nothing more is posted, what is under way ends with [`Failure::Unknown`]. Its poller must run
    /// on to tell of that.
    pub fn close(&self) {
        self.shared().close();
    }

    /// Why it is over, if it is.
    pub fn ended(&self) -> Option<&SessionEnd> {
        self.shared().end.get()
    }

    /// What went through so far.
    pub fn counts(&self) -> Counts {
        lock(&self.shared().planner).counts()
    }
}
