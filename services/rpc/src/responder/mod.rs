//! The server endpoint: polls the mailboxes of many connections, executes what comes, and leaves results where clients
//! fetch them, or writes them to those who asked for that.
//!
//! A turn ([`Responder::progress`](farcall_verbs::Endpoint::progress)) reads: look at completions now and then, serve
//! each connection that has a message, let sessions expire. An empty mailbox costs one load. A file for each phase of a
//! message: [`accept`] (connected), [`serve`] (taken), [`parts`] (put together), [`execute`] (executed and answered).
//! What differs between the paths of a plan is in [`crate::paths`].

mod accept;
mod answered;
#[cfg(test)]
mod answered_model;
mod batch;
mod buffered;
mod collect;
mod datagrams;
mod deferred;
mod dense_bytes;
mod drain;
mod end;
mod ending;
mod execute;
mod handler;
mod lookout;
mod parts;
mod serve;
mod session;
mod sleep;
#[cfg(test)]
mod sleep_model;
mod thread_pair;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use farcall_drive::KeptMemory;
use farcall_link::bootstrap::Refusal;
use farcall_link::{Completed, Nic};
use farcall_verbs::{
    Clock, CompChannel, CqInitAttr, Endpoint, Nanos, Next, Probe, RawCq, Result, WaitSet, Wc,
};

use crate::config::ResponderConfig;
use crate::counters::Counters;
use crate::error::Broken;
use answered::Answered;
pub use deferred::Deferred;
use drain::Phase;
pub(crate) use end::{OwnPair, ServerEnd};
pub use handler::{Call, Handler, HandlerError, Reply};
use lookout::Lookout;
use serve::{Engine, Served, Turns};
use session::Session;
use sleep::Sleep;
pub(crate) use thread_pair::{Datagram, ThreadPair};

/// A connection of a responder. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// What a responder tells its owner.
#[derive(Debug)]
pub enum ResponderEvent {
    /// A connection ended; its bootstrap channel should say why, if there is a reason for the client, and be closed.
    Closed {
        /// Which.
        connection: ConnectionId,
        /// Why.
        why: Broken,
        /// What to tell the client.
        tell: Option<Refusal>,
    },
}

/// A connection that is open.
struct Open<H, C> {
    end: ServerEnd,
    turns: Turns<H, C>,
}

/// A session whose connection is gone.
struct Parked {
    session: Session,
    expires: Nanos,
}

/// What came of a turn.
#[derive(Default)]
struct Turn {
    served: bool,
    has_violations: bool,
}

impl Turn {
    #[inline]
    fn came(&mut self, served: Served) {
        match served {
            Served::Some | Served::Stalled => self.served = true,
            Served::Nothing => {}
            Served::Violation => self.has_violations = true,
        }
    }
}

/// Places in the completion queue for each connection: wake-ups, mostly. (Requests by SEND take turns at credits.)
const COMPLETIONS_OF_CONNECTION: usize = 16;
/// Places at least: datagrams, too, need some.
const COMPLETIONS_MIN: usize = 16_384;
const COMPLETIONS_AT_ONCE: usize = 32;
/// Looks at the completion queue in a turn, at most: who sends without end does not keep the others waiting.
const LOOKS_A_TURN: u32 = 64;
/// So many mailboxes are one look of an idle turn: a thousand clients do not make the server poll on for longer.
const CONNECTIONS_A_LOOK: usize = 64;
/// Turns between looks at the completion queue while there is work: its completions only tell of free places in send
/// queues, and of clients that want to sleep.
const TURNS_PER_POLL: u32 = 8;

/// The server endpoint. Generic over the service and over the clock that measures how long the service takes (RF-RPC's
/// two-byte processing time); all decisions in time use the `now` that its driver gives.
pub struct Responder<H, C> {
    nic: Nic,
    cq: Box<dyn RawCq>,
    channel: Arc<dyn CompChannel>,
    incarnation: u64,
    connections: Vec<Open<H, C>>,
    lookout: Lookout,
    by_qp: HashMap<u32, ConnectionId>,
    /// By the session's tag.
    by_tag: HashMap<u32, ConnectionId>,
    next_id: u32,
    closing: Vec<ServerEnd>,
    parked: Vec<Parked>,
    events: VecDeque<ResponderEvent>,
    engine: Engine<H, C>,
    phase: Phase,
    sleep: Sleep,
    wcs: [Wc; COMPLETIONS_AT_ONCE],
    turns_to_poll: u32,
    /// Connections whose requests are told of by completions.
    receiving: usize,
    /// Connections with responses to push, or of answers to tell, that found no room.
    owing: usize,
    /// Here so that its memory is used again.
    answered_tags: Vec<u32>,
    kept_memory: KeptMemory,
}

impl<H: Handler, C: Clock> Responder<H, C> {
    /// A server thread's endpoint on a device. `incarnation` must differ from that of any earlier start of the server.
    ///
    /// # Errors
    /// If the device gives no completion queue or channel.
    pub fn new(nic: Nic, config: ResponderConfig, incarnation: u64, handler: H, clock: C) -> Result<Self> {
        let channel = nic.context.create_comp_channel()?;
        let most = config.connections_max.saturating_mul(COMPLETIONS_OF_CONNECTION);
        let cqe = u32::try_from(most.max(COMPLETIONS_MIN)).unwrap_or(u32::MAX).min(nic.attr.max_cqe);
        let cq = nic.context.create_cq(&CqInitAttr { cqe, channel: Some(&*channel) })?;
        Ok(Self {
            nic,
            cq,
            channel,
            incarnation,
            connections: Vec::new(),
            lookout: Lookout::default(),
            by_qp: HashMap::new(),
            by_tag: HashMap::new(),
            next_id: 0,
            closing: Vec::new(),
            parked: Vec::new(),
            events: VecDeque::new(),
            engine: Engine::new(config, incarnation, handler, clock, Arc::new(Answered::new()?)),
            phase: Phase::Serving,
            sleep: Sleep::Awake,
            wcs: [Wc::default(); COMPLETIONS_AT_ONCE],
            turns_to_poll: 0,
            receiving: 0,
            owing: 0,
            answered_tags: Vec::new(),
            kept_memory: KeptMemory::default(),
        })
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.engine.counters
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Sessions that wait for their client to come back.
    pub fn sessions_parked(&self) -> usize {
        self.parked.len()
    }

    /// The service.
    pub fn handler(&mut self) -> &mut H {
        &mut self.engine.handler
    }

    /// What the owner should know.
    pub fn poll_event(&mut self) -> Option<ResponderEvent> {
        self.events.pop_front()
    }

    /// Serves every connection once; returns whether there was anything.
    fn serve_all(&mut self, now: Nanos) -> bool {
        let mut turn = Turn::default();
        let is_told = self.receiving > 0;
        for place in 0..self.lookout.places() {
            let at = self.lookout.owner(place);
            if self.lookout.sees(place) || (is_told && self.connections[at].end.has_mail()) {
                turn.came(self.serve_at(at, now));
                self.lookout.follow(place, &self.connections[at].end);
            }
        }
        for word in 0..self.lookout.bytes.words() {
            let mut told = self.lookout.bytes.told(word);
            while told != 0 {
                let Some((byte, at)) = self.lookout.bytes.next(word, &mut told) else { continue };
                turn.came(self.serve_at(at, now));
                self.lookout.bytes.follow(byte, self.connections[at].end.session.expect);
            }
        }
        if self.lookout.distrusts_bytes {
            self.serve_untold(&mut turn, now);
        }
        if turn.has_violations {
            self.close_violators();
        }
        turn.served || turn.has_violations
    }

    #[inline]
    fn serve_at(&mut self, at: usize, now: Nanos) -> Served {
        let Open { end, turns } = &mut self.connections[at];
        let came = (turns.serve_burst)(&mut self.engine, end, now);
        if came == Served::Stalled {
            self.turns_to_poll = 0;
        }
        came
    }

    /// Serves those of whose messages no byte tells, as it should.
    #[cold]
    fn serve_untold(&mut self, turn: &mut Turn, now: Nanos) {
        self.lookout.distrusts_bytes = false;
        for at in 0..self.connections.len() {
            let end = &self.connections[at].end;
            let Some(byte) = end.byte.filter(|_| end.has_mail()) else { continue };
            turn.came(self.serve_at(at, now));
            self.lookout.bytes.follow(byte, self.connections[at].end.session.expect);
        }
    }

    /// Takes completions: free places in send queues, wake-ups, failures.
    fn poll_completions(&mut self, now: Nanos) -> bool {
        self.turns_to_poll = if self.receiving == 0 { TURNS_PER_POLL } else { 0 };
        let mut any = false;
        for _ in 0..LOOKS_A_TURN {
            let got = match self.cq.poll(&mut self.wcs) {
                Ok(got) => got,
                Err(error) => {
                    self.fail_all(&error, now);
                    return true;
                }
            };
            for at in 0..got {
                let wc = self.wcs[at];
                self.completed(&wc, now);
            }
            any |= got > 0;
            if got < self.wcs.len() {
                break;
            }
        }
        self.push_owed();
        any
    }

    fn completed(&mut self, wc: &Wc, now: Nanos) {
        if let Some(completed) = self.engine.thread_pair.complete(wc) {
            return self.completed_datagram(completed, wc.src_qp, now);
        }
        let Some(id) = self.by_qp.get(&wc.qp_num).copied() else { return };
        let Some(at) = self.position(id) else {
            let closing = self.closing.iter_mut().find(|closing| closing.id == id);
            if let Some(own) = closing.and_then(|closing| closing.own.as_mut()) {
                own.connection.complete(wc);
            }
            self.release_closing();
            return;
        };
        let end = &mut self.connections[at].end;
        let Some(OwnPair { connection, .. }) = &mut end.own else { return };
        match connection.complete(wc) {
            Completed::Send { .. } | Completed::Flushed => {}
            Completed::Received { tag, imm, .. } => {
                if !end.inbox.received(connection, tag, imm) {
                    return;
                }
                self.engine.counters.kicks.increment();
                let owed_before = end.owes();
                end.kicked(imm.unwrap_or(0));
                self.lookout.distrusts_bytes |= end.byte.is_some();
                self.owing += usize::from(!owed_before && end.owes());
            }
            Completed::Failed(status) => self.end(at, Broken::Completion(status), None, Some(now)),
        }
    }

    fn push_owed(&mut self) {
        if self.owing == 0 {
            return;
        }
        for Open { end, turns } in &mut self.connections {
            if end.owes() && (turns.push_owed)(&mut self.engine, end) {
                self.owing -= 1;
            }
        }
    }

    fn position(&self, id: ConnectionId) -> Option<usize> {
        // Ids only grow and removal keeps the order.
        self.connections.binary_search_by_key(&id, |open| open.end.id).ok()
    }

    /// Whether a client waits for an answer that comes later.
    fn owes_answers(&self) -> bool {
        self.connections.iter().any(|open| !open.end.session.deferred.is_empty())
    }

    /// What comes by completions, requests by SEND too, makes events.
    fn arm_completions(&mut self) -> Result<()> {
        let kept_bytes = self.engine.buffered.bytes();
        self.kept_memory.saw(self.engine.buffered.take_peak_bytes());
        if self.kept_memory.is_due(kept_bytes) {
            self.kept_memory.give_back(kept_bytes);
        }
        self.drop_events();
        if self.engine.deferring.may_be_answered() {
            self.engine.deferring.answered.sleeper.arm();
        }
        self.turns_to_poll = 0;
        self.cq.req_notify(farcall_verbs::Notify::Any)
    }
}

impl<H: Handler, C: Clock> Endpoint for Responder<H, C> {
    fn progress(&mut self, now: Nanos) -> Next {
        let mut any = false;
        if self.turns_to_poll == 0 || self.sleep != Sleep::Awake {
            any |= self.poll_completions(now);
        } else {
            self.turns_to_poll -= 1;
        }
        any |= self.serve_all(now);
        if self.engine.deferring.answered.has_any() {
            self.tell_of_answers();
            any = true;
        }
        self.after_turn(any);
        self.expire_deferred(now);
        let drain = self.progress_drain(any, now);
        if any {
            return Next::Again;
        }
        self.expire_sessions(now);
        if self.owing > 0 {
            return Next::Again;
        }
        let expiry = self.parked.iter().map(|parked| parked.expires).min();
        let until = Nanos::earlier(expiry, self.engine.deferring.next_deadline);
        drain.merge(Next::Idle { until })
    }

    fn arm(&mut self) -> Result<()> {
        self.publish_sleep();
        self.arm_completions()
    }

    fn news_probe(&self) -> Option<Arc<dyn Probe>> {
        Some(self.lookout.covered())
    }

    fn arm_covered(&mut self) -> Result<()> {
        // Clients see a server that is awake: nobody sends a KICK. The poller looks at mailboxes, not at bytes that others
        // can disturb, so the look before sleep does, too.
        self.lookout.tell_poller(self.connections.iter().map(|open| &open.end));
        self.lookout.distrusts_bytes = true;
        self.arm_completions()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.channel.fd());
        set.insert(self.engine.deferring.answered.sleeper.fd());
    }

    fn looks(&self) -> u32 {
        (self.connections.len() / CONNECTIONS_A_LOOK) as u32 + 1
    }
}
