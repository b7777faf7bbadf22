//! The server endpoint: polls the mailboxes of many connections, executes received messages, and stores results where
//! clients fetch them, or writes them to clients that have requested that.
//!
//! A driver iteration ([`Responder::progress`](farcall_verbs::Endpoint::progress)) has these steps: poll completions
//! from time to time, serve each connection that has a message, and expire sessions. An empty mailbox costs one load.
//! Each phase of a message has a file: [`accept`] (connected), [`serve`] (received), [`parts`] (assembled),
//! [`execute`] (executed and answered). The differences between the paths of a plan are in [`crate::paths`].

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

use farcall_drive::HeapTrimmer;
use farcall_link::bootstrap::Refusal;
use farcall_link::{Completed, Nic};
use farcall_verbs::{
    Clock, CompChannel, CqInitAttr, Endpoint, Nanos, Progress, RawCq, Result, WaitSet, WakeProbe, Wc,
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

/// Number of a connection of a responder. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// An event for the thread that runs a responder.
#[derive(Debug)]
pub enum ResponderEvent {
    /// A connection ended. The thread should send the reason over its bootstrap connection, if there is one for the
    /// client, and close it.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// The reason.
        why: Broken,
        /// The refusal to send to the client.
        tell: Option<Refusal>,
    },
}

/// An open connection.
struct Open<H, C> {
    end: ServerEnd,
    turns: Turns<H, C>,
}

/// A session without a connection.
struct Parked {
    session: Session,
    expires: Nanos,
}

/// Result of a driver iteration.
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

/// Completion queue entries for each connection, mostly for wake-ups. (Requests by SEND are limited by credits.)
const COMPLETIONS_OF_CONNECTION: usize = 16;
/// Minimum number of completion queue entries, since datagrams also need some.
const COMPLETIONS_MIN: usize = 16_384;
const COMPLETIONS_AT_ONCE: usize = 32;
/// Maximum number of polls of the completion queue in an iteration, so that a client that sends without pause does not
/// delay the others.
const LOOKS_A_TURN: u32 = 64;
/// Number of mailboxes that count as one poll of an idle iteration, so that a thousand clients do not make the server
/// poll for longer.
const CONNECTIONS_A_LOOK: usize = 64;
/// Number of iterations between polls of the completion queue while there is work. Its completions then only indicate
/// free send queue entries, and clients that want to sleep.
const TURNS_PER_POLL: u32 = 8;

/// The server endpoint. Generic over the service, and over the clock that measures how long the service takes
/// (RF-RPC's two-byte processing time). All decisions that depend on time use the driver's `now`.
pub struct Responder<H, C> {
    nic: Nic,
    cq: Box<dyn RawCq>,
    channel: Arc<dyn CompChannel>,
    incarnation: u64,
    connections: Vec<Open<H, C>>,
    lookout: Lookout,
    by_qp: HashMap<u32, ConnectionId>,
    /// Key: the session's tag.
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
    /// Number of connections whose requests are announced by completions.
    receiving: usize,
    /// Number of connections with responses to push or wake-ups to send that found no room.
    owing: usize,
    /// Kept to reuse its memory.
    answered_tags: Vec<u32>,
    heap_trimmer: HeapTrimmer,
}

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Creates a server thread's endpoint on a device. `incarnation` must differ from that of any earlier start of the
    /// server.
    ///
    /// # Errors
    /// Returns an error if the completion queue or the channel cannot be created.
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
            heap_trimmer: HeapTrimmer::default(),
        })
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.engine.counters
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Returns the number of sessions that wait for their client to reconnect.
    pub fn sessions_parked(&self) -> usize {
        self.parked.len()
    }

    /// Returns the service.
    pub fn handler(&mut self) -> &mut H {
        &mut self.engine.handler
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ResponderEvent> {
        self.events.pop_front()
    }

    /// Serves every connection once. Returns whether any had a message.
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

    /// Serves clients whose messages should have been announced by a byte, but were not.
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

    /// Handles completions: free send queue entries, wake-ups, failures.
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
        // Ids only grow, and removal preserves the order.
        self.connections.binary_search_by_key(&id, |open| open.end.id).ok()
    }

    /// Returns whether a client waits for a deferred answer.
    fn owes_answers(&self) -> bool {
        self.connections.iter().any(|open| !open.end.session.deferred.is_empty())
    }

    /// Arms the completion queue. All work that completions announce, including requests by SEND, raises an event.
    fn arm_completions(&mut self) -> Result<()> {
        let kept_bytes = self.engine.buffered.bytes();
        self.heap_trimmer.record_use(self.engine.buffered.take_peak_bytes());
        if self.heap_trimmer.is_due(kept_bytes) {
            self.heap_trimmer.trim(kept_bytes);
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
    fn progress(&mut self, now: Nanos) -> Progress {
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
            return Progress::Again;
        }
        self.expire_sessions(now);
        if self.owing > 0 {
            return Progress::Again;
        }
        let expiry = self.parked.iter().map(|parked| parked.expires).min();
        let until = Nanos::earlier(expiry, self.engine.deferring.next_deadline);
        drain.merge(Progress::Idle { until })
    }

    fn arm(&mut self) -> Result<()> {
        self.publish_sleep();
        self.arm_completions()
    }

    fn wake_probe(&self) -> Option<Arc<dyn WakeProbe>> {
        Some(self.lookout.covered())
    }

    fn arm_delegated(&mut self) -> Result<()> {
        // The sleep flag stays clear, so no client sends a KICK. The poller polls mailboxes, and not bytes, which
        // other clients can overwrite. The last poll before sleeping must do the same.
        self.lookout.tell_poller(self.connections.iter().map(|open| &open.end));
        self.lookout.distrusts_bytes = true;
        self.arm_completions()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.channel.fd());
        set.insert(self.engine.deferring.answered.sleeper.fd());
    }

    fn poll_weight(&self) -> u32 {
        (self.connections.len() / CONNECTIONS_A_LOOK) as u32 + 1
    }
}
