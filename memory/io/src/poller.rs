//! What looks for completions: one completion queue, shared by the sessions that are opened on it.

use std::sync::{Arc, Mutex};

use farcall_link::Nic;
use farcall_stats::Block;
use farcall_verbs::{
    CompChannel, CqInitAttr, Endpoint, Error, Nanos, Next, Notify, RawCq, Result, WaitSet, Wc,
};

use crate::request::Entry;
use crate::session::{Shared, lock};
use crate::{Admission, Config, Done, Handler, Session};

/// A completion queue, entered by its poller alone, and kept as long as queue pairs complete there.
pub(crate) type SharedCq = Arc<Mutex<Box<dyn RawCq>>>;

/// Sizes of a poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerConfig {
    /// Completions that its queue holds: all that its sessions may have under way.
    pub completions: u32,
    /// Completions taken at once (MAX_POLL_WC).
    pub max_poll_wc: usize,
}

impl Default for PollerConfig {
    fn default() -> Self {
        Self { completions: 4096, max_poll_wc: 16 }
    }
}

farcall_stats::counters! {
    /// What a poller did, for `farcall stats`.
    struct Counters {
        polls,
        empty_polls,
        completions,
        sleeps,
    }
}

/// What a poller did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollCounts {
    /// Looks at the completion queue.
    pub polls: u64,
    /// Looks that found nothing.
    pub empty_polls: u64,
    /// Completions found.
    pub completions: u64,
    /// How often it asked for an event, to sleep.
    pub sleeps: u64,
}

/// Looks for completions, ends requests, and posts what waited for them. It is an endpoint: a `farcall_drive::Driver`
/// runs it, and waits as its `Waiting` says: busy; by event and batch; naive hybrid; adaptive, after `max_retry` empty
/// looks in a row (RDMAbox, algorithm 3; MAX_RETRY is 120 there). Several sessions on one poller share a completion
/// queue (SCQ); one poller for each, with a thread each, is what the paper calls N CQs; M pollers are SCQ(M).
pub struct Poller<H: Handler> {
    nic: Nic,
    config: PollerConfig,
    sessions: Vec<Arc<Shared<H>>>,
    /// By queue pair number, sorted: which session, which of its pairs.
    pairs: Vec<(u32, usize, usize)>,
    cq: SharedCq,
    channel: Arc<dyn CompChannel>,
    wcs: Vec<Wc>,
    entries: Vec<Entry<H::Context>>,
    done: Vec<Done<H::Context>>,
    counters: Block<Counters>,
    /// The completion queue failed: nothing can be told any more.
    is_broken: bool,
}

impl<H: Handler> Poller<H> {
    /// A poller without sessions.
    ///
    /// # Errors
    /// If the device has no completion queue or channel for it.
    pub fn new(nic: &Nic, config: PollerConfig) -> Result<Self> {
        let channel = nic.context.create_comp_channel()?;
        let attr = CqInitAttr { cqe: config.completions, channel: Some(&*channel) };
        let cq = Arc::new(Mutex::new(nic.context.create_cq(&attr)?));
        Ok(Self {
            nic: nic.clone(),
            config,
            sessions: Vec::new(),
            pairs: Vec::new(),
            cq,
            channel,
            wcs: vec![Wc::default(); config.max_poll_wc.max(1)],
            entries: Vec::new(),
            done: Vec::new(),
            counters: Block::new("remio poller", 0),
            is_broken: false,
        })
    }

    /// Opens a session, to be connected. What may be under way is up to `admission`; `handler` is told of requests that
    /// are over, by the thread that runs this poller or one that submits.
    ///
    /// # Errors
    /// If a number of `config` is impossible, this poller has no room for its completions, or the device has no room.
    pub fn open(
        &mut self,
        config: Config,
        admission: impl Admission + 'static,
        handler: H,
    ) -> Result<Session<H>> {
        let of = |lines: usize, depth: u32| lines as u64 * u64::from(depth);
        let taken = self.sessions.iter().map(|session| session.completions()).sum::<u64>();
        let wanted = taken + of(config.connections, config.send_depth);
        if wanted > u64::from(self.config.completions) {
            let what = format!(
                "{wanted} completions of all its sessions; the poller holds {}: give it more",
                self.config.completions
            );
            return Err(Error::invalid("open session", what));
        }
        let shared = Arc::new(Shared::new(&self.nic, &self.cq, config, Box::new(admission), handler)?);
        self.sessions.push(Arc::clone(&shared));
        self.index();
        Ok(Session::new(shared))
    }

    fn index(&mut self) {
        self.pairs.clear();
        for (session, shared) in self.sessions.iter().enumerate() {
            let pairs = shared.pair_numbers().enumerate();
            self.pairs.extend(pairs.map(|(line, qp_num)| (qp_num, session, line)));
        }
        self.pairs.sort_unstable();
    }

    /// Lets go of sessions of which nothing is under way any more.
    fn forget_over(&mut self) {
        if self.sessions.iter().any(|session| session.is_over()) {
            self.sessions.retain(|session| !session.is_over());
            self.index();
        }
    }

    /// How many sessions it looks after.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// What it did so far.
    pub fn counts(&self) -> PollCounts {
        let counters = &self.counters;
        PollCounts {
            polls: counters.polls.get(),
            empty_polls: counters.empty_polls.get(),
            completions: counters.completions.get(),
            sleeps: counters.sleeps.get(),
        }
    }

    /// Ends the requests of completions, and lets their sessions post what waited for them.
    fn end_requests(&mut self, count: usize) {
        let Self { sessions, pairs, wcs, entries, done, .. } = self;
        let mut at = 0;
        while at < count {
            let Some(first) = find(pairs, wcs[at].qp_num) else {
                at += 1;
                continue;
            };
            // Completions of one session together: it plans once for all of them.
            let session = &sessions[first.0];
            let mut turn = None;
            while at < count
                && let Some((of, line)) = find(pairs, wcs[at].qp_num)
                && of == first.0
            {
                turn = session.complete(line, &wcs[at], entries, done).or(turn);
                at += 1;
            }
            session.run(turn);
            session.call_back(done);
        }
    }
}

/// Its sessions end. What is under way is told of as far as it is known at once.
impl<H: Handler> Drop for Poller<H> {
    fn drop(&mut self) {
        self.sessions.iter().for_each(|session| session.fail("its poller was dropped"));
        while self.progress(Nanos(0)) == Next::Again {}
    }
}

fn find(pairs: &[(u32, usize, usize)], qp_num: u32) -> Option<(usize, usize)> {
    let at = pairs.binary_search_by_key(&qp_num, |pair| pair.0).ok()?;
    Some((pairs[at].1, pairs[at].2))
}

impl<H: Handler> Endpoint for Poller<H> {
    fn progress(&mut self, _now: Nanos) -> Next {
        self.counters.polls.increment();
        let polled = lock(&self.cq).poll(&mut self.wcs);
        let count = match polled {
            Ok(count) => count,
            Err(error) => {
                if !std::mem::replace(&mut self.is_broken, true) {
                    self.sessions.iter().for_each(|session| session.fail(&error.to_string()));
                }
                return Next::IDLE;
            }
        };
        if count == 0 {
            self.counters.empty_polls.increment();
            self.forget_over();
            return Next::IDLE;
        }
        self.counters.completions.add(count as u64);
        self.end_requests(count);
        Next::Again
    }

    fn arm(&mut self) -> Result<()> {
        self.counters.sleeps.increment();
        while let Ok(Some(_)) = self.channel.poll_cq_event() {}
        lock(&self.cq).req_notify(Notify::Any)
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.channel.fd());
    }
}
