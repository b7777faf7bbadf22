//! The server's end of a connection: its session, its queue pair, its next mailbox slot.

use farcall_link::{Connection, Nic, PolledWord, RegionId, RemoteRegion, Ticket};
use farcall_verbs::Nanos;

use super::ConnectionId;
use super::doorbell_bytes::DoorbellByte;
use super::session::Session;
use super::shared_ud_qp::ReplyTo;
use crate::inbox::Inbox;
use crate::wire::{Imm, ResponseHeader, Seq};

/// A queue pair that is connected to one client. Over UD clients have none and share the thread's.
pub(crate) struct DedicatedQp {
    pub connection: Connection,
    pub results_id: RegionId,
    /// Where the client receives replies.
    pub replies: RemoteRegion,
}

pub struct ServerConnection {
    /// The first word of the next slot of the mailbox.
    pub(crate) watch: PolledWord,
    pub(crate) id: ConnectionId,
    pub(crate) session: Session,
    /// The client's own queue pair, if it has one.
    pub(crate) dedicated_qp: Option<DedicatedQp>,
    pub(crate) inbox: Inbox,
    /// The byte by which the client announces requests, if it uses one.
    pub(crate) byte: Option<DoorbellByte>,
    /// The number of the client's queue pair.
    pub(crate) source_qp: u32,
    pub(crate) checksum: bool,
    /// Number of checks of the next message in which its checksum did not match.
    pub(crate) corrupt_checks: u32,
    /// Destination of results that are sent as datagrams.
    pub(crate) reply_to: Option<ReplyTo>,
    /// Indexed by response slot: the WRITE or SEND that reads the slot.
    pub(crate) tickets: Box<[Ticket]>,
    /// Messages before this one are answered with a wake-up, independently of their own flag, because the client
    /// sleeps.
    pub(crate) push_end: Seq,
    /// Responses that the client has requested to be pushed, and that are not sent yet.
    pub(crate) push_due: Option<(Seq, Seq)>,
    /// `true` if the client supports wake-ups for deferred answers.
    pub(crate) can_notify: bool,
    /// `true` if the client is to be woken for the next answer.
    pub(crate) notify_next: bool,
    /// `true` if a wake-up for an answer is due.
    pub(crate) notify_due: bool,
    /// Why the connection must be closed.
    pub(crate) violation: Option<String>,
    /// Time from which on the session is retained; `None` if it is not.
    pub(crate) keep_from: Option<Nanos>,
}

impl ServerConnection {
    /// Returns whether the slot of a response, and the connection's send queue, are free.
    #[inline]
    pub fn can_answer(&self, seq: Seq) -> bool {
        let is_free = |dedicated_qp: &DedicatedQp| {
            dedicated_qp.connection.room() >= 2 && dedicated_qp.connection.is_done(self.ticket_of(seq))
        };
        self.dedicated_qp.as_ref().is_some_and(is_free)
    }

    /// Returns the ticket of the last request that read the slot of a response.
    #[inline]
    pub(crate) fn ticket_of(&self, seq: Seq) -> Ticket {
        self.tickets[self.session.responses.index(seq)]
    }

    /// Sets or clears the flag that the server sleeps, in the slot that this client checks for its next response.
    pub fn mark_sleeping(&self, sleeping: bool) {
        let at = self.session.responses.offset(self.session.expect) + 8;
        let word = self.session.results.load_relaxed(at) & !ResponseHeader::SLEEPING_BIT;
        let flag = if sleeping { ResponseHeader::SLEEPING_BIT } else { 0 };
        self.session.results.store_relaxed(at, word | flag);
    }

    /// Handles a wake-up from the client.
    pub fn kicked(&mut self, imm: u32) {
        if let Imm::Push { oldest_low, count } = Imm::decode(imm) {
            // The client is about to sleep.
            self.enable_notify();
            self.check_answers();
            let window = self.session.geometry.window;
            let Some((from, end)) = Imm::push_range(oldest_low, count, self.session.expect, window) else {
                return;
            };
            self.push_end = end;
            self.push_due = Some((from, end));
        }
    }

    /// Records that the client requests a wake-up for the next answer.
    pub(super) const fn enable_notify(&mut self) {
        self.notify_next = self.can_notify;
    }

    /// Marks a wake-up as due if the client has requested one and there is an answer.
    pub(super) fn check_answers(&mut self) {
        self.notify_due |= self.notify_next && self.session.deferred.has_answers();
        self.notify_next &= !self.notify_due;
    }

    /// Handles a repeated request that was executed before: its response is pushed, if it is still in its slot.
    pub fn on_duplicate_request(&mut self, seq: Seq) {
        if self.session.expect.distance_from(seq) <= u32::from(self.session.geometry.window) {
            let (from, end) = self.push_due.unwrap_or((seq, seq.next()));
            let from = if seq.is_before(from) { seq } else { from };
            let end = if end.is_before(seq.next()) { seq.next() } else { end };
            self.push_due = Some((from, end));
        }
    }

    /// Returns whether responses are to be pushed, or a wake-up for an answer is due.
    pub const fn has_work_due(&self) -> bool {
        self.push_due.is_some() || self.notify_due
    }

    /// Returns the session of a connection whose queue pair is drained. Memory that a stopped process may still access
    /// is not reused: the responses are copied to new memory.
    pub(super) fn into_session(self, nic: &Nic) -> Option<Session> {
        let mut session = self.session;
        if self.dedicated_qp.is_some_and(|dedicated_qp| !dedicated_qp.connection.is_quiesced()) {
            let geometry = session.geometry;
            let mailbox_bytes = session.mailbox.len_bytes();
            let responses_bytes = geometry.responses_bytes();
            let (mailbox, results) = Session::regions(nic, self.id.0, mailbox_bytes, responses_bytes).ok()?;
            let mut bytes = Vec::new();
            session.results.append_to(0, geometry.responses_bytes(), &mut bytes);
            results.copy_in(0, &bytes);
            (session.mailbox, session.results) = (mailbox, results);
        }
        Some(session)
    }
}
