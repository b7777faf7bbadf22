//! From responses to results: fetched by READ, or placed by the server.

use farcall_link::{Piece, Region, Remote};
use farcall_verbs::Nanos;
use std::time::Duration;

use super::calls::State;
use super::frames::{Fetch, Frame, Purpose};
use super::modes::Switch;
use super::{Caller, Path};
use crate::error::{Broken, CallError};
use crate::wire::{
    FirstWord, Mode, RESPONSE_HEADER_BYTES, ResponseFlags, ResponseHeader, Seq, Status, TAIL_BYTES, TailKey,
};

/// Most messages fetched at once.
const FETCH_AHEAD_MAX: u32 = 8;
/// Pause after the first fetch beyond R; doubles.
const PAUSE: Duration = Duration::from_micros(1);
const PAUSE_DOUBLINGS_MAX: u32 = 6;
/// A placed response whose checksum does not match after so many looks is fetched instead; one that was fetched so often in
/// vain is given up.
const CORRUPT_LOOKS_MAX: u32 = 64;

/// Where a response is read from.
#[derive(Clone, Copy)]
enum Source {
    /// Our READs' slots.
    Fetched,
    /// The slots that the server writes.
    Placed,
}

/// What a look at a response came to.
enum Look {
    /// Not there, or not whole.
    NotYet {
        /// Whether the server says that it sleeps.
        server_sleeps: bool,
    },
    /// There, but longer than what was fetched: so many bytes are needed.
    Longer(usize),
    /// There.
    Whole(ResponseHeader),
    /// All of it seems to be there, and its checksum does not match: not all of it is placed yet, or it is corrupt.
    Corrupt,
    /// Nothing that a server sends.
    Impossible(String),
}

impl<P: Path> Caller<P> {
    /// Posts READs for messages to be fetched that have none under way.
    pub(super) fn post_fetches(&mut self, now: Nanos) {
        if self.frames.is_empty() || self.next_fetch.is_some_and(|at| now < at) {
            return;
        }
        let ahead = self.frames.outstanding().min(self.fetch_ahead);
        for i in 0..ahead {
            let seq = self.frames.head.plus(i);
            if seq == self.frames.resend {
                break;
            }
            let frame = *self.frames.at(seq);
            if frame.mode == Mode::Fetch
                && frame.fetch == Fetch::None
                && !self.post_read(seq, 0, self.tuner.fetch_bytes())
            {
                break;
            }
        }
    }

    /// READs bytes `from..to` of a response slot.
    fn post_read(&mut self, seq: Seq, from: usize, to: usize) -> bool {
        let Some(link) = self.link.as_mut() else { return false };
        let to = to.min(link.responses.slot_bytes());
        let offset = link.responses.offset(seq) + from;
        if link.peer.room() == 0 {
            return false;
        }
        let piece = Piece { region: link.local_id, offset: link.fetch_base + offset, len_bytes: to - from };
        let remote = Remote { grant: &link.welcome.grants.results, offset };
        let tag = link.responses.index(seq) as u16 + 1;
        match link.peer.read(piece, remote, tag) {
            Ok(ticket) => {
                self.counters.reads.increment();
                self.reads_in_flight += 1;
                let frame = self.frames.at(seq);
                (frame.fetch, frame.read) = (Fetch::Posted(to), ticket);
                true
            }
            Err(error) => {
                self.break_off(Broken::Verbs(error.to_string()));
                false
            }
        }
    }

    /// Takes the responses that are there, oldest first. Returns whether there was any.
    pub(super) fn receive(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while self.link.is_some() && !self.frames.is_empty() {
            let got = self.receive_placed() || self.receive_fetched(now);
            if !got {
                break;
            }
            any = true;
            self.after_response(now);
        }
        any
    }

    fn after_response(&mut self, now: Nanos) {
        self.next_fetch = None;
        self.kicks.unanswered = 0;
        self.kicks.pause = self.config.kick_after;
        self.kicks.at = (!self.frames.is_empty()).then(|| now + self.kicks.pause);
    }

    /// Takes the oldest message's response if the server placed it.
    pub(super) fn receive_placed(&mut self) -> bool {
        let seq = self.frames.head;
        if self.frames.is_empty() {
            return false;
        }
        let mode = self.frames.at(seq).mode;
        let is_pushed = seq.is_before(self.kicks.pushed);
        if mode == Mode::Fetch && !is_pushed && self.broken.is_none() && self.link.is_some() {
            return false;
        }
        match self.look(seq, Source::Placed, usize::MAX) {
            Look::Whole(header) => {
                let counter = match mode {
                    Mode::Reply => &self.counters.replied,
                    _ => &self.counters.notified,
                };
                counter.increment();
                self.take(seq, &header, Source::Placed)
            }
            Look::Impossible(why) => {
                self.break_off_at(seq, why);
                false
            }
            Look::Corrupt => {
                self.placed_corrupt(seq);
                false
            }
            Look::NotYet { .. } | Look::Longer(_) => false,
        }
    }

    /// Takes the oldest message's response if it was fetched.
    fn receive_fetched(&mut self, now: Nanos) -> bool {
        let seq = self.frames.head;
        let frame = *self.frames.at(seq);
        let Fetch::Landed(bytes) = frame.fetch else { return false };
        match self.look(seq, Source::Fetched, bytes) {
            Look::Whole(header) => {
                self.counters.fetched.increment();
                self.fetch_ahead = (self.fetch_ahead * 2).min(FETCH_AHEAD_MAX);
                self.take(seq, &header, Source::Fetched)
            }
            Look::Longer(needed) => {
                self.counters.second_reads.increment();
                self.post_read(seq, bytes, needed);
                false
            }
            Look::NotYet { server_sleeps } => {
                self.fetch_failed(seq, server_sleeps, now);
                false
            }
            Look::Corrupt => self.fetched_corrupt(seq, now),
            Look::Impossible(why) => {
                self.break_off_at(seq, why);
                false
            }
        }
    }

    #[cold]
    fn break_off_at(&mut self, seq: Seq, why: String) {
        self.break_off(Broken::Protocol(format!("response {}: {why}", seq.0)));
    }

    fn fetch_failed(&mut self, seq: Seq, server_sleeps: bool, now: Nanos) {
        self.counters.failed_fetches.increment();
        // The server answers in order: what was fetched ahead came too early as well.
        for i in 0..self.frames.outstanding().min(FETCH_AHEAD_MAX) {
            let frame = self.frames.at(seq.plus(i));
            if matches!(frame.fetch, Fetch::Landed(_)) {
                frame.fetch = Fetch::None;
            }
        }
        self.fetch_ahead = 1;
        let retries_max = self.tuner.retries_max();
        let frame = self.frames.at(seq);
        frame.failed_fetches += 1;
        let beyond = frame.failed_fetches.saturating_sub(retries_max);
        if beyond > 0 {
            self.next_fetch = Some(now + PAUSE * (1 << beyond.min(PAUSE_DOUBLINGS_MAX)));
        }
        if server_sleeps {
            self.kick_sleeper();
        }
    }

    /// Looks at a response slot: each word once, then checks.
    #[inline]
    fn look(&self, seq: Seq, source: Source, bytes_there: usize) -> Look {
        let Some(link) = &self.link else { return Look::NotYet { server_sleeps: false } };
        let slots = &link.responses;
        let (region, at) = match source {
            Source::Fetched => (&self.local, link.fetch_base + slots.offset(seq)),
            Source::Placed => (&self.replies, slots.offset(seq)),
        };
        let first_word = region.load_acquire(at);
        let word1 = region.load_relaxed(at + 8);
        let not_yet = Look::NotYet { server_sleeps: word1 & ResponseHeader::SLEEPING_BIT != 0 };
        let Some(first) = FirstWord::decode(first_word).filter(|first| first.seq == seq) else {
            return not_yet;
        };
        let len_bytes = first.len_bytes as usize;
        if len_bytes > slots.capacity() {
            return Look::Impossible(format!("{len_bytes} bytes in a slot for {}", slots.capacity()));
        }
        let tail_at = slots.tail_at(len_bytes);
        if tail_at + TAIL_BYTES > bytes_there {
            return Look::Longer(tail_at + TAIL_BYTES);
        }
        if region.load_acquire(at + tail_at) != link.tail_key.tail(seq) {
            return not_yet;
        }
        let words = [first_word, region.load_relaxed(at + 8), region.load_relaxed(at + 16)];
        match ResponseHeader::decode(&words) {
            // Without order among the bytes, only the checksum tells whether the words themselves are there.
            Err(_) if link.checksum => Look::Corrupt,
            Ok(header) if link.checksum && !is_intact(link.tail_key, &words, &header, region, at) => {
                Look::Corrupt
            }
            Ok(header) => Look::Whole(header),
            Err(why) => Look::Impossible(why.to_string()),
        }
    }

    /// The server's own copy may be right where ours is not.
    #[cold]
    fn placed_corrupt(&mut self, seq: Seq) {
        let frame = self.frames.at(seq);
        frame.corrupt_looks += 1;
        if frame.corrupt_looks == CORRUPT_LOOKS_MAX {
            frame.corrupt_looks = 0;
            frame.mode = Mode::Fetch;
        }
    }

    /// Fetches again, a bounded number of times; then the call ends. Returns whether it did.
    #[cold]
    fn fetched_corrupt(&mut self, seq: Seq, now: Nanos) -> bool {
        let frame = self.frames.at(seq);
        frame.fetch = Fetch::None;
        frame.corrupt_looks += 1;
        if frame.corrupt_looks < CORRUPT_LOOKS_MAX {
            self.next_fetch = Some(now + PAUSE * (1 << frame.corrupt_looks.min(PAUSE_DOUBLINGS_MAX)));
            return false;
        }
        let frame = *frame;
        self.frames.head = seq.next();
        if self.frames.resend.is_before(self.frames.head) {
            self.frames.resend = self.frames.head;
        }
        self.counters.errors.increment();
        if frame.purpose != Purpose::Release {
            self.stop_sending(frame.call);
            self.calls.finish(frame.call, Some(CallError::CorruptResult { fetches: CORRUPT_LOOKS_MAX }));
            self.calls.message_over(frame.call);
        }
        true
    }

    /// Takes a whole response over: its payload to its call, its slot free.
    #[inline]
    fn take(&mut self, seq: Seq, header: &ResponseHeader, source: Source) -> bool {
        let frame = *self.frames.at(seq);
        self.frames.at(seq).fetch = Fetch::None;
        self.frames.head = seq.next();
        if self.frames.resend.is_before(self.frames.head) {
            self.frames.resend = self.frames.head;
        }
        self.credits = u32::from(header.credits);
        if frame.purpose == Purpose::Execute && !header.flags.contains(ResponseFlags::ERROR) {
            self.learn(&frame, header);
        }
        if frame.purpose != Purpose::Release {
            if self.calls.get(frame.call).state == State::Pending {
                self.deliver(seq, &frame, header, source);
            } else if frame.purpose == Purpose::Execute && header.flags.contains(ResponseFlags::MORE) {
                // Nobody wants the rest of it.
                let call_id = self.calls.get(frame.call).id.0;
                self.to_release.push_back(call_id);
            }
            self.calls.message_over(frame.call);
        }
        true
    }

    /// What a response teaches: the method's mode, and samples for R and F.
    #[inline]
    fn learn(&mut self, frame: &Frame, header: &ResponseHeader) {
        if !P::SWITCHES {
            return;
        }
        let switch = match frame.mode {
            Mode::Fetch => self.modes.fetched(frame.method, frame.failed_fetches > self.tuner.retries_max()),
            Mode::Reply => header
                .time_ns()
                .and_then(|time_ns| self.modes.replied(frame.method, time_ns <= self.tuner.short_time_ns())),
            Mode::ReplyNotify => None,
        };
        match switch {
            Some(Switch::ToReply) => self.counters.switches_to_reply.increment(),
            Some(Switch::ToFetch) => self.counters.switches_to_fetch.increment(),
            None => {}
        }
        if self.config.tune_while_running
            && let Some(time_ns) = header.time_ns()
        {
            self.tuner.sample(header.total_len_bytes, time_ns);
        }
    }

    #[inline]
    fn deliver(&mut self, seq: Seq, frame: &Frame, header: &ResponseHeader, source: Source) {
        let is_error = header.flags.contains(ResponseFlags::ERROR);
        if frame.purpose == Purpose::Part && !is_error {
            return;
        }
        self.append(seq, frame.call, header, source);
        if is_error {
            self.deliver_error(frame.call, header);
            return;
        }
        self.counters.result_bytes.add(u64::from(header.len_bytes));
        if frame.purpose == Purpose::Execute && header.flags.contains(ResponseFlags::MORE) {
            self.begin_long_result(frame.call, header);
            return;
        }
        let record = self.calls.get(frame.call);
        if record.reply.len() >= record.total_bytes {
            self.calls.finish(frame.call, None);
        }
    }

    #[inline]
    fn append(&mut self, seq: Seq, call: u16, header: &ResponseHeader, source: Source) {
        let Some(link) = &self.link else { return };
        let slot_at = link.responses.offset(seq);
        let (region, at) = match source {
            Source::Fetched => (&self.local, link.fetch_base + slot_at),
            Source::Placed => (&self.replies, slot_at),
        };
        let reply = &mut self.calls.get(call).reply;
        if header.flags.contains(ResponseFlags::ERROR) {
            reply.clear();
        }
        region.append_to(at + RESPONSE_HEADER_BYTES, header.len_bytes as usize, reply);
    }

    /// The first piece of a result that comes in several.
    #[cold]
    fn begin_long_result(&mut self, call: u16, header: &ResponseHeader) {
        let max_bytes = self.config.result_bytes_max as usize;
        let record = self.calls.get(call);
        let total_bytes = header.total_len_bytes as usize;
        if total_bytes > max_bytes {
            let id = record.id.0;
            self.to_release.push_back(id);
            self.calls.finish(call, Some(CallError::ResultTooLarge { len_bytes: total_bytes, max_bytes }));
            return;
        }
        record.total_bytes = total_bytes;
        record.asked_bytes = record.reply.len();
        record.reply.reserve_exact(total_bytes - record.reply.len());
        // Before calls that have not begun, since it holds the server's memory; after results that came before.
        let records = &self.calls.records;
        let begun = self.to_send.iter().take_while(|at| records[usize::from(**at)].total_bytes > 0).count();
        self.to_send.insert(begun, call);
    }

    #[cold]
    fn deliver_error(&mut self, call: u16, header: &ResponseHeader) {
        self.counters.errors.increment();
        self.to_send.retain(|waiting| *waiting != call);
        let record = self.calls.get(call);
        let message = String::from_utf8_lossy(&record.reply).into_owned();
        let error = match header.status.application_code() {
            Some(code) => CallError::Application { code, message },
            None => CallError::Server { status: header.status, message },
        };
        if header.status == Status::GOING_AWAY {
            self.going_away = true;
        }
        self.calls.finish(call, Some(error));
    }
}

#[cold]
fn is_intact(key: TailKey, words: &[u64; 3], header: &ResponseHeader, region: &Region, at: usize) -> bool {
    let len_bytes = header.len_bytes as usize;
    let crc = || {
        key.checksum_in(&ResponseHeader::checked_words(words), region, at + RESPONSE_HEADER_BYTES, len_bytes)
    };
    header.flags.contains(ResponseFlags::CHECKSUM) && header.crc == crc()
}
