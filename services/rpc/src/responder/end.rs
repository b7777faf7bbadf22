//! The server's end of a connection: its session, its queue pair, its next mailbox slot.

use farcall_link::{
    Connection, LocalSlice, Nic, PolledWord, PostRefused, RegionId, Remote, RemoteRegion, Ticket,
};
use farcall_verbs::{Nanos, with_sources};

use super::ConnectionId;
use super::doorbell_bytes::DoorbellByte;
use super::session::Session;
use super::shared_ud_qp::{ReplyTo, SharedUdQp};
use crate::counters::Counters;
use crate::inbox::Inbox;
use crate::wire::{FirstWord, Imm, RESPONSE_HEADER_BYTES, ResponseHeader, Seq, message_bytes};

/// A queue pair that is connected to one client. Over UD clients have none and share the thread's.
pub(crate) struct DedicatedQp {
    pub connection: Connection,
    pub results_id: RegionId,
    /// Where the client receives replies.
    pub replies: RemoteRegion,
}

pub struct ServerConnection {
    /// The first word of the next slot of the mailbox.
    pub(super) watch: PolledWord,
    pub(super) id: ConnectionId,
    pub(super) session: Session,
    /// The client's own queue pair, if it has one.
    pub(super) dedicated_qp: Option<DedicatedQp>,
    pub(super) inbox: Inbox,
    /// The byte by which the client announces requests, if it uses one.
    pub(super) byte: Option<DoorbellByte>,
    /// The number of the client's queue pair.
    pub(super) source_qp: u32,
    pub(super) checksum: bool,
    /// Number of checks of the next message in which its checksum did not match.
    pub(super) corrupt_checks: u32,
    /// Destination of results that are sent as datagrams.
    pub(super) reply_to: Option<ReplyTo>,
    /// Indexed by response slot: the WRITE or SEND that reads the slot.
    pub(super) tickets: Box<[Ticket]>,
    /// Messages before this one are answered with a wake-up, independently of their own flag, because the client
    /// sleeps.
    pub(super) push_end: Seq,
    /// Responses that the client has requested to be pushed, and that are not sent yet.
    pub(super) push_due: Option<(Seq, Seq)>,
    /// `true` if the client supports wake-ups for deferred answers.
    pub(super) can_notify: bool,
    /// `true` if the client is to be woken for the next answer.
    pub(super) notify_next: bool,
    /// `true` if a wake-up for an answer is due.
    pub(super) notify_due: bool,
    /// Why the connection must be closed.
    pub(super) violation: Option<String>,
    /// Time from which on the session is retained; `None` if it is not.
    pub(super) keep_from: Option<Nanos>,
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

    /// WRITEs the response in its slot to the client, with a wake-up if `wake` is set.
    #[inline]
    pub(crate) fn write_response(&mut self, seq: Seq, wake: bool, counters: &Counters) {
        let Some(len_bytes) = self.response_bytes(seq) else { return };
        let Some(DedicatedQp { connection, results_id, replies }) = &mut self.dedicated_qp else { return };
        let offset = self.session.responses.offset(seq);
        let piece = LocalSlice { region: *results_id, offset, len_bytes };
        let to = Remote { grant: replies, offset };
        let posted = if wake {
            counters.notified.increment();
            connection.write_imm(piece, to, Imm::Placed.encode())
        } else {
            counters.replied.increment();
            connection.write(piece, to)
        };
        self.posted_response(seq, posted);
    }

    /// Returns the length in bytes of the response in slot `seq`, if it is there.
    #[inline]
    fn response_bytes(&self, seq: Seq) -> Option<usize> {
        let offset = self.session.responses.offset(seq);
        let first = FirstWord::decode(self.session.results.load_relaxed(offset))?;
        (first.seq == seq).then(|| message_bytes(RESPONSE_HEADER_BYTES, first.len_bytes as usize))
    }

    /// Retains the slot of a response until the NIC has read it.
    #[inline]
    fn posted_response(&mut self, seq: Seq, posted: Result<Ticket, PostRefused>) {
        match posted {
            Ok(ticket) => self.tickets[self.session.responses.index(seq)] = ticket,
            // The send queue had room; any other error means a queue pair in the error state, which its completions
            // report.
            Err(error) => {
                let is_full =
                    |qp: &DedicatedQp| qp.connection.failure().is_none() && qp.connection.room() == 0;
                debug_assert!(!self.dedicated_qp.as_ref().is_some_and(is_full), "{}", with_sources(&error));
            }
        }
    }

    /// SENDs the first `bytes_max` bytes of the response in its slot to the client. Returns whether the response is
    /// there.
    #[inline]
    pub(crate) fn send_response(&mut self, seq: Seq, bytes_max: usize) -> bool {
        let (Some(len_bytes), Some(qp)) = (self.response_bytes(seq), &mut self.dedicated_qp) else {
            return false;
        };
        let offset = self.session.responses.offset(seq);
        let piece = LocalSlice { region: qp.results_id, offset, len_bytes: len_bytes.min(bytes_max) };
        let posted = qp.connection.send(piece);
        self.posted_response(seq, posted);
        true
    }

    /// Sends the response in its slot as a datagram by the queue pair of the thread.
    #[inline]
    pub(crate) fn send_datagram(&mut self, pair: &mut SharedUdQp, seq: Seq, counters: &Counters) {
        let (Some(len_bytes), Some(to)) = (self.response_bytes(seq), &mut self.reply_to) else { return };
        let offset = self.session.responses.offset(seq);
        let piece = LocalSlice { region: to.results_id, offset, len_bytes };
        counters.replied.increment();
        if let Some(ticket) = pair.send(piece, to) {
            self.tickets[self.session.responses.index(seq)] = ticket;
        }
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
