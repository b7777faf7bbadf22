//! Service of one connection: a bounded number of its messages is read, executed and answered.

use std::sync::Arc;

use farcall_stats::{Block, Times};
use farcall_verbs::{Clock, Nanos};

use super::answered::Answered;
use super::buffered::BufferedTotal;
use super::deferred::Deferring;
use super::execute::Answer;
use super::parts::Part;
use super::thread_pair::ThreadPair;
use super::{Handler, ServerEnd};
use crate::config::ResponderConfig;
use crate::counters::Counters;
use crate::paths::{DatagramReply, Path, RequestPath, ResponsePath, ServerReply};
use crate::wire::{CallBase, Form, Mode, RequestFlags, RequestHeader, Status};

/// Result of serving a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// Messages were answered.
    Some,
    /// There is no complete message.
    Nothing,
    /// There is a message, but no room for its answer yet.
    Stalled,
    /// The client violated the protocol; the reason is stored in the connection.
    Violation,
}

/// The functions that serve a connection, compiled for the paths of its plan: one indirect call per batch.
pub(super) struct Turns<H, C> {
    pub serve_burst: fn(&mut Engine<H, C>, &mut ServerEnd, Nanos) -> Served,
    pub push_owed: fn(&mut Engine<H, C>, &mut ServerEnd) -> bool,
    /// `true` if completions announce its requests.
    pub is_told: bool,
}

/// The part of a responder that all connections share.
pub(super) struct Engine<H, C> {
    pub config: ResponderConfig,
    pub handler: H,
    pub counters: Block<Counters>,
    /// How long the handler took, for one call in eight.
    pub times: Block<Times>,
    pub going_away: bool,
    pub clock: C,
    incarnation: u32,
    /// The current message: a private copy of header and payload.
    pub message: Vec<u8>,
    /// A result that does not fit into its slot.
    pub spill: Vec<u8>,
    pub buffered: BufferedTotal,
    pub thread_pair: ThreadPair,
    pub deferring: Deferring,
}

/// Flags of messages that are not a complete call.
const NO_WHOLE_CALL: RequestFlags =
    RequestFlags::CONTINUE.union(RequestFlags::PART).union(RequestFlags::COLLECT);

impl<H: Handler, C: Clock> Engine<H, C> {
    pub fn new(
        config: ResponderConfig,
        incarnation: u64,
        handler: H,
        clock: C,
        answered: Arc<Answered>,
    ) -> Self {
        let counters = Block::new(&format!("rpc server thread {}", config.thread), 0);
        let times = Block::new(&format!("rpc handler {}", config.thread), 0);
        let buffered = BufferedTotal::default();
        Self {
            deferring: Deferring::new(&config, buffered.clone(), answered),
            config,
            handler,
            counters,
            times,
            going_away: false,
            clock,
            incarnation: incarnation as u32,
            message: Vec::new(),
            spill: Vec::new(),
            buffered,
            thread_pair: ThreadPair::default(),
        }
    }

    pub fn turns<P: Path>() -> Turns<H, C> {
        Turns {
            serve_burst: Self::serve_burst::<P>,
            push_owed: Self::push_owed::<P>,
            is_told: P::Request::WAKES,
        }
    }

    /// Serves up to `burst` messages of a connection.
    fn serve_burst<P: Path>(&mut self, end: &mut ServerEnd, now: Nanos) -> Served {
        let mut served = Served::Nothing;
        for _ in 0..self.config.burst {
            match self.serve_one::<P::Request, P::Response>(end, now) {
                Served::Some => served = Served::Some,
                Served::Nothing => break,
                ended => return ended,
            }
            if !end.has_mail() {
                break;
            }
        }
        served
    }

    #[inline]
    fn serve_one<Q: RequestPath, S: ResponsePath>(&mut self, end: &mut ServerEnd, now: Nanos) -> Served {
        if !S::can_respond(end, &self.thread_pair, end.session.expect) {
            self.counters.stalls.increment();
            return Served::Stalled;
        }
        let mut header = match Q::take(end, &mut self.message) {
            Ok(Some(header)) => header,
            Ok(None) => return Served::Nothing,
            Err(why) => return self.violated(end, Status::BAD_REQUEST, why),
        };
        match (header.form, end.session.call_base) {
            (Form::Compact, Some(base)) => {
                header.call_id = base.call_id(header.seq);
                self.counters.compact.increment();
            }
            (Form::Compact, None) => return self.no_full_form_yet(end, &header),
            (Form::Full, _) => {
                if header.session != end.session.id.tag() || header.incarnation != self.incarnation {
                    return self.wrong_session(end, &header);
                }
                end.session.call_base = Some(CallBase::of(header.seq, header.call_id));
            }
        }
        self.counters.messages.increment();
        self.counters.request_bytes.add(u64::from(header.len_bytes));
        let answer = if header.flags.intersects(NO_WHOLE_CALL) {
            self.serve_piece(end, &header, now)
        } else {
            end.session.assembly = None;
            self.execute(end, &header, None, now)
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => return self.violated(end, Status::BAD_REQUEST, why),
        };
        self.answer::<S>(end, header.seq, header.mode(), &answer);
        Served::Some
    }

    /// Pushes the requested responses of executed messages, each with a wake-up. Returns whether all are sent. Those
    /// of other messages are pushed after their execution.
    fn push_owed<P: Path>(&mut self, end: &mut ServerEnd) -> bool {
        let is_told = self.wake_for_answers(end);
        let Some((mut seq, stop)) = end.owed else { return is_told };
        while seq.is_before(stop) && seq.is_before(end.session.expect) {
            if !P::Response::can_respond(end, &self.thread_pair, seq) {
                end.owed = Some((seq, stop));
                return false;
            }
            P::Response::respond(end, &mut self.thread_pair, seq, Mode::ReplyNotify, true, &self.counters);
            seq = seq.next();
        }
        end.owed = None;
        is_told
    }

    /// Handles a message that is not a complete call.
    #[cold]
    fn serve_piece(
        &mut self,
        end: &mut ServerEnd,
        header: &RequestHeader,
        now: Nanos,
    ) -> Result<Answer, String> {
        if header.flags.contains(RequestFlags::CONTINUE) {
            return self.go_on(end, header);
        }
        if header.flags.contains(RequestFlags::COLLECT) {
            return self.collect(end, header);
        }
        match self.take_part(end, header, now)? {
            Part::Answer(answer) => Ok(answer),
            Part::Last(whole) => self.execute(end, header, Some(whole), now),
        }
    }

    #[cold]
    fn wrong_session(&mut self, end: &mut ServerEnd, header: &RequestHeader) -> Served {
        let why = format!(
            "message {} is of session {:#x}, incarnation {:#x}; here is session {:#x}, incarnation {:#x}",
            header.seq.0,
            header.session,
            header.incarnation,
            end.session.id.tag(),
            self.incarnation
        );
        self.violated(end, Status::WRONG_SESSION, why)
    }

    #[cold]
    fn no_full_form_yet(&mut self, end: &mut ServerEnd, header: &RequestHeader) -> Served {
        let why = format!("message {}: of compact form, and none of full form came before", header.seq.0);
        self.violated(end, Status::BAD_REQUEST, why)
    }

    /// Replies once to a message that violates the protocol, by WRITE, or as a datagram if all results are datagrams.
    /// The connection is then closed.
    #[cold]
    fn violated(&mut self, end: &mut ServerEnd, status: Status, why: String) -> Served {
        let answer = self.refuse(end, status, &why);
        let (seq, mode) = (end.session.expect, Mode::ReplyNotify);
        if end.reply_to.is_some() {
            self.answer::<DatagramReply>(end, seq, mode, &answer);
        } else {
            self.answer::<ServerReply>(end, seq, mode, &answer);
        }
        end.violation = Some(why);
        Served::Violation
    }
}
