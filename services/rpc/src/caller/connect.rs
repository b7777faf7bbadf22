//! Connecting a client, and resuming a session over a new connection.

use std::sync::Arc;

use farcall_link::bootstrap::{Features, Grants, Hello, SessionResumption, Welcome};
use farcall_link::{
    Connection, Datagrams, Geometry, Nic, Plan, QpSizes, Region, RegionId, RequestPath, ResponsePath,
    Transport,
};
use farcall_verbs::{Access, Error, Nanos};

use super::datagrams::DatagramResponses;
use super::fetches::Fetches;
use super::messages::FetchState;
use super::{CallerState, ClientConnection, UnconnectedQps};
use crate::error::{Broken, ConnectError};
use crate::inbox::Inbox;
use crate::paths::NOTICE_SLOT_BYTES;
use crate::wire::{REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, Seq, Slots, TailKey};

/// Allocates the local memory (requests, then the targets of READs) and the memory for replies.
pub(super) fn regions(nic: &Nic, plan: &Plan) -> Result<(Arc<Region>, Arc<Region>), Error> {
    let geometry = plan.geometry;
    let local_bytes = geometry.mailbox_bytes() + geometry.responses_bytes();
    let local = Region::alloc(&**nic.pd(), local_bytes, Access::LOCAL_WRITE)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let replies_bytes = match plan.response {
        ResponsePath::Datagram => DatagramResponses::bytes(geometry),
        ResponsePath::Send => reply_slots(geometry) * geometry.response_slot_bytes as usize,
        _ => geometry.responses_bytes(),
    };
    let replies = Region::alloc(&**nic.pd(), replies_bytes, access)?;
    Ok((Arc::new(local), Arc::new(replies)))
}

/// Number of receives for responses or notices that are sent: one for each message, and two for the wake-ups for
/// deferred answers. One wake-up may be in flight before the response to the last collect request, and one after it.
const fn reply_slots(geometry: Geometry) -> usize {
    geometry.window as usize + 2
}

/// Maximum number of wake-ups in flight from the server, for responses and pushes.
const fn wakes(geometry: Geometry) -> u32 {
    2 * geometry.window as u32 + 16
}

impl CallerState {
    /// Creates a queue pair and returns the hello message. After an earlier connection, it requests to resume its
    /// session.
    ///
    /// # Errors
    /// Returns an error if a queue pair or memory cannot be allocated, or the old connection does not drain.
    pub fn hello(&mut self) -> Result<Hello, ConnectError> {
        self.config.plan.preset()?;
        self.disconnect(Broken::Closed);
        self.drain_old()?;
        let geometry = self.config.plan.geometry;
        let window = u32::from(geometry.window);
        let config = QpSizes {
            send_depth: 4 * window + 64,
            recv_depth: wakes(geometry),
            sges_max: 1,
            signal_every: self.config.plan.memory.signal_every.clamp(1, geometry.window.max(2)),
            inline_max_bytes: self.config.plan.memory.inline_max_bytes,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        };
        let mut connection = Connection::new(&self.nic, self.config.plan.transport, &*self.cq, config, None)?;
        let local_id = connection.attach(Arc::clone(&self.local));
        let replies_id = connection.attach(Arc::clone(&self.replies));
        let datagrams = self.new_datagrams()?;
        let must_check = !connection.places_in_order(&self.replies) || self.config.checksum;
        let hello = Hello {
            provider: self.nic.provider().to_owned(),
            qp: connection.info(&self.nic),
            grants: Grants { messages: self.replies.remote(), ..Grants::default() },
            plan: self.config.plan,
            features: Features::KICK
                | Features::COMPACT
                | Features::DEFERRED
                | Features::ANSWERED
                | Features::checksum(must_check),
            thread: self.config.thread,
            resume: self.session().map(|welcome| SessionResumption {
                session: welcome.session,
                secret: welcome.secret,
                incarnation: welcome.incarnation,
                oldest_seq: self.messages.head().0,
            }),
            datagrams: datagrams.as_ref().map(|(pair, _)| pair.info(&self.nic)),
        };
        self.unconnected = Some(UnconnectedQps { connection, local_id, replies_id, datagrams });
        Ok(hello)
    }

    /// Creates the queue pair that receives datagrams, if results arrive as datagrams.
    fn new_datagrams(&self) -> Result<Option<(Datagrams, RegionId)>, Error> {
        if self.config.plan.response != ResponsePath::Datagram {
            return Ok(None);
        }
        let config = QpSizes {
            send_depth: 1,
            recv_depth: DatagramResponses::receives(self.config.plan.geometry) as u32,
            sges_max: 1,
            signal_every: 1,
            inline_max_bytes: 0,
            access: Access::LOCAL_WRITE,
        };
        let mut pair = Datagrams::new(&self.nic, &*self.cq, config, None)?;
        let region = pair.attach(Arc::clone(&self.replies));
        Ok(Some((pair, region)))
    }

    /// Waits, for a bounded number of polls, until the work requests of old connections have ended. Memory that a
    /// stopped server may still access is replaced.
    fn drain_old(&mut self) -> Result<(), ConnectError> {
        const POLLS_MAX: u32 = 100_000;
        for _ in 0..POLLS_MAX {
            if self.closing.iter().all(|old| old.is_drained()) {
                break;
            }
            self.poll_completions();
        }
        if !self.closing.iter().all(|old| old.is_drained()) {
            let what = "the old queue pair does not drain; try again";
            return Err(Error::invalid("reconnect", what).into());
        }
        if !self.closing.iter().all(|old| old.is_quiesced()) {
            self.replace_memory()?;
        }
        self.closing.clear();
        Ok(())
    }

    fn replace_memory(&mut self) -> Result<(), Error> {
        let geometry = self.config.plan.geometry;
        let (local, replies) = regions(&self.nic, &self.config.plan)?;
        let mut requests = Vec::new();
        self.local.append_to(0, geometry.mailbox_bytes(), &mut requests);
        local.copy_in(0, &requests);
        (self.local, self.replies) = (local, replies);
        Ok(())
    }

    /// Handles the server's welcome: connects, and resumes the session if the server did. Otherwise (it restarted, or
    /// discarded the session), calls that may have been executed end with an unknown outcome, and the others are sent
    /// now.
    ///
    /// # Errors
    /// Returns an error if the welcome is invalid or the queue pair does not connect; the caller must send a new hello
    /// then.
    pub fn welcome(&mut self, welcome: Welcome, now: Nanos) -> Result<(), ConnectError> {
        let Some(UnconnectedQps { mut connection, local_id, replies_id, datagrams }) =
            self.unconnected.take()
        else {
            return Err(ConnectError::BadWelcome("no hello was sent".into()));
        };
        let geometry = self.check(&welcome)?;
        let plan = &self.config.plan;
        let receive_bytes = match plan.response {
            ResponsePath::Send => Some(geometry.response_slot_bytes),
            ResponsePath::NotifyThenFetch => Some(NOTICE_SLOT_BYTES),
            _ => None,
        };
        let inbox = match receive_bytes {
            Some(bytes) => Inbox::of_slots(&mut connection, replies_id, bytes, reply_slots(geometry))?,
            None if plan.transport == Transport::Ud => Inbox::none(),
            None => Inbox::of_wakes(&mut connection, wakes(plan.geometry))?,
        };
        let datagram_responses =
            datagrams.map(|(pair, region)| DatagramResponses::start(pair, region, geometry)).transpose()?;
        connection.connect(&self.nic, &welcome.qp)?;
        let end = ClientConnection {
            connection,
            inbox,
            datagram_responses,
            local: Arc::clone(&self.local),
            local_id,
            replies: Arc::clone(&self.replies),
            tail_key: TailKey(welcome.tail_key.0),
            checksum: welcome.features.contains(Features::CHECKSUM),
            compact: welcome.features.contains(Features::COMPACT),
            server_notifies: welcome.features.contains(Features::ANSWERED),
            requests: Slots::new(geometry.window, geometry.request_slot_bytes, REQUEST_HEADER_BYTES),
            responses: Slots::new(geometry.window, geometry.response_slot_bytes, RESPONSE_HEADER_BYTES),
            fetch_base: geometry.mailbox_bytes(),
            welcome: welcome.clone(),
        };
        match welcome.resumed {
            Some(resumed) => self.resume_from(Seq(resumed.next_seq)),
            None => {
                // The earlier session has ended.
                self.discard_messages(geometry.window);
                self.credits = u32::from(geometry.window);
                self.fail_sent_calls();
            }
        }
        self.config.plan.geometry = geometry;
        self.end = Some(end);
        self.broken = None;
        self.draining = false;
        (self.last_welcome, self.session_ended) = (Some(welcome), false);
        self.counters.connections_opened.increment();
        self.collecting.connected();
        self.fetches = Fetches::new();
        self.retransmit.restart(self.messages.head());
        self.retransmit.on_response(!self.messages.is_empty(), now);
        Ok(())
    }

    /// Checks the untrusted welcome before any state changes.
    fn check(&self, welcome: &Welcome) -> Result<Geometry, ConnectError> {
        let bad = |why: String| Err(ConnectError::BadWelcome(why));
        let (geometry, ours) = (welcome.plan.geometry, self.config.plan.geometry);
        if let Err(why) = geometry.check() {
            return bad(why);
        }
        if geometry.min(ours) != geometry {
            return bad(format!("slots {geometry:?} exceed what we asked for, {ours:?}"));
        }
        if !self.messages.is_empty() && welcome.resumed.is_some() && geometry != ours {
            return bad("the resumed session has other slots than before".into());
        }
        let grants = &welcome.grants;
        if !grants.messages.holds(0, geometry.mailbox_bytes() as u64)
            || !grants.results.holds(0, geometry.responses_bytes() as u64)
        {
            return bad("the regions granted are smaller than the slots".into());
        }
        if welcome.plan.request == RequestPath::DenseMailbox
            && !welcome.mailbox_byte.is_some_and(|byte| byte.holds(0, 1))
        {
            return bad("requests are announced by a byte, and none is granted".into());
        }
        if welcome.plan.distance(&self.config.plan) != 0 {
            return bad(format!("the plan is another one: {:?}", welcome.plan));
        }
        if let (Some(resumed), Some(before)) = (welcome.resumed, self.session()) {
            let executed = Seq(resumed.next_seq).distance_from(self.messages.head());
            if executed > self.messages.outstanding() || welcome.session != before.session {
                return bad(format!("the session resumes at message {}", resumed.next_seq));
            }
        } else if welcome.resumed.is_some() {
            return bad("a session resumes that never existed".into());
        }
        Ok(geometry)
    }

    /// Resumes the session. Messages below `server_next` have been executed, and their responses are in the server's
    /// slots. Over RC they are fetched under any preset; without READs they are requested when their timer expires.
    /// The other messages are sent again.
    fn resume_from(&mut self, server_next: Seq) {
        self.counters.sessions_resumed.increment();
        self.messages.clear_tickets();
        let can_read = self.is_reliable();
        for seq in self.messages.numbers() {
            let message = self.messages.at(seq);
            message.fetch = FetchState::None;
            message.failed_fetches = 0;
            message.corrupt_checks = 0;
            message.is_pushed = false;
            if seq.is_before(server_next) && can_read {
                message.switch_to_fetch();
            }
        }
        self.messages.resend_from(server_next);
    }
}
