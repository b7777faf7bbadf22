//! Poller of one completion queue, which the sessions opened on it share.

use std::sync::{Arc, Mutex};

use farcall_link::Nic;
use farcall_stats::Block;
use farcall_verbs::{
    CompChannel, CqInitAttr, Endpoint, Error, Nanos, Notify, Progress, RawCq, Result, WaitSet, Wc,
    with_sources,
};

use crate::request::Entry;
use crate::session::{Shared, lock};
use crate::{Admission, Config, Handler, Session, TransferCompletion};

/// A completion queue. Only its poller polls it; the sessions keep it alive until their queue pairs are destroyed.
pub(crate) type SharedCq = Arc<Mutex<Box<dyn RawCq>>>;

/// Sizes of a poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerConfig {
    /// Capacity of the completion queue: the maximum number of completions that its sessions may have outstanding.
    pub completions: u32,
    /// Maximum number of completions per poll (MAX_POLL_WC).
    pub max_poll_wc: usize,
}

impl Default for PollerConfig {
    fn default() -> Self {
        Self { completions: 4096, max_poll_wc: 16 }
    }
}

farcall_stats::counters! {
    /// Counters of a poller for `farcall stats`.
    struct Counters {
        polls,
        empty_polls,
        completions,
        sleeps,
    }
}

/// Counters of a poller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollCounts {
    /// Polls of the completion queue.
    pub polls: u64,
    /// Polls that found no completion.
    pub empty_polls: u64,
    /// Completions found.
    pub completions: u64,
    /// Number of times that the poller requested an event, to sleep.
    pub sleeps: u64,
}

/// Polls for completions, completes requests, and posts requests that waited for them. It is an endpoint: a
/// `farcall_drive::Driver` runs it with a `WaitStrategy`: busy polling; event and batch; naive hybrid; adaptive, which
/// sleeps after `max_retry` empty polls in a row (RDMAbox, algorithm 3; MAX_RETRY is 120 there).
///
/// Several sessions on one poller share a completion queue (SCQ in the paper). One poller per session, each with its
/// own thread, is the paper's N CQs; M pollers are SCQ(M).
pub struct Poller<H: Handler> {
    nic: Nic,
    config: PollerConfig,
    sessions: Vec<Arc<Shared<H>>>,
    /// Queue pair number, index of the session, index of the queue pair in the session; sorted by number.
    pairs: Vec<(u32, usize, usize)>,
    cq: SharedCq,
    channel: Arc<dyn CompChannel>,
    wcs: Vec<Wc>,
    entries: Vec<Entry<H::Context>>,
    completed: Vec<TransferCompletion<H::Context>>,
    counters: Block<Counters>,
    /// Whether polling the completion queue has failed. No completion can be reported any more.
    is_broken: bool,
}

impl<H: Handler> Poller<H> {
    /// Creates a poller without sessions.
    ///
    /// # Errors
    /// If the device cannot create the completion queue or its channel.
    pub fn new(nic: &Nic, config: PollerConfig) -> Result<Self> {
        let channel = nic.context().create_comp_channel()?;
        let attr = CqInitAttr { cqe: config.completions, channel: Some(&*channel) };
        let cq = Arc::new(Mutex::new(nic.context().create_cq(&attr)?));
        Ok(Self {
            nic: nic.clone(),
            config,
            sessions: Vec::new(),
            pairs: Vec::new(),
            cq,
            channel,
            wcs: vec![Wc::default(); config.max_poll_wc.max(1)],
            entries: Vec::new(),
            completed: Vec::new(),
            counters: Block::new("remio poller", 0),
            is_broken: false,
        })
    }

    /// Opens a session, which is not connected yet. `admission` limits the bytes in flight. `handler` is called for
    /// each request that has completed, by the thread that runs this poller or by a thread that submits.
    ///
    /// # Errors
    /// If a number of `config` is out of range, the completion queue is too short for the session, or the device lacks
    /// resources.
    pub fn open(
        &mut self,
        config: Config,
        admission: impl Admission + 'static,
        handler: H,
    ) -> Result<Session<H>> {
        let of = |qps: usize, depth: u32| qps as u64 * u64::from(depth);
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

    /// Rebuilds the table of queue pairs.
    fn index(&mut self) {
        self.pairs.clear();
        for (session, shared) in self.sessions.iter().enumerate() {
            let pairs = shared.pair_numbers().enumerate();
            self.pairs.extend(pairs.map(|(qp_index, qp_num)| (qp_num, session, qp_index)));
        }
        self.pairs.sort_unstable();
    }

    /// Releases sessions that have ended and have nothing in flight any more.
    fn remove_ended_sessions(&mut self) {
        if self.sessions.iter().any(|session| session.has_ended()) {
            self.sessions.retain(|session| !session.has_ended());
            self.index();
        }
    }

    /// Returns the number of sessions, including ended ones that still have work requests in flight.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the counters.
    pub fn counts(&self) -> PollCounts {
        let counters = &self.counters;
        PollCounts {
            polls: counters.polls.get(),
            empty_polls: counters.empty_polls.get(),
            completions: counters.completions.get(),
            sleeps: counters.sleeps.get(),
        }
    }

    /// Completes the requests of the first `count` completions, and lets their sessions post requests that waited.
    fn handle_completions(&mut self, count: usize) {
        let Self { sessions, pairs, wcs, entries, completed, .. } = self;
        let mut at = 0;
        while at < count {
            let Some(first) = find_qp(pairs, wcs[at].qp_num) else {
                at += 1;
                continue;
            };
            // Consecutive completions of one session are handled together, so that it plans once for all of them.
            let session = &sessions[first.0];
            let mut combiner = None;
            while at < count
                && let Some((of, qp_index)) = find_qp(pairs, wcs[at].qp_num)
                && of == first.0
            {
                combiner = session.complete(qp_index, &wcs[at], entries, completed).or(combiner);
                at += 1;
            }
            session.schedule(combiner);
            session.notify_handler(completed);
        }
    }
}

/// Ends the sessions. Requests in flight are completed as far as their completions are available immediately.
impl<H: Handler> Drop for Poller<H> {
    fn drop(&mut self) {
        self.sessions.iter().for_each(|session| session.fail("its poller was dropped"));
        while self.progress(Nanos(0)) == Progress::Again {}
    }
}

/// Returns the index of the session and of the queue pair with this number.
fn find_qp(pairs: &[(u32, usize, usize)], qp_num: u32) -> Option<(usize, usize)> {
    let at = pairs.binary_search_by_key(&qp_num, |pair| pair.0).ok()?;
    Some((pairs[at].1, pairs[at].2))
}

impl<H: Handler> Endpoint for Poller<H> {
    fn progress(&mut self, _now: Nanos) -> Progress {
        self.counters.polls.increment();
        let polled = lock(&self.cq).poll(&mut self.wcs);
        let count = match polled {
            Ok(count) => count,
            Err(error) => {
                if !std::mem::replace(&mut self.is_broken, true) {
                    self.sessions.iter().for_each(|session| session.fail(&with_sources(&error)));
                }
                return Progress::IDLE;
            }
        };
        if count == 0 {
            self.counters.empty_polls.increment();
            self.remove_ended_sessions();
            return Progress::IDLE;
        }
        self.counters.completions.add(count as u64);
        self.handle_completions(count);
        Progress::Again
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
