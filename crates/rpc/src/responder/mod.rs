//! The server's side of RF-RPC: an endpoint that polls the mailboxes of many connections, executes what comes, and leaves
//! results where clients fetch them, or writes them to those who asked for that.
//!
//! A turn ([`Responder::progress`]) reads: look at completions now and then, serve each connection that has a message, let
//! sessions expire. An empty mailbox costs one load.

mod accept;
mod connection;
mod drain;
mod handler;
mod held;
mod serve;
mod session;
mod sleep;
#[cfg(test)]
mod sleep_model;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use farcall_link::bootstrap::{Refusal, RefusalKind};
use farcall_link::{Completed, Nic};
use farcall_verbs::{
    Clock, CompChannel, CqInitAttr, Endpoint, Error, Nanos, Next, RawCq, Result, WaitSet, Wc,
};

use crate::config::ResponderConfig;
use crate::counters::Counters;
use crate::error::Broken;
use connection::Connection;
use drain::Phase;
pub use handler::{Call, Handler, HandlerError, Reply};
pub use held::Held;
use serve::{Engine, Served};
use session::Session;
use sleep::Sleep;

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

/// A session whose connection is gone.
struct Parked {
    session: Session,
    expires: Nanos,
}

const COMPLETIONS_AT_ONCE: usize = 32;
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
    connections: Vec<Connection>,
    by_qp: HashMap<u32, ConnectionId>,
    next_id: u32,
    closing: Vec<Connection>,
    parked: Vec<Parked>,
    events: VecDeque<ResponderEvent>,
    engine: Engine<H, C>,
    phase: Phase,
    sleep: Sleep,
    wcs: [Wc; COMPLETIONS_AT_ONCE],
    turns_to_poll: u32,
    /// Connections with responses to push that found no room.
    owing: usize,
    /// Where [`Responder::take_call`] looks first: each connection has its turn.
    next_to_take: usize,
}

impl<H: Handler, C: Clock> Responder<H, C> {
    /// A server thread's endpoint on a device. `incarnation` must differ from that of any earlier start of the server.
    ///
    /// # Errors
    /// If the device gives no completion queue or channel.
    pub fn new(nic: Nic, config: ResponderConfig, incarnation: u64, handler: H, clock: C) -> Result<Self> {
        let channel = nic.context.create_comp_channel()?;
        let cqe = 16_384;
        let cq = nic.context.create_cq(&CqInitAttr { cqe, channel: Some(&*channel) })?;
        Ok(Self {
            nic,
            cq,
            channel,
            incarnation,
            connections: Vec::new(),
            by_qp: HashMap::new(),
            next_id: 0,
            closing: Vec::new(),
            parked: Vec::new(),
            events: VecDeque::new(),
            engine: Engine::new(config, incarnation, handler, clock),
            phase: Phase::Serving,
            sleep: Sleep::Awake,
            wcs: [Wc::default(); COMPLETIONS_AT_ONCE],
            turns_to_poll: 0,
            owing: 0,
            next_to_take: 0,
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

    /// The service, to look at.
    pub(crate) fn handler_ref(&self) -> &H {
        &self.engine.handler
    }

    /// What the owner should know.
    pub fn poll_event(&mut self) -> Option<ResponderEvent> {
        self.events.pop_front()
    }

    /// Serves every connection once; returns whether there was anything.
    fn serve_all(&mut self, now: Nanos) -> bool {
        let mut served = false;
        let mut broken = None;
        for (at, connection) in self.connections.iter_mut().enumerate() {
            if !connection.has_mail() {
                continue;
            }
            for _ in 0..self.engine.config.burst {
                match self.engine.serve(connection, now) {
                    Served::One => served = true,
                    Served::Nothing => break,
                    Served::Stalled => {
                        self.turns_to_poll = 0;
                        served = true;
                        break;
                    }
                    Served::Violation => {
                        broken = Some(at);
                        break;
                    }
                }
                if !connection.has_mail() {
                    break;
                }
            }
        }
        if let Some(at) = broken {
            self.close_violator(at);
            return true;
        }
        served
    }

    #[cold]
    fn close_violator(&mut self, at: usize) {
        self.engine.counters.violations.increment();
        let why = self.connections[at].violation.take().unwrap_or_else(|| "unknown".into());
        let tell = Some(RefusalKind::Malformed.because(why.clone()));
        // Its session is not kept: nothing more of that stream can be trusted.
        self.end(at, Broken::Protocol(why), tell, None);
    }

    /// Takes completions: free places in send queues, wake-ups, failures.
    fn poll_completions(&mut self, now: Nanos) -> bool {
        self.turns_to_poll = TURNS_PER_POLL;
        let mut any = false;
        loop {
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
        let Some(id) = self.by_qp.get(&wc.qp_num).copied() else { return };
        let Some(at) = self.position(id) else {
            if let Some(closing) = self.closing.iter_mut().find(|closing| closing.id == id) {
                closing.peer.complete(wc);
            }
            self.release_closing();
            return;
        };
        match self.connections[at].peer.complete(wc) {
            Completed::Send { .. } | Completed::Flushed => {}
            Completed::Woken { imm } => {
                self.engine.counters.kicks.increment();
                let owed_before = self.connections[at].owes();
                self.connections[at].kicked(imm);
                self.owing += usize::from(!owed_before && self.connections[at].owes());
            }
            Completed::Failed(status) => self.end(at, Broken::Completion(status), None, Some(now)),
        }
    }

    fn push_owed(&mut self) {
        if self.owing == 0 {
            return;
        }
        for connection in &mut self.connections {
            if connection.owes() && connection.push_owed(&self.engine.counters) {
                self.owing -= 1;
            }
        }
    }

    fn position(&self, id: ConnectionId) -> Option<usize> {
        // Ids only grow and removal keeps the order.
        self.connections.binary_search_by_key(&id, |connection| connection.id).ok()
    }

    /// The client's process is gone, or said goodbye: its connection ends. Its session is kept for a while if it may come
    /// back.
    pub fn hang_up(&mut self, id: ConnectionId, may_come_back: bool, now: Nanos) {
        if let Some(at) = self.position(id) {
            self.end(at, Broken::HungUp, None, may_come_back.then_some(now));
        }
    }

    /// Ends a connection; parks its session if `keep_from` says since when.
    fn end(&mut self, at: usize, why: Broken, tell: Option<Refusal>, keep_from: Option<Nanos>) {
        let mut connection = self.connections.remove(at);
        self.owing -= usize::from(connection.owes());
        self.engine.counters.connections_closed.increment();
        connection.peer.close();
        connection.keep_from = keep_from;
        self.events.push_back(ResponderEvent::Closed { connection: connection.id, why, tell });
        self.closing.push(connection);
        self.release_closing();
    }

    /// Lets go of connections that are drained, and of their memory once nobody can touch it.
    fn release_closing(&mut self) {
        let mut at = 0;
        while at < self.closing.len() {
            if !self.closing[at].peer.is_drained() {
                at += 1;
                continue;
            }
            let connection = self.closing.swap_remove(at);
            self.by_qp.remove(&connection.peer.qp_num());
            self.park(connection);
        }
    }

    fn park(&mut self, connection: Connection) {
        let Some(since) = connection.keep_from else { return };
        if self.parked.len() >= self.engine.config.sessions_parked_max {
            self.parked.remove(0);
        }
        let expires = since + self.engine.config.session_linger;
        let session = connection.into_session(&self.nic);
        self.parked.extend(session.map(|session| Parked { session, expires }));
    }

    fn expire_sessions(&mut self, now: Nanos) {
        if !self.parked.is_empty() {
            self.parked.retain(|parked| parked.expires > now);
        }
    }

    #[cold]
    fn fail_all(&mut self, error: &Error, now: Nanos) {
        while !self.connections.is_empty() {
            self.end(0, Broken::Verbs(error.to_string()), None, Some(now));
        }
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
        self.after_turn(any);
        let drain = self.progress_drain(any, now);
        if any {
            self.engine.handler.tick(now);
            return Next::Again;
        }
        self.expire_sessions(now);
        if self.owing > 0 {
            return Next::Again;
        }
        let expiry = self.parked.iter().map(|parked| parked.expires).min();
        drain.merge(Next::Idle { until: expiry })
    }

    fn arm(&mut self) -> Result<()> {
        self.publish_sleep();
        self.cq.req_notify(farcall_verbs::Notify::Any)
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.channel.fd());
    }
}
