//! The server endpoint: polls the mailboxes of many connections, executes received messages, and stores results where
//! clients fetch them, or writes them to clients that have requested that.
//!
//! A driver iteration ([`Responder::progress`](farcall_verbs::Endpoint::progress)) has these steps: poll completions
//! from time to time, serve each connection that has a message, and expire sessions. An empty mailbox costs one load.
//! Each phase of a message has a file: [`accept`] (connected), [`parts`] (assembled), [`engine`] (served, executed
//! and answered). The differences between the paths of a plan are in [`crate::paths`].

mod accept;
mod buffered;
mod datagrams;
mod deferred;
mod deferred_calls;
mod deferred_ready;
#[cfg(test)]
mod deferred_ready_model;
mod doorbell_bytes;
mod drain;
mod end;
mod ending;
mod engine;
mod handler;
mod mailbox;
mod mailbox_poll;
mod parts;
mod session;
mod shared_ud_qp;
mod sleep;
#[cfg(test)]
mod sleep_model;

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
pub use deferred::Deferred;
use deferred_ready::ReadyDeferredCalls;
use drain::Phase;
use end::DedicatedQp;
pub(crate) use end::ServerConnection;
use engine::{Engine, PathVtable, ServeOutcome};
pub use handler::{Call, Handler, Reply};
use mailbox_poll::MailboxPollTable;
use session::Session;
pub(crate) use shared_ud_qp::SharedUdQp;
use sleep::Sleep;

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
        refusal: Option<Refusal>,
    },
}

/// An open connection.
struct Open<H, C> {
    end: ServerConnection,
    paths: PathVtable<H, C>,
}

/// A session without a connection.
struct DetachedSession {
    session: Session,
    expires: Nanos,
}

/// Result of a driver iteration.
#[derive(Default)]
struct IterationResult {
    served: bool,
    has_violations: bool,
}

impl IterationResult {
    #[inline]
    fn record(&mut self, served: ServeOutcome) {
        match served {
            ServeOutcome::Some | ServeOutcome::Stalled => self.served = true,
            ServeOutcome::Nothing => {}
            ServeOutcome::Violation => self.has_violations = true,
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
const CQ_POLLS_PER_TURN_MAX: u32 = 64;
/// Number of mailboxes that count as one poll of an idle iteration, so that a thousand clients do not make the server
/// poll for longer.
const CONNECTIONS_PER_POLL: usize = 64;
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
    poll_table: MailboxPollTable,
    by_qp: HashMap<u32, ConnectionId>,
    /// Key: the session's tag.
    by_tag: HashMap<u32, ConnectionId>,
    next_id: u32,
    closing: Vec<ServerConnection>,
    detached: Vec<DetachedSession>,
    events: VecDeque<ResponderEvent>,
    engine: Engine<H, C>,
    phase: Phase,
    sleep: Sleep,
    wcs: [Wc; COMPLETIONS_AT_ONCE],
    turns_to_poll: u32,
    /// Number of connections whose requests are announced by completions.
    receiving: usize,
    /// Number of connections with responses to push or wake-ups to send that found no room.
    due_connections: usize,
    /// Tags of sessions with answered calls, empty between uses; a field to reuse its memory.
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
        let channel = nic.context().create_comp_channel()?;
        let most = config.connections_max.saturating_mul(COMPLETIONS_OF_CONNECTION);
        let cqe = u32::try_from(most.max(COMPLETIONS_MIN)).unwrap_or(u32::MAX).min(nic.attr().max_cqe);
        let cq = nic.context().create_cq(&CqInitAttr { cqe, channel: Some(&*channel) })?;
        Ok(Self {
            nic,
            cq,
            channel,
            incarnation,
            connections: Vec::new(),
            poll_table: MailboxPollTable::default(),
            by_qp: HashMap::new(),
            by_tag: HashMap::new(),
            next_id: 0,
            closing: Vec::new(),
            detached: Vec::new(),
            events: VecDeque::new(),
            engine: Engine::new(config, incarnation, handler, clock, Arc::new(ReadyDeferredCalls::new()?)),
            phase: Phase::Serving,
            sleep: Sleep::Awake,
            wcs: [Wc::default(); COMPLETIONS_AT_ONCE],
            turns_to_poll: 0,
            receiving: 0,
            due_connections: 0,
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
    pub fn detached_sessions(&self) -> usize {
        self.detached.len()
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
        let mut turn = IterationResult::default();
        let is_completion_driven = self.receiving > 0;
        for entry in 0..self.poll_table.entries() {
            let at = self.poll_table.owner(entry);
            if self.poll_table.has_message(entry)
                || (is_completion_driven && self.connections[at].end.has_mail())
            {
                turn.record(self.serve_at(at, now));
                self.poll_table.follow(entry, &self.connections[at].end);
            }
        }
        for word in 0..self.poll_table.bytes.words() {
            let mut pending = self.poll_table.bytes.pending(word);
            while pending != 0 {
                let Some((byte, at)) = self.poll_table.bytes.next(word, &mut pending) else { continue };
                turn.record(self.serve_at(at, now));
                self.poll_table.bytes.follow(byte, self.connections[at].end.session.expect);
            }
        }
        if self.poll_table.ignore_doorbells {
            self.serve_unannounced(&mut turn, now);
        }
        if turn.has_violations {
            self.close_violators();
        }
        turn.served || turn.has_violations
    }

    #[inline]
    fn serve_at(&mut self, at: usize, now: Nanos) -> ServeOutcome {
        let Open { end, paths } = &mut self.connections[at];
        let outcome = (paths.serve_burst)(&mut self.engine, end, now);
        if outcome == ServeOutcome::Stalled {
            self.turns_to_poll = 0;
        }
        outcome
    }

    /// Serves clients whose messages should have been announced by a byte, but were not.
    #[cold]
    fn serve_unannounced(&mut self, turn: &mut IterationResult, now: Nanos) {
        self.poll_table.ignore_doorbells = false;
        for at in 0..self.connections.len() {
            let end = &self.connections[at].end;
            let Some(byte) = end.byte.filter(|_| end.has_mail()) else { continue };
            turn.record(self.serve_at(at, now));
            self.poll_table.bytes.follow(byte, self.connections[at].end.session.expect);
        }
    }

    /// Handles completions: free send queue entries, wake-ups, failures.
    fn poll_completions(&mut self, now: Nanos) -> bool {
        self.turns_to_poll = if self.receiving == 0 { TURNS_PER_POLL } else { 0 };
        let mut any = false;
        for _ in 0..CQ_POLLS_PER_TURN_MAX {
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
        self.push_due_responses();
        any
    }

    fn completed(&mut self, wc: &Wc, now: Nanos) {
        if let Some(completed) = self.engine.shared_ud_qp.complete(wc) {
            return self.completed_datagram(completed, wc.src_qp, now);
        }
        let Some(id) = self.by_qp.get(&wc.qp_num).copied() else { return };
        let Some(at) = self.position(id) else {
            let closing = self.closing.iter_mut().find(|closing| closing.id == id);
            if let Some(dedicated_qp) = closing.and_then(|closing| closing.dedicated_qp.as_mut()) {
                dedicated_qp.connection.complete(wc);
            }
            self.release_closing();
            return;
        };
        let end = &mut self.connections[at].end;
        let Some(DedicatedQp { connection, .. }) = &mut end.dedicated_qp else { return };
        match connection.complete(wc) {
            Completed::Send { .. } | Completed::Flushed => {}
            Completed::Received { tag, imm, .. } => {
                if !end.inbox.received(connection, tag, imm) {
                    return;
                }
                self.engine.counters.kicks.increment();
                let had_work_due = end.has_work_due();
                end.kicked(imm.unwrap_or(0));
                self.poll_table.ignore_doorbells |= end.byte.is_some();
                self.due_connections += usize::from(!had_work_due && end.has_work_due());
            }
            Completed::Failed(status) => self.end(at, Broken::Completion(status), None, Some(now)),
        }
    }

    fn push_due_responses(&mut self) {
        if self.due_connections == 0 {
            return;
        }
        for Open { end, paths } in &mut self.connections {
            if end.has_work_due() && (paths.push_due_responses)(&mut self.engine, end) {
                self.due_connections -= 1;
            }
        }
    }

    fn position(&self, id: ConnectionId) -> Option<usize> {
        // Ids only grow, and removal preserves the order.
        self.connections.binary_search_by_key(&id, |open| open.end.id).ok()
    }

    /// Returns whether a client waits for a deferred answer.
    fn clients_wait(&self) -> bool {
        self.connections.iter().any(|open| !open.end.session.deferred.is_empty())
    }

    /// Wakes the clients whose calls were answered and that have requested a wake-up.
    #[cold]
    pub(super) fn notify_deferred(&mut self) {
        let mut tags = std::mem::take(&mut self.answered_tags);
        self.engine.deferred_calls.ready().take(&mut tags);
        for tag in tags.drain(..) {
            let id = self.by_tag.get(&tag).copied();
            let Some(at) = id.and_then(|id| self.position(id)) else { continue };
            let end = &mut self.connections[at].end;
            let had_work_due = end.has_work_due();
            end.check_answers();
            self.engine.wake_client(end);
            self.due_connections =
                self.due_connections + usize::from(end.has_work_due()) - usize::from(had_work_due);
        }
        self.answered_tags = tags;
    }

    /// Arms the completion queue. All work that completions announce, including requests by SEND, raises an event.
    fn arm_completions(&mut self) -> Result<()> {
        let kept_bytes = self.engine.buffered.bytes();
        self.heap_trimmer.record_use(self.engine.buffered.take_peak_bytes());
        if self.heap_trimmer.is_due(kept_bytes) {
            self.heap_trimmer.trim(kept_bytes);
        }
        self.drop_events();
        if self.engine.deferred_calls.may_be_answered() {
            self.engine.deferred_calls.ready().sleeper.arm();
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
        if self.engine.deferred_calls.ready().has_any() {
            self.notify_deferred();
            any = true;
        }
        self.after_turn(any);
        self.expire_deferred(now);
        let drain = self.progress_drain(any, now);
        if any {
            return Progress::Again;
        }
        self.expire_sessions(now);
        if self.due_connections > 0 {
            return Progress::Again;
        }
        let expiry = self.detached.iter().map(|detached| detached.expires).min();
        let until = Nanos::earlier(expiry, self.engine.deferred_calls.next_deadline());
        drain.merge(Progress::Idle { until })
    }

    fn arm(&mut self) -> Result<()> {
        self.publish_sleep();
        self.arm_completions()
    }

    fn wake_probe(&self) -> Option<Arc<dyn WakeProbe>> {
        Some(self.poll_table.delegated())
    }

    fn arm_delegated(&mut self) -> Result<()> {
        // The sleep flag stays clear, so no client sends a KICK. The poller polls mailboxes, and not bytes, which
        // other clients can overwrite. The last poll before sleeping must do the same.
        self.poll_table.update_poller(self.connections.iter().map(|open| &open.end));
        self.poll_table.ignore_doorbells = true;
        self.arm_completions()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.channel.fd());
        set.insert(self.engine.deferred_calls.ready().sleeper.fd());
    }

    fn poll_weight(&self) -> u32 {
        (self.connections.len() / CONNECTIONS_PER_POLL) as u32 + 1
    }
}
