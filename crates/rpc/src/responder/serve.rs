//! One message's way through the server: taken in, executed, answered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use farcall_stats::Block;
use farcall_verbs::{Clock, Nanos};

use super::connection::Connection;
use super::session::Assembly;
use super::{Call, Handler, HandlerError, Reply};
use crate::config::ResponderConfig;
use crate::counters::Counters;
use crate::wire::{
    FirstWord, Mode, REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, RequestFlags, RequestHeader, ResponseFlags,
    ResponseHeader, Status, TIME_UNIT_NS,
};

/// Of so many fetched calls one is timed.
const CALLS_PER_TIMED: u32 = 8;

/// Looks at a message whose checksum does not match, before its client is told that it is corrupt.
const CORRUPT_LOOKS_MAX: u32 = 10_000;

/// What taking in a message came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// One message is answered.
    One,
    /// There is no whole message.
    Nothing,
    /// There is one, and no room for its answer yet.
    Stalled,
    /// The stream cannot be trusted any more; the reason is in the connection.
    Violation,
}

/// The part of a responder that all connections share.
pub(super) struct Engine<H, C> {
    pub config: ResponderConfig,
    pub handler: H,
    pub counters: Block<Counters>,
    pub going_away: bool,
    clock: C,
    incarnation: u32,
    /// The message at hand: header and payload, private.
    message: Vec<u8>,
    /// The part of a result that its slot does not hold.
    spill: Vec<u8>,
}

/// What beginning with a message came to.
enum Begun {
    /// It is dealt with.
    Over(Served),
    /// It is a call, to be executed and answered. Its payload is the message at hand, or `whole`.
    Call { header: RequestHeader, whole: Option<Assembly> },
}

/// What a part of a request came to.
enum Part {
    /// It is acknowledged or refused.
    Answer(Answer),
    /// The request is whole.
    Last(Assembly),
}

/// What holding a call came to.
pub(super) enum Holding {
    /// There is none to hold.
    None(Served),
    /// One is held.
    Call { method: u16 },
}

/// How a call ended, before it is written into its slot.
struct Answer {
    status: Status,
    flags: ResponseFlags,
    len_bytes: usize,
    total_bytes: usize,
    time_units: u16,
}

impl Answer {
    const ACK: Self = Self::ok(0, 0);

    const fn ok(len_bytes: usize, total_bytes: usize) -> Self {
        Self { status: Status::OK, flags: ResponseFlags::empty(), len_bytes, total_bytes, time_units: 0 }
    }
}

impl<H: Handler, C: Clock> Engine<H, C> {
    pub fn new(config: ResponderConfig, incarnation: u64, handler: H, clock: C) -> Self {
        let counters = Block::new(&format!("rpc server thread {}", config.thread), 0);
        Self {
            config,
            handler,
            counters,
            going_away: false,
            clock,
            incarnation: incarnation as u32,
            message: Vec::new(),
            spill: Vec::new(),
        }
    }

    /// Takes in the next message of a connection, if it is whole, and answers it.
    #[inline]
    pub fn serve(&mut self, connection: &mut Connection, now: Nanos) -> Served {
        match self.begin(connection, now) {
            Begun::Over(served) => served,
            Begun::Call { header, whole } => {
                let answer = self.execute(connection, &header, whole, now);
                self.answer(connection, &header, &answer);
                Served::One
            }
        }
    }

    /// Takes in the next message, and answers it unless that is the service's to do.
    #[inline]
    fn begin(&mut self, connection: &mut Connection, now: Nanos) -> Begun {
        if !connection.can_answer() {
            self.counters.stalls.increment();
            return Begun::Over(Served::Stalled);
        }
        let header = match self.take_in(connection) {
            Ok(Some(header)) => header,
            Ok(None) => return Begun::Over(Served::Nothing),
            Err(why) => return Begun::Over(self.violated(connection, Status::BAD_REQUEST, why)),
        };
        let session = &connection.session;
        if header.session != session.id.tag() || header.incarnation != self.incarnation {
            let why = format!(
                "message {} is of session {:#x}, incarnation {:#x}; here is session {:#x}, incarnation {:#x}",
                header.seq.0,
                header.session,
                header.incarnation,
                session.id.tag(),
                self.incarnation
            );
            return Begun::Over(self.violated(connection, Status::WRONG_SESSION, why));
        }
        self.counters.messages.increment();
        self.counters.request_bytes.add(u64::from(header.len_bytes));
        let answer = if header.flags.contains(RequestFlags::CONTINUE) {
            self.go_on(connection, &header)
        } else if header.flags.contains(RequestFlags::PART) {
            match self.take_part(connection, &header, now) {
                Ok(Part::Answer(answer)) => Ok(answer),
                Ok(Part::Last(whole)) => return Begun::Call { header, whole: Some(whole) },
                Err(why) => Err(why),
            }
        } else {
            connection.session.assembly = None;
            return Begun::Call { header, whole: None };
        };
        Begun::Over(match answer {
            Ok(answer) => {
                self.answer(connection, &header, &answer);
                Served::One
            }
            Err(why) => self.violated(connection, Status::BAD_REQUEST, why),
        })
    }

    /// Takes in the next message; if it is a call, its payload is appended to `request` and it is held until
    /// [`Engine::give`] answers it.
    pub fn hold(&mut self, connection: &mut Connection, request: &mut Vec<u8>, now: Nanos) -> Holding {
        let (header, whole) = match self.begin(connection, now) {
            Begun::Over(served) => return Holding::None(served),
            Begun::Call { header, whole } => (header, whole),
        };
        let began = whole.as_ref().map_or(now, |whole| whole.began);
        if let Err((status, text)) = self.admit(connection, &header, began, now) {
            let answer = self.refuse(connection, status, &text);
            self.answer(connection, &header, &answer);
            return Holding::None(Served::One);
        }
        let payload = whole.as_ref().map_or(&self.message[REQUEST_HEADER_BYTES..], |whole| &whole.bytes);
        request.extend_from_slice(payload);
        connection.held = Some((header, self.clock.now()));
        Holding::Call { method: header.method }
    }

    /// Answers the call that a connection holds. False if it holds none.
    pub fn give(&mut self, connection: &mut Connection, result: &[u8]) -> bool {
        let Some((header, start)) = connection.held.take() else { return false };
        let worked = self.clock.now().since(start);
        let session = &connection.session;
        let payload_at = session.responses.offset(header.seq) + RESPONSE_HEADER_BYTES;
        let max_bytes = self.config.result_bytes_max as usize;
        let capacity = session.responses.capacity();
        let mut reply = Reply::new(&session.results, payload_at, capacity, &mut self.spill, max_bytes);
        reply.extend_from_slice(result);
        let (in_slot, overflown) = (reply.in_slot(), reply.is_overflown());
        self.counters.calls.increment();
        let mut answer = if overflown {
            self.refuse(connection, Status::RESULT_TOO_LARGE, &format!("more than {max_bytes} bytes"))
        } else {
            self.finish(connection, header.call_id, in_slot)
        };
        answer.time_units = time_units(worked);
        self.answer(connection, &header, &answer);
        true
    }

    /// Copies the message in the next slot to private memory, if it is whole.
    #[inline]
    fn take_in(&mut self, connection: &mut Connection) -> Result<Option<RequestHeader>, String> {
        let session = &connection.session;
        let (slots, seq) = (&session.requests, session.expect);
        let Some(first) = FirstWord::decode(connection.watch.load_acquire()) else { return Ok(None) };
        if first.seq != seq {
            return Ok(None);
        }
        let len_bytes = first.len_bytes as usize;
        if len_bytes > slots.capacity() {
            return Err(format!(
                "message {} claims {len_bytes} bytes; a slot holds {}",
                seq.0,
                slots.capacity()
            ));
        }
        let at = slots.offset(seq);
        if session.mailbox.load_acquire(at + slots.tail_at(len_bytes)) != session.tail_key.tail(seq) {
            return Ok(None);
        }
        self.message.clear();
        session.mailbox.append_to(at, REQUEST_HEADER_BYTES + len_bytes, &mut self.message);
        let mut words = [0u64; 6];
        for (word, bytes) in words.iter_mut().zip(self.message[..REQUEST_HEADER_BYTES].chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        // The first word was read, and checked, before: the copy of it may have changed since.
        words[0] = first.encode();
        if connection.checksum {
            return self.check_message(connection, &words);
        }
        RequestHeader::decode(&words).map(Some).map_err(|why| format!("message {}: {why}", seq.0))
    }

    /// The header of the message at hand, if its checksum matches. Without order among the bytes only that tells whether all
    /// of it is placed, but not for ever.
    #[cold]
    fn check_message(
        &self,
        connection: &mut Connection,
        words: &[u64; 6],
    ) -> Result<Option<RequestHeader>, String> {
        let (key, payload) = (connection.session.tail_key, &self.message[REQUEST_HEADER_BYTES..]);
        match RequestHeader::decode(words) {
            Ok(header)
                if header.flags.contains(RequestFlags::CHECKSUM)
                    && header.crc == key.checksum(&RequestHeader::checked_words(words), payload) =>
            {
                connection.corrupt_looks = 0;
                Ok(Some(header))
            }
            _ if connection.corrupt_looks < CORRUPT_LOOKS_MAX => {
                connection.corrupt_looks += 1;
                Ok(None)
            }
            _ => Err(format!(
                "message {}: its checksum did not match in {CORRUPT_LOOKS_MAX} looks",
                connection.session.expect.0
            )),
        }
    }

    /// Executes a call whose payload is the message at hand, or `whole`.
    fn execute(
        &mut self,
        connection: &mut Connection,
        header: &RequestHeader,
        whole: Option<Assembly>,
        now: Nanos,
    ) -> Answer {
        let began = whole.as_ref().map_or(now, |whole| whole.began);
        if let Err((status, text)) = self.admit(connection, header, began, now) {
            return self.refuse(connection, status, &text);
        }
        let session = &mut connection.session;
        let payload = whole.as_ref().map_or(&self.message[REQUEST_HEADER_BYTES..], |whole| &whole.bytes);
        let call = Call {
            method: header.method,
            payload,
            call_id: header.call_id,
            trace_id: header.trace_id,
            deadline: deadline(began, header.deadline_us),
            arrived: began,
            connection: connection.id.0,
        };
        let capacity = session.responses.capacity();
        let payload_at = session.responses.offset(header.seq) + RESPONSE_HEADER_BYTES;
        let max_bytes = self.config.result_bytes_max as usize;
        let mut reply = Reply::new(&session.results, payload_at, capacity, &mut self.spill, max_bytes);
        let start = is_timed(header).then(|| self.clock.now());
        let handler = &mut self.handler;
        let outcome = catch_unwind(AssertUnwindSafe(|| handler.handle(&call, &mut reply)));
        let worked = start.map(|start| self.clock.now().since(start));
        let (in_slot, overflown) = (reply.in_slot(), reply.is_overflown());
        self.counters.calls.increment();
        let mut answer = match outcome {
            Ok(Ok(())) if overflown => {
                let text = format!("more than {max_bytes} bytes");
                self.refuse(connection, Status::RESULT_TOO_LARGE, &text)
            }
            Ok(Ok(())) => self.finish(connection, header.call_id, in_slot),
            Ok(Err(HandlerError { status, message })) => self.refuse(connection, status, &message),
            Err(panic) => {
                self.counters.panics.increment();
                self.refuse(connection, Status::PANICKED, panic_text(&*panic))
            }
        };
        answer.time_units = worked.map_or(0, time_units);
        answer
    }

    /// Whether a call may be executed.
    #[inline]
    fn admit(
        &self,
        connection: &Connection,
        header: &RequestHeader,
        began: Nanos,
        now: Nanos,
    ) -> Result<(), (Status, String)> {
        if header.flags.contains(RequestFlags::CANCEL) {
            return Err((Status::CANCELLED, String::new()));
        }
        if self.going_away {
            return Err((Status::GOING_AWAY, String::new()));
        }
        if deadline(began, header.deadline_us).is_some_and(|deadline| now >= deadline) {
            self.counters.deadlines_exceeded.increment();
            return Err((Status::DEADLINE_EXCEEDED, "while its parts came".into()));
        }
        let retained = connection.session.retained_bytes;
        if retained > self.config.retained_bytes_max {
            return Err((Status::OVERLOADED, format!("{retained} bytes of results are kept")));
        }
        Ok(())
    }

    /// Leaves in the slot what fits, keeps the rest.
    #[inline]
    fn finish(&mut self, connection: &mut Connection, call_id: u64, in_slot: usize) -> Answer {
        if self.spill.is_empty() {
            return Answer::ok(in_slot, in_slot);
        }
        let session = &mut connection.session;
        let total_bytes = self.spill.len();
        let len_bytes = total_bytes.min(session.responses.capacity());
        let at = session.responses.offset(session.expect) + RESPONSE_HEADER_BYTES;
        session.results.copy_in(at, &self.spill[..len_bytes]);
        if len_bytes == total_bytes {
            self.spill.clear();
            return Answer::ok(len_bytes, total_bytes);
        }
        session.retain(call_id, std::mem::take(&mut self.spill));
        Answer { flags: ResponseFlags::MORE, ..Answer::ok(len_bytes, total_bytes) }
    }

    /// An error and its text instead of a result.
    #[cold]
    fn refuse(&mut self, connection: &Connection, status: Status, text: &str) -> Answer {
        self.spill.clear();
        self.counters.errors.increment();
        let session = &connection.session;
        let mut len_bytes = text.len().min(session.responses.capacity());
        while !text.is_char_boundary(len_bytes) {
            len_bytes -= 1;
        }
        let at = session.responses.offset(session.expect) + RESPONSE_HEADER_BYTES;
        session.results.copy_in(at, &text.as_bytes()[..len_bytes]);
        Answer { status, flags: ResponseFlags::ERROR, ..Answer::ok(len_bytes, len_bytes) }
    }

    /// Takes in a part of a long request.
    fn take_part(
        &mut self,
        connection: &mut Connection,
        header: &RequestHeader,
        now: Nanos,
    ) -> Result<Part, String> {
        let (offset, total_bytes, bytes) = part_numbers(&self.message[REQUEST_HEADER_BYTES..])?;
        if total_bytes > self.config.request_bytes_max as usize {
            let text = format!("{total_bytes} bytes; at most {}", self.config.request_bytes_max);
            return Ok(Part::Answer(self.refuse(connection, Status::REQUEST_TOO_LARGE, &text)));
        }
        let session = &mut connection.session;
        if offset == 0 {
            let bytes = Vec::with_capacity(total_bytes);
            session.assembly = Some(Assembly { call_id: header.call_id, total_bytes, bytes, began: now });
        }
        let Some(mut assembly) = session.assembly.take() else {
            return Err(format!("message {}: a part without a beginning", header.seq.0));
        };
        let fits = assembly.call_id == header.call_id
            && assembly.total_bytes == total_bytes
            && assembly.bytes.len() == offset
            && bytes.len() <= total_bytes - offset
            && !bytes.is_empty();
        if !fits {
            return Err(format!("message {}: a part that does not follow the one before", header.seq.0));
        }
        assembly.bytes.extend_from_slice(bytes);
        if assembly.bytes.len() == total_bytes {
            return Ok(Part::Last(assembly));
        }
        session.assembly = Some(assembly);
        Ok(Part::Answer(Answer::ACK))
    }

    /// Gives a piece of a result that is kept, or forgets it.
    fn go_on(&mut self, connection: &mut Connection, header: &RequestHeader) -> Result<Answer, String> {
        let (offset, longest, rest) = part_numbers(&self.message[REQUEST_HEADER_BYTES..])?;
        if !rest.is_empty() {
            return Err(format!("message {}: a continuation with a payload", header.seq.0));
        }
        let session = &mut connection.session;
        let kept = session.find_retained(header.call_id);
        if header.flags.contains(RequestFlags::CANCEL) {
            if let Some(kept) = kept {
                session.release(kept);
            }
            return Ok(Answer::ACK);
        }
        let Some(kept) = kept else {
            return Ok(self.refuse(connection, Status::RESULT_GONE, ""));
        };
        let bytes = &session.retained[kept].bytes;
        let total_bytes = bytes.len();
        if offset > total_bytes {
            return Err(format!("message {}: asks for byte {offset} of {total_bytes}", header.seq.0));
        }
        let len_bytes = longest.min(session.responses.capacity()).min(total_bytes - offset);
        let at = session.responses.offset(header.seq) + RESPONSE_HEADER_BYTES;
        session.results.copy_in(at, &bytes[offset..offset + len_bytes]);
        let is_last = offset + len_bytes == total_bytes;
        if is_last {
            // The last pieces are in slots, which keep them until the client has them.
            session.release(kept);
        }
        let flags = if is_last { ResponseFlags::empty() } else { ResponseFlags::MORE };
        Ok(Answer { flags, ..Answer::ok(len_bytes, total_bytes) })
    }

    /// Writes the header of an answer whose payload is in its slot, publishes it, and sends it to clients that do not
    /// fetch.
    #[inline]
    fn answer(&mut self, connection: &mut Connection, header: &RequestHeader, answer: &Answer) {
        let seq = header.seq;
        let session = &connection.session;
        let at = session.responses.offset(seq);
        let mut response = ResponseHeader {
            seq,
            len_bytes: answer.len_bytes as u32,
            time_units: answer.time_units,
            flags: answer.flags,
            status: answer.status,
            credits: self.config.credits.min(session.geometry.window),
            total_len_bytes: answer.total_bytes as u32,
            crc: 0,
        };
        if connection.checksum {
            response.flags |= ResponseFlags::CHECKSUM;
            self.message.clear();
            session.results.append_to(at + RESPONSE_HEADER_BYTES, answer.len_bytes, &mut self.message);
            let words = ResponseHeader::checked_words(&response.encode());
            response.crc = session.tail_key.checksum(&words, &self.message);
        }
        let words = response.encode();
        let results = &session.results;
        results.store_relaxed(at + 8, words[1]);
        results.store_relaxed(at + 16, words[2]);
        results.store_relaxed(at + session.responses.tail_at(answer.len_bytes), session.tail_key.tail(seq));
        results.store_release(at, words[0]);
        self.counters.result_bytes.add(answer.len_bytes as u64);
        let is_pushed = seq.is_before(connection.push_end);
        connection.advance();
        match header.mode() {
            Mode::Fetch if !is_pushed => self.counters.fetched.increment(),
            Mode::Reply if !is_pushed => {
                self.counters.replied.increment();
                connection.write_reply(seq, false);
            }
            _ => {
                self.counters.notified.increment();
                connection.write_reply(seq, true);
            }
        }
    }

    /// Answers a message that breaks the protocol, once and clearly; the connection is then closed.
    #[cold]
    fn violated(&mut self, connection: &mut Connection, status: Status, why: String) -> Served {
        let answer = self.refuse(connection, status, &why);
        let header = RequestHeader {
            seq: connection.session.expect,
            flags: Mode::ReplyNotify.flags(),
            ..RequestHeader::default()
        };
        self.answer(connection, &header, &answer);
        connection.violation = Some(why);
        Served::Violation
    }
}

/// Whether the handler's time is to be measured: always for a client that waits for it to become short, and often enough
/// for one that collects samples. Two clock reads cost as much as the rest of a short call.
#[inline]
fn is_timed(header: &RequestHeader) -> bool {
    header.mode() != Mode::Fetch || header.seq.0.is_multiple_of(CALLS_PER_TIMED)
}

#[inline]
fn deadline(began: Nanos, deadline_us: u32) -> Option<Nanos> {
    (deadline_us != 0).then(|| began + Duration::from_micros(u64::from(deadline_us)))
}

#[inline]
fn time_units(worked: Duration) -> u16 {
    u16::try_from((worked.as_nanos() as u64).div_ceil(TIME_UNIT_NS)).unwrap_or(u16::MAX).max(1)
}

/// The two numbers in front of a part or continuation.
fn part_numbers(payload: &[u8]) -> Result<(usize, usize, &[u8]), String> {
    let Some((numbers, rest)) = payload.split_first_chunk::<8>() else {
        return Err("a part or continuation without its numbers".into());
    };
    let [a, b, c, d, e, f, g, h] = *numbers;
    let first = u32::from_le_bytes([a, b, c, d]) as usize;
    Ok((first, u32::from_le_bytes([e, f, g, h]) as usize, rest))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a text")
}
