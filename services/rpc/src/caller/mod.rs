//! The client endpoint: writes requests into the server's mailbox, and fetches or receives the results.
//!
//! A driver iteration ([`Caller::progress`](farcall_verbs::Endpoint::progress)) has these steps: end expired calls,
//! send what may be sent, post READs, poll completions, handle responses, wake the server if it seems to sleep.
//! Messages are numbered; message n uses slot n mod window in both directions; the server replies to a connection's
//! messages in order.
//!
//! Each phase of a call has a file: [`calls`] (begun), [`send`], [`messages`] (in flight), [`receive`], [`abort`].
//! [`retransmit_timer`] decides when the server is woken, or requests are repeated. The differences between the paths
//! of a plan are in [`crate::paths`].

mod abort;
mod arrivals;
mod batch;
mod calls;
mod collect;
mod connect;
mod connection;
mod datagrams;
mod endpoint;
mod fetch;
mod fetches;
mod messages;
mod probe;
mod receive;
mod retransmit_timer;
mod send;
mod send_queue;
mod turn;

use std::sync::Arc;

use farcall_link::bootstrap::Welcome;
use farcall_link::{Connection, Datagrams, Nic, QueuePair, Region, RegionId};
use farcall_stats::Block;
use farcall_verbs::{CompChannel, CqInitAttr, Nanos, RawCq, Wc};

use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::error::{Broken, CallError};
use crate::tune::Tuner;
pub use batch::BatchCaller;
use calls::Calls;
pub use calls::{CallContext, CallId};
use collect::Collecting;
pub(crate) use connection::ClientConnection;
pub use endpoint::Caller;
use fetches::Fetches;
pub(crate) use messages::Message;
use messages::Messages;
use retransmit_timer::RetransmitTimer;
use send_queue::SendQueue;

/// A completed call.
#[derive(Debug)]
pub struct Completion<'a> {
    /// The call.
    pub call: CallId,
    /// Its result, which remains valid until the next completion is requested, or its error.
    pub result: Result<&'a [u8], CallError>,
}

/// Queue pairs that are created but not connected, with their ids of the local regions.
struct UnconnectedQps {
    connection: Connection,
    local_id: RegionId,
    replies_id: RegionId,
    /// With its id of the memory for replies.
    datagrams: Option<(Datagrams, RegionId)>,
}

const COMPLETIONS_AT_ONCE: usize = 16;

/// The part of a [`Caller`] that does not depend on its paths.
pub struct CallerState {
    nic: Nic,
    cq: Box<dyn RawCq>,
    channel: Arc<dyn CompChannel>,
    config: CallerConfig,
    /// Requests are composed here, and READs are stored here. No peer has access to it.
    local: Arc<Region>,
    /// The server may WRITE here, and its SENDs are stored here.
    replies: Arc<Region>,
    unconnected: Option<UnconnectedQps>,
    end: Option<ClientConnection>,
    broken: Option<Broken>,
    /// Retained to resume the session, unless the session has ended.
    last_welcome: Option<Welcome>,
    session_ended: bool,
    closing: Vec<QueuePair>,
    messages: Messages,
    calls: Calls,
    queue: SendQueue,
    collecting: Collecting,
    tuner: Tuner,
    retransmit: RetransmitTimer,
    fetches: Fetches,
    credits: u32,
    turns_to_poll: u32,
    draining: bool,
    wcs: [Wc; COMPLETIONS_AT_ONCE],
    counters: Block<Counters>,
}

impl CallerState {
    fn new(nic: Nic, config: CallerConfig) -> Result<Self, farcall_verbs::Error> {
        let geometry = config.plan.geometry;
        geometry.check().map_err(|why| farcall_verbs::Error::invalid("create caller", why))?;
        let channel = nic.context().create_comp_channel()?;
        let cqe = 16 * u32::from(geometry.window) + 256;
        let cq = nic.context().create_cq(&CqInitAttr { cqe, channel: Some(&*channel) })?;
        let (local, replies) = connect::regions(&nic, &config.plan)?;
        let mut tuner =
            Tuner::new(config.fetch_retries_max, config.fetch_bytes, geometry.response_slot_bytes);
        tuner.while_running = config.tune_while_running;
        Ok(Self {
            nic,
            cq,
            channel,
            local,
            replies,
            unconnected: None,
            end: None,
            broken: None,
            last_welcome: None,
            session_ended: false,
            closing: Vec::new(),
            messages: Messages::new(geometry.window),
            calls: Calls::new(geometry.window),
            queue: SendQueue::new(geometry.window),
            collecting: Collecting::default(),
            tuner,
            retransmit: RetransmitTimer::new(config.kick_after),
            fetches: Fetches::new(),
            credits: u32::from(geometry.window),
            turns_to_poll: 0,
            draining: false,
            wcs: [Wc::default(); COMPLETIONS_AT_ONCE],
            counters: Block::new("rpc client", 0),
            config,
        })
    }

    /// Returns the next completed call.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion<'_>> {
        let (_, record) = self.calls.next_done()?;
        let result = match record.error.take() {
            None => Ok(&record.reply[..]),
            Some(error) => Err(error),
        };
        Some(Completion { call: record.id, result })
    }

    /// Returns whether [`CallerState::next_completion`] would return a call.
    #[inline]
    pub fn has_completion(&self) -> bool {
        self.calls.has_done()
    }

    /// Returns how many calls can begin now.
    pub fn available(&self) -> usize {
        self.calls.available()
    }

    /// Returns the number of calls without an outcome.
    pub fn pending(&self) -> usize {
        self.calls.pending()
    }

    /// Returns the earliest time at which a pending call may expire. Each driver iteration checks it.
    pub fn earliest_deadline(&self) -> Option<Nanos> {
        self.calls.earliest_deadline
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the current R and F.
    pub fn tuning(&self) -> (u32, u32) {
        let choice = self.tuner.choice();
        (choice.retries_max, choice.fetch_bytes)
    }

    /// Passes the measurements of a probe to the tuner.
    pub fn set_profile(&mut self, profile: crate::tune::LinkProfile) {
        self.tuner.set_profile(profile);
    }

    /// Returns the reason if there is no connection.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Returns whether the transport delivers all messages. If so, it also supports READs.
    pub(crate) const fn is_reliable(&self) -> bool {
        self.config.plan.transport.is_reliable()
    }

    /// Returns whether there is a connection.
    pub fn is_open(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the server's welcome of the last connection.
    pub fn last_welcome(&self) -> Option<&Welcome> {
        self.last_welcome.as_ref()
    }

    /// Returns the session that can be resumed over another connection.
    fn session(&self) -> Option<&Welcome> {
        self.last_welcome.as_ref().filter(|_| !self.session_ended)
    }

    /// Records that the server drains, as it announced over the bootstrap connection.
    pub fn set_draining(&mut self) {
        self.draining = true;
    }
}
