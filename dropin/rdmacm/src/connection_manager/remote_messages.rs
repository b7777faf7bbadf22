//! Messages of other hosts: their destinations, replies and retransmissions.

use std::net::Ipv6Addr;
use std::time::Duration;

use farcall_wire::cm::{Mad, Message, MessageClass, RejectedMessage, State, TimerAction};

use super::{CmEndpoint, ConnectionManager};
use crate::errno::Errno;
use crate::management::RemoteMad;
use crate::remote::RemoteCm;
use crate::token::{ARRIVED, FORWARDED, Token};

/// Maximum number of messages handled in one iteration of the service thread.
const MESSAGES_PER_ITERATION: usize = 64;
/// Service timeout announced to the peer of a request: 4.096 µs × 2 to this power, 17 s.
const SERVICE_TIMEOUT: u8 = 22;

impl ConnectionManager {
    /// Opens queue pair 1 and the journal.
    ///
    /// # Errors
    /// Returns the error of libibverbs or of the kernel.
    pub fn open_remote(&mut self) -> Result<(), Errno> {
        if self.remote.is_some() {
            return Ok(());
        }
        let (remote, left) = RemoteCm::open()?;
        for (descriptor, token) in remote.descriptors().into_iter().zip([ARRIVED, FORWARDED]) {
            self.watch(descriptor, token)?;
        }
        self.remote = Some(remote);
        for (place, record) in left {
            self.disconnect_for(&record, Some(place));
        }
        self.elect();
        Ok(())
    }

    /// Returns the communication ID of an endpoint.
    pub(super) fn comm_id(&self, token: Token) -> u32 {
        self.remote.as_ref().map_or(0, |remote| remote.comm_id(token))
    }

    /// Handles messages that arrived or were forwarded. Returns whether `token` stands for one of their descriptors.
    pub(super) fn handle_remote_event(&mut self, token: Token) -> bool {
        match token {
            ARRIVED => {
                for _ in 0..MESSAGES_PER_ITERATION {
                    let Some(remote_mad) = self.remote.as_ref().and_then(|remote| remote.management().take())
                    else {
                        break;
                    };
                    self.dispatch(&remote_mad);
                }
            }
            FORWARDED => self.accept_all(FORWARDED),
            _ => return false,
        }
        true
    }

    /// Forwards a message to its destination. This process may be stopped at any step, and another one may handle
    /// repetitions of the message in the meantime; so [`RemoteCm`] sends only while this process holds queue pair 1.
    fn dispatch(&mut self, remote_mad: &RemoteMad) {
        // Its format was checked when it was received.
        let Ok(mad) = Mad::decode(&remote_mad.bytes) else { return };
        let Some(remote) = &mut self.remote else { return };
        if matches!(mad.message, Message::Req(_) | Message::SidrReq(_))
            && !remote.is_below_request_limit(remote_mad.src)
        {
            return;
        }
        match &mad.message {
            Message::Req(request) if request.gid == remote_mad.src.octets() => {
                remote.forward_to_listener(remote_mad, &mad, &request.route);
            }
            Message::SidrReq(request) => remote.forward_to_listener(remote_mad, &mad, &request.route),
            Message::Req(_) => tracing::debug!("a REQ in another's name came from {}", remote_mad.src),
            _ => {
                let is_own = remote.is_own(mad.remote_comm_id);
                // Also if this process disconnects on behalf of an exited process.
                if is_own || self.find(remote_mad.src, mad.remote_comm_id).is_some() {
                    return self.handle_message(remote_mad.src, mad);
                }
                if let Some(remote) = &self.remote {
                    remote.forward_to_process(remote_mad, &mad);
                }
            }
        }
    }

    /// Sends a message, which may be lost.
    pub(super) fn send_mad(&self, peer: Ipv6Addr, mad: &Mad) {
        if let Some(remote) = &self.remote {
            remote.send(peer, mad);
        }
    }

    fn now(&self) -> Duration {
        self.remote.as_ref().map_or(Duration::ZERO, RemoteCm::now)
    }

    /// Returns the endpoint that a peer's message is for.
    fn find(&self, peer: Ipv6Addr, comm_id: u32) -> Option<Token> {
        let is_it = |end: &CmEndpoint| {
            end.remote_end
                .as_ref()
                .is_some_and(|remote_end| remote_end.peer == peer && end.ids.local() == comm_id)
        };
        self.ends.iter().find(|(_, end)| is_it(end)).map(|(token, _)| *token)
    }

    /// Handles a message for an endpoint of this process.
    pub(super) fn handle_message(&mut self, peer: Ipv6Addr, mad: Mad) {
        let now = self.now();
        let Some(token) = self.find(peer, mad.remote_comm_id) else {
            return self.remote.iter().for_each(|remote| remote.reject_unroutable(peer, &mad));
        };
        let Some(end) = self.ends.get_mut(&token) else { return };
        let (Some(remote_end), Some(connection)) = (&mut end.remote_end, &mut end.connection) else { return };
        if !end.ids.matches(&mad) {
            return tracing::debug!("a message of another connection came from {peer}");
        }
        match remote_end.exchange.received(&mad, now) {
            MessageClass::Duplicate(Some(answer)) => self.send_mad(peer, &answer),
            MessageClass::Duplicate(None) => {}
            MessageClass::New => {
                let was_leaving = connection.state() == State::DreqSent;
                let step = connection.received(mad.message);
                self.apply_peer_step(token, step, was_leaving);
                self.plan(token);
            }
        }
    }

    /// Returns whether a request was received before. Such a request gets the same reply again, or its peer is
    /// requested to wait (MRA). A request that was delayed until its peer had sent later messages is ignored.
    pub(super) fn is_repeated_request(&mut self, peer: Ipv6Addr, question: &Mad) -> bool {
        let now = self.now();
        let mut ends = self.ends.values_mut();
        let asked = Some((question.local_comm_id, question.transaction_id));
        let found = ends.find(|end| {
            end.remote_end
                .as_ref()
                .is_some_and(|remote_end| remote_end.peer == peer && remote_end.asked == asked)
        });
        let Some(end) = found else { return false };
        let Some(remote_end) = &mut end.remote_end else { return false };
        if !remote_end.exchange.is_last_request(question) {
            return true;
        }
        let answer = match remote_end.exchange.received(question, now) {
            MessageClass::Duplicate(Some(answer)) => answer,
            _ => {
                end.ids.mad(Message::Mra { received: RejectedMessage::Req, service_timeout: SERVICE_TIMEOUT })
            }
        };
        if matches!(question.message, Message::Req(_)) || !matches!(answer.message, Message::Mra { .. }) {
            self.send_mad(peer, &answer);
        }
        true
    }

    /// Sends a message of an endpoint. Returns `false` if its peer is not on another host.
    pub(super) fn send_remote(&mut self, token: Token, message: &Message) -> bool {
        let now = self.now();
        let Some(end) = self.ends.get_mut(&token) else { return false };
        let Some(remote_end) = &mut end.remote_end else { return false };
        let mad = end.ids.mad(message.clone());
        remote_end.exchange.sent(&mad, now);
        let peer = remote_end.peer;
        self.send_mad(peer, &mad);
        self.plan(token);
        true
    }

    /// Sets the timer of an endpoint with a remote peer for its next retransmission.
    fn plan(&mut self, token: Token) {
        let due = self.ends.get(&token).and_then(|end| end.remote_end.as_ref()?.exchange.due());
        if let (Some(due), Some(remote)) = (due, &self.remote) {
            let due = remote.instant(due);
            self.timers.add(due, token);
        }
    }

    /// Retransmits a message that the peer of an endpoint has not answered.
    pub(super) fn repeat(&mut self, token: Token) {
        let now = self.now();
        let Some(end) = self.ends.get_mut(&token) else { return };
        let Some(remote_end) = &mut end.remote_end else { return };
        match remote_end.exchange.tick(now) {
            TimerAction::Nothing => {}
            TimerAction::Resend(mad) => {
                let peer = remote_end.peer;
                self.send_mad(peer, &mad);
            }
            TimerAction::Unanswered => {
                let step =
                    end.connection.as_mut().map(|connection| connection.timed_out()).unwrap_or_default();
                return self.apply_step(token, step);
            }
        }
        self.plan(token);
    }
}
