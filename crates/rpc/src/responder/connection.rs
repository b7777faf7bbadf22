//! One client's connection: its session, its queue pair, its next mailbox slot.

use farcall_link::{Nic, Peer, Piece, RegionId, Remote, RemoteRegion, Ticket, Watch};
use farcall_verbs::{Access, Nanos};
use std::sync::Arc;

use super::ConnectionId;
use super::session::Session;
use crate::counters::Counters;
use crate::wire::{FirstWord, Imm, RESPONSE_HEADER_BYTES, RequestHeader, ResponseHeader, Seq, message_bytes};

pub(super) struct Connection {
    /// The first word of the next slot of the mailbox.
    pub watch: Watch,
    pub id: ConnectionId,
    pub session: Session,
    pub peer: Peer,
    pub checksum: bool,
    /// Looks at the next message while its checksum did not match.
    pub corrupt_looks: u32,
    /// Where the client takes replies.
    pub replies: RemoteRegion,
    pub results_id: RegionId,
    /// Per response slot: the WRITE that reads it.
    pub tickets: Box<[Ticket]>,
    /// Messages before this one are answered with a wake-up, whatever their own flag says: the client sleeps.
    pub push_end: Seq,
    /// Responses that a client asked to be pushed and that found no room yet.
    pub owed: Option<(Seq, Seq)>,
    /// Why it must be closed.
    pub violation: Option<String>,
    pub keep_from: Option<Nanos>,
    /// A call that was taken in and waits for its answer ([`crate::six`]), and since when.
    pub held: Option<(RequestHeader, Nanos)>,
}

impl Connection {
    /// Whether the next slot holds the next message. One load.
    #[inline]
    pub fn has_mail(&self) -> bool {
        // The number is in the low half; the status bit is looked at when the message is taken in.
        self.watch.load_acquire() as u32 == self.session.expect.0
    }

    /// Goes to the next message.
    #[inline]
    pub fn advance(&mut self) {
        self.session.expect = self.session.expect.next();
        self.watch.move_to(self.session.requests.offset(self.session.expect));
    }

    /// Whether the slot for the next response, and the send queue, are free.
    #[inline]
    pub fn can_answer(&self) -> bool {
        let slot = self.session.responses.index(self.session.expect);
        self.peer.room() >= 2 && self.peer.is_done(self.tickets[slot])
    }

    /// Sets or clears the flag that says that the server sleeps, in the slot where this client looks for its next
    /// response.
    pub fn mark_sleeping(&self, sleeping: bool) {
        let at = self.session.responses.offset(self.session.expect) + 8;
        let word = self.session.results.load_relaxed(at) & !ResponseHeader::SLEEPING_BIT;
        let flag = if sleeping { ResponseHeader::SLEEPING_BIT } else { 0 };
        self.session.results.store_relaxed(at, word | flag);
    }

    /// WRITEs the response in its slot to the client, and wakes it if asked.
    #[inline]
    pub fn write_reply(&mut self, seq: Seq, wake: bool) {
        let offset = self.session.responses.offset(seq);
        let Some(first) = FirstWord::decode(self.session.results.load_relaxed(offset)) else { return };
        if first.seq != seq {
            return;
        }
        let len_bytes = message_bytes(RESPONSE_HEADER_BYTES, first.len_bytes as usize);
        let piece = Piece { region: self.results_id, offset, len_bytes };
        let to = Remote { grant: &self.replies, offset };
        let posted = if wake {
            self.peer.write_imm(piece, to, Imm::Placed.encode())
        } else {
            self.peer.write(piece, to)
        };
        match posted {
            Ok(ticket) => self.tickets[self.session.responses.index(seq)] = ticket,
            // Room was made sure of; anything else is a pair in error, whose completions tell.
            Err(error) => debug_assert!(self.peer.failure().is_some() || self.peer.room() > 0, "{error}"),
        }
    }

    /// The client woke us.
    pub fn kicked(&mut self, imm: u32) {
        if let Imm::Push { oldest_low, count } = Imm::decode(imm) {
            let window = self.session.geometry.window;
            let Some((from, end)) = Imm::push_range(oldest_low, count, self.session.expect, window) else {
                return;
            };
            self.push_end = end;
            self.owed = Some((from, end));
        }
    }

    /// Whether responses are to be pushed.
    pub const fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// Pushes what is executed and owed, each with a wake-up; returns whether all of it is. What is not executed yet is
    /// pushed when it is.
    pub fn push_owed(&mut self, counters: &Counters) -> bool {
        let Some((mut seq, end)) = self.owed else { return true };
        while seq.is_before(end) && seq.is_before(self.session.expect) {
            let slot = self.session.responses.index(seq);
            if self.peer.room() == 0 || !self.peer.is_done(self.tickets[slot]) {
                self.owed = Some((seq, end));
                return false;
            }
            self.write_reply(seq, true);
            counters.notified.increment();
            seq = seq.next();
        }
        self.owed = None;
        true
    }

    /// What is kept of a connection whose queue pair is drained. Memory that a stopped process may still touch is not
    /// reused: the responses are copied to fresh memory.
    pub fn into_session(self, nic: &Nic) -> Option<Session> {
        let mut session = self.session;
        if !self.peer.is_quiesced() {
            let geometry = session.geometry;
            let mailbox = alloc(nic, geometry.mailbox_bytes(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
            let results = alloc(nic, geometry.responses_bytes(), Access::LOCAL_WRITE | Access::REMOTE_READ)?;
            let mut bytes = Vec::new();
            session.results.append_to(0, geometry.responses_bytes(), &mut bytes);
            results.copy_in(0, &bytes);
            (session.mailbox, session.results) = (mailbox, results);
        }
        Some(session)
    }
}

fn alloc(nic: &Nic, len_bytes: usize, access: Access) -> Option<Arc<farcall_link::Region>> {
    farcall_link::Region::alloc(&*nic.pd, len_bytes, access).ok().map(Arc::new)
}
