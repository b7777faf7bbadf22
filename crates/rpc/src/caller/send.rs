//! From a call to messages in the server's mailbox.

use farcall_link::{Piece, Remote};
use farcall_verbs::Nanos;

use super::calls::CallOptions;
use super::frames::{Fetch, Frame, Purpose};
use super::{Caller, Link, Path};
use crate::error::Broken;
use crate::wire::{Mode, REQUEST_HEADER_BYTES, RequestFlags, RequestHeader, Seq, message_bytes};

/// Bytes of the two numbers in front of a part or continuation.
const NUMBERS_BYTES: usize = 8;
/// Free places in the send queue that READs and wake-ups need while requests are sent.
const ROOM_FOR_OTHERS: u32 = 16;

/// What one message says, besides its payload.
struct Draft {
    call: u16,
    call_id: u64,
    method: u16,
    options: CallOptions,
    purpose: Purpose,
    flags: RequestFlags,
    /// In front of the payload.
    numbers: Option<(u32, u32)>,
}

impl<P: Path> Caller<P> {
    /// Whether one more message may be sent.
    #[inline]
    fn may_send(&mut self) -> bool {
        let Some(link) = &self.link else { return false };
        let allowed = self.frames.window().min(self.credits.max(1));
        if self.frames.outstanding() >= allowed || link.peer.room() <= ROOM_FOR_OTHERS {
            return false;
        }
        // The slot's last request must have left our memory.
        let next = self.frames.next;
        let sent = self.frames.at(next).sent;
        link.peer.is_done(sent)
    }

    /// Sends a short request without keeping a copy of it, if nothing waits before it.
    #[inline]
    pub(super) fn send_at_once(&mut self, at: u16, payload: &[u8], now: Nanos) -> bool {
        let idle = self.to_send.is_empty() && self.frames.resend == self.frames.next;
        let fits = self.link.as_ref().is_some_and(|link| payload.len() <= link.requests.capacity());
        if !idle || !fits || self.going_away || !self.may_send() {
            return false;
        }
        let draft = self.execute_draft(at, RequestFlags::empty(), None);
        self.calls.get(at).may_be_executed = true;
        self.send(&draft, payload, now);
        true
    }

    fn execute_draft(&mut self, at: u16, flags: RequestFlags, numbers: Option<(u32, u32)>) -> Draft {
        let record = self.calls.get(at);
        Draft {
            call: at,
            call_id: record.id.0,
            method: record.method,
            options: record.options,
            purpose: Purpose::Execute,
            flags,
            numbers,
        }
    }

    /// Sends what may be sent. Returns whether anything was.
    #[inline]
    pub(super) fn pump(&mut self, now: Nanos) -> bool {
        if self.to_send.is_empty() && self.to_release.is_empty() && self.frames.resend == self.frames.next {
            return false;
        }
        self.pump_all(now)
    }

    fn pump_all(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while self.frames.resend != self.frames.next && self.link.is_some() {
            self.send_again(self.frames.resend, now);
            self.frames.resend = self.frames.resend.next();
            any = true;
        }
        while self.may_send() {
            if let Some(call_id) = self.to_release.pop_front() {
                self.send_release(call_id, now);
            } else if let Some(at) = self.to_send.front().copied() {
                if self.going_away
                    && self.calls.get(at).total_bytes == 0
                    && self.calls.get(at).sent_bytes == 0
                {
                    // It waits for another connection.
                    break;
                }
                if self.send_next_of(at, now) {
                    // Not always the first any more: if the connection broke, long results may have begun.
                    self.stop_waiting(at);
                }
            } else {
                break;
            }
            any = true;
        }
        any
    }

    fn stop_waiting(&mut self, at: u16) {
        if let Some(place) = self.to_send.iter().position(|waiting| *waiting == at) {
            self.to_send.remove(place);
        }
    }

    /// Sends the next message of a call. Returns whether it was the last one for now.
    fn send_next_of(&mut self, at: u16, now: Nanos) -> bool {
        let Some(link) = &self.link else { return true };
        let (capacity, piece_bytes) = (link.requests.capacity(), link.responses.capacity());
        let record = self.calls.get(at);
        if record.total_bytes > 0 {
            let offset = record.asked_bytes;
            record.asked_bytes += piece_bytes;
            let is_last = record.asked_bytes >= record.total_bytes;
            let numbers = Some((offset as u32, piece_bytes as u32));
            let draft = self.execute_draft(at, RequestFlags::CONTINUE, numbers);
            self.send(&Draft { purpose: Purpose::Continue, ..draft }, &[], now);
            return is_last;
        }
        // Moved out so that it can be sent while the records are borrowed; no copy.
        let request = std::mem::take(&mut record.request);
        let is_last = if request.len() <= capacity {
            record.may_be_executed = true;
            let draft = self.execute_draft(at, RequestFlags::empty(), None);
            self.send(&draft, &request, now);
            true
        } else {
            let offset = record.sent_bytes;
            let end = request.len().min(offset + capacity - NUMBERS_BYTES);
            let is_last = end == request.len();
            record.sent_bytes = end;
            record.may_be_executed |= is_last;
            let numbers = Some((offset as u32, request.len() as u32));
            let draft = self.execute_draft(at, RequestFlags::PART, numbers);
            let purpose = if is_last { Purpose::Execute } else { Purpose::Part };
            self.send(&Draft { purpose, ..draft }, &request[offset..end], now);
            is_last
        };
        self.calls.get(at).request = request;
        is_last
    }

    fn send_release(&mut self, call_id: u64, now: Nanos) {
        let draft = Draft {
            call: u16::MAX,
            call_id,
            method: 0,
            options: CallOptions::default(),
            purpose: Purpose::Release,
            flags: RequestFlags::CONTINUE | RequestFlags::CANCEL,
            numbers: Some((0, 0)),
        };
        self.send(&draft, &[], now);
    }

    /// Composes a message in its slot and posts it. [`Caller::may_send`] must have said yes.
    #[inline]
    fn send(&mut self, draft: &Draft, payload: &[u8], now: Nanos) {
        let mode = self.mode_for(draft);
        let seq = self.frames.next;
        let consumed = self.frames.head;
        let Some(link) = self.link.as_mut() else { return };
        let at = link.requests.offset(seq);
        let mut payload_at = at + REQUEST_HEADER_BYTES;
        if let Some((first, second)) = draft.numbers {
            self.local.store_relaxed(payload_at, u64::from(first) | u64::from(second) << 32);
            payload_at += NUMBERS_BYTES;
        }
        self.local.copy_in(payload_at, payload);
        let len_bytes = payload_at + payload.len() - at - REQUEST_HEADER_BYTES;
        let mut flags = draft.flags | mode.flags();
        flags.set(RequestFlags::CHECKSUM, link.checksum);
        let header = RequestHeader {
            seq,
            len_bytes: len_bytes as u32,
            method: draft.method,
            flags,
            consumed,
            call_id: draft.call_id,
            session: link.welcome.session.tag(),
            incarnation: link.welcome.incarnation as u32,
            deadline_us: remaining_us(draft.options, now),
            crc: 0,
            trace_id: draft.options.trace_id,
        };
        for (i, word) in header.encode().into_iter().enumerate() {
            self.local.store_relaxed(at + 8 * i, word);
        }
        let frame =
            Frame { call: draft.call, method: draft.method, purpose: draft.purpose, mode, ..Frame::FREE };
        *self.frames.at(seq) = frame;
        self.frames.next = seq.next();
        self.frames.resend = self.frames.next;
        if draft.purpose != Purpose::Release {
            self.calls.get(draft.call).in_flight += 1;
        }
        self.counters.messages.increment();
        self.counters.request_bytes.add(payload.len() as u64);
        if self.kicks.at.is_none() {
            self.kicks.at = Some(now + self.kicks.pause);
        }
        self.seal_and_post(seq, len_bytes);
    }

    #[inline]
    fn mode_for(&mut self, draft: &Draft) -> Mode {
        if self.config.notify {
            return Mode::ReplyNotify;
        }
        if !P::FETCHES || (P::SWITCHES && self.modes.is_reply(draft.method)) {
            return Mode::Reply;
        }
        Mode::Fetch
    }

    /// Ends the message in a slot with checksum and tail, and WRITEs it to the mailbox.
    #[inline]
    fn seal_and_post(&mut self, seq: Seq, len_bytes: usize) {
        let Some(link) = self.link.as_mut() else { return };
        let at = link.requests.offset(seq);
        if link.checksum {
            store_checksum(link, &self.local, at, len_bytes);
        }
        self.local.store_relaxed(at + link.requests.tail_at(len_bytes), link.tail_key.tail(seq));
        let len_bytes = message_bytes(REQUEST_HEADER_BYTES, len_bytes);
        let piece = Piece { region: link.local_id, offset: at, len_bytes };
        let to = Remote { grant: &link.welcome.grants.inbox, offset: at };
        match link.peer.write(piece, to) {
            Ok(ticket) => self.frames.at(seq).sent = ticket,
            Err(error) => self.break_off(Broken::Verbs(error.to_string())),
        }
    }

    /// Sends a message again over a new connection: the server never executed it. A call that nobody waits for any more
    /// is sent as given up.
    fn send_again(&mut self, seq: Seq, now: Nanos) {
        self.counters.resent.increment();
        let frame = *self.frames.at(seq);
        let Some(link) = &self.link else { return };
        let at = link.requests.offset(seq);
        let mut words = [0u64; 6];
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.local.load_relaxed(at + 8 * i);
        }
        let Ok(mut header) = RequestHeader::decode(&words) else {
            debug_assert!(false, "our own request {} is unreadable", seq.0);
            return;
        };
        if frame.purpose == Purpose::Execute {
            let record = self.calls.get(frame.call);
            header.deadline_us = remaining_us(record.options, now);
            if record.state != super::State::Pending {
                header.flags |= RequestFlags::CANCEL;
            }
        }
        header.flags.set(RequestFlags::CHECKSUM, link.checksum);
        header.crc = 0;
        for (i, word) in header.encode().into_iter().enumerate() {
            self.local.store_relaxed(at + 8 * i, word);
        }
        self.frames.at(seq).fetch = Fetch::None;
        self.seal_and_post(seq, header.len_bytes as usize);
    }
}

#[cold]
fn store_checksum(link: &Link, local: &farcall_link::Region, at: usize, len_bytes: usize) {
    debug_assert!(link.checksum);
    let mut words = [0u64; 6];
    for (i, word) in words.iter_mut().enumerate() {
        *word = local.load_relaxed(at + 8 * i);
    }
    let crc = link.tail_key.checksum_in(
        &RequestHeader::checked_words(&words),
        local,
        at + REQUEST_HEADER_BYTES,
        len_bytes,
    );
    local.store_relaxed(at + 32, words[4] & 0xffff_ffff | u64::from(crc) << 32);
}

/// Microseconds left, rounded up; at least 1 if there is a deadline, because 0 means none.
#[inline]
fn remaining_us(options: CallOptions, now: Nanos) -> u32 {
    options.deadline.map_or(0, |deadline| {
        let left_us = deadline.since(now).as_nanos().div_ceil(1_000);
        u32::try_from(left_us).unwrap_or(u32::MAX).max(1)
    })
}
