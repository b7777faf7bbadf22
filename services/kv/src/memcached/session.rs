//! Protocol state of one connection: finds commands in a stream of bytes and executes them in order.

use std::os::fd::RawFd;

use super::binary;
use super::command::{Command, Retrieval, parse, retrieval};
use super::refusal::{BAD_CHUNK, BAD_EXPTIME, BAD_FORMAT, ERROR, Refusal};
use super::stats::ServerInfo;
use super::target::{ALL_LISTED, Direct, KeyedCommand, Op, Target};
use super::text::{Exptime, last_token};
use crate::key::KEY_MAX_BYTES;
use crate::store::Partition;

/// Maximum length of a command line in bytes, without the keys of a retrieval.
pub const LINE_MAX_BYTES: usize = 2048;

/// Number of parts of a listing of all items per turn; other connections wait during a turn.
const DUMP_PARTS_PER_TURN: u64 = 8;

/// Number of final bytes of an overlong line that are kept: they show whether it is an HTTP request line.
const LINE_TAIL_BYTES: usize = 16;

const END: &[u8] = b"END\r\n";

/// State of a connection. It stores no input: bytes that [`Session::feed`] does not consume are passed in again with
/// more.
#[derive(Debug, Default)]
pub struct Session {
    state: State,
    wants_bytes: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the start of a line.
    #[default]
    Line,
    /// After `gat`, before its time.
    Exptime { retrieval: Retrieval },
    /// Among the keys of a retrieval.
    Keys { retrieval: Retrieval, any: bool },
    /// At the end of a line that requested a listing of items, before this part. If `left` is set, at most that many
    /// items follow.
    Dump { part: u64, left: Option<u64> },
    /// At the end of a line that requested the connections, after the one with this descriptor.
    Connections { after: RawFd },
    /// In a data block that is discarded; `reply` follows at the end of its line.
    SkipBlock { left_bytes: u64, reply: &'static [u8] },
    /// In a line that is discarded.
    SkipLine { reply: &'static [u8] },
    /// In a line that is longer than a command.
    LongLine,
    /// Closed by `quit` or a protocol violation.
    Closed,
}

/// Result of one step.
enum Step {
    /// Consumed this many bytes.
    Used(usize),
    /// Needs at least this many contiguous bytes.
    Wants(usize),
    /// Has done enough work for one turn.
    Pause,
    /// The target accepts no operation now.
    Blocked,
}

impl Session {
    /// Creates a session in its initial state.
    pub fn new() -> Self {
        Session::default()
    }

    /// Returns whether the connection must be closed after the replies are sent. No further input is consumed then.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Returns the number of bytes that the next call of [`Session::feed`] needs in order to make progress; at most
    /// [`LINE_MAX_BYTES`] + 2 + the largest value + 2.
    pub fn wants_bytes(&self) -> usize {
        self.wants_bytes
    }

    /// Feeds the session of a single partition: executes every complete command at the start of `input`, appends the
    /// replies to `out`, and returns the number of bytes consumed. The caller passes in the rest again, followed by
    /// later bytes.
    pub fn feed(&mut self, input: &[u8], partition: &mut Partition, now_ms: u64, out: &mut Vec<u8>) -> usize {
        let (info, mut consumed) = (ServerInfo::default(), 0);
        let mut target = Direct { partition, now_ms, out, out_max_bytes: usize::MAX, info: &info };
        loop {
            consumed += self.feed_into(&input[consumed..], &mut target);
            if !matches!(self.state, State::Dump { .. }) {
                return consumed;
            }
        }
    }

    /// Like [`Session::feed`] for any target. Stops early if the target has no room, and at intervals in a listing of
    /// all items.
    pub fn feed_into(&mut self, input: &[u8], target: &mut impl Target) -> usize {
        let mut consumed = 0;
        self.wants_bytes = 1;
        while consumed < input.len() && target.has_room() {
            match self.step(&input[consumed..], target) {
                Step::Used(bytes) => consumed += bytes,
                Step::Wants(bytes) => {
                    self.wants_bytes = bytes;
                    break;
                }
                Step::Pause | Step::Blocked => break,
            }
        }
        consumed
    }

    fn step(&mut self, input: &[u8], target: &mut impl Target) -> Step {
        match self.state {
            State::Line => self.line(input, target),
            State::Exptime { retrieval } => self.exptime(input, retrieval),
            State::Keys { retrieval, any } => self.key(input, retrieval, any, target),
            State::Dump { part, left } => self.dump(part, left, target),
            State::Connections { after } => self.connections(after, target),
            State::SkipBlock { left_bytes, reply } => self.skip_block(input, left_bytes, reply),
            State::SkipLine { reply } => self.skip_line(input, reply, target),
            State::LongLine => self.long_line(input, target),
            State::Closed => Step::Blocked,
        }
    }

    fn line(&mut self, input: &[u8], target: &mut impl Target) -> Step {
        let spaces = input.iter().take_while(|&&byte| byte == b' ').count();
        if spaces > 0 {
            return Step::Used(spaces);
        }
        if let Some(used) = self.begin_retrieval(input) {
            return Step::Used(used);
        }
        if input[0] == binary::MAGIC {
            return self.refuse_binary(input, target);
        }
        let window = &input[..input.len().min(LINE_MAX_BYTES)];
        let Some(end) = memchr::memchr(b'\n', window) else {
            if input.len() < LINE_MAX_BYTES {
                return Step::Wants(input.len() + 1);
            }
            self.state = State::LongLine;
            return Step::Used(0);
        };
        let line = strip_return(&input[..end]);
        match parse(line) {
            Ok(command) => self.command(command, line, end + 1, input, target),
            Err(Refusal { reply, skip_bytes: None }) => {
                target.run(Op::Text(reply));
                Step::Used(end + 1)
            }
            Err(Refusal { reply, skip_bytes: Some(left_bytes) }) => {
                self.state = State::SkipBlock { left_bytes, reply };
                Step::Used(end + 1)
            }
        }
    }

    fn refuse_binary(&mut self, input: &[u8], target: &mut impl Target) -> Step {
        let Some(header) = input.first_chunk() else { return Step::Wants(binary::HEADER_BYTES) };
        self.state = State::Closed;
        target.run(Op::Text(&binary::refusal(header)));
        Step::Used(input.len())
    }

    /// Starts a retrieval. Its keys are read one by one, so that its line may have any length.
    fn begin_retrieval(&mut self, input: &[u8]) -> Option<usize> {
        let verb_len = [&b"get "[..], b"gets ", b"gat ", b"gats "]
            .into_iter()
            .find(|verb| input.starts_with(verb))?
            .len();
        let Command::Retrieve { retrieval, with_exptime } = retrieval(&input[..verb_len - 1]) else {
            return None;
        };
        self.state = match with_exptime {
            true => State::Exptime { retrieval },
            false => State::Keys { retrieval, any: false },
        };
        Some(verb_len)
    }

    fn command(
        &mut self,
        command: Command<'_>,
        line: &[u8],
        line_bytes: usize,
        input: &[u8],
        target: &mut impl Target,
    ) -> Step {
        if let Some(block_bytes) = command.block_bytes() {
            return self.block_command(command, block_bytes, line, line_bytes, input, target);
        }
        let reply: &[u8] = match &command {
            // A retrieval verb without a key.
            Command::Retrieve { .. } => ERROR,
            Command::Reply(reply) => reply,
            Command::Quit => {
                self.state = State::Closed;
                b""
            }
            Command::Report(report) => return taken(target.run(Op::Report(*report)), line_bytes),
            Command::ListPrefixes => return taken(target.run(Op::ListPrefixes), line_bytes),
            Command::ListConnections => {
                self.state = State::Connections { after: -1 };
                return Step::Used(line_bytes - 1);
            }
            &Command::Dump { items_max } => {
                self.state = State::Dump { part: 0, left: items_max };
                // The end of the line is not consumed: a connection gets turns only while it has input.
                return Step::Used(line_bytes - 1);
            }
            &Command::Everywhere { change, reply } => {
                return taken(target.run(Op::Everywhere { change, reply }), line_bytes);
            }
            _ => return taken(run_keyed(command, line, &[], target), line_bytes),
        };
        taken(target.run(Op::Text(reply)), line_bytes)
    }

    /// Executes a command with a data block: waits for the complete block, or skips one that is too large.
    fn block_command(
        &mut self,
        command: Command<'_>,
        block_bytes: u64,
        line: &[u8],
        line_bytes: usize,
        input: &[u8],
        target: &mut impl Target,
    ) -> Step {
        if block_bytes > target.value_max_bytes() as u64 {
            // The owner of the key refuses a command without its block.
            if !run_keyed(command, line, &[], target) {
                return Step::Blocked;
            }
            self.state = State::SkipBlock { left_bytes: block_bytes, reply: b"" };
            return Step::Used(line_bytes);
        }
        let block_end = line_bytes + block_bytes as usize;
        match input.get(block_end..) {
            Some([b'\r', b'\n', ..]) => {}
            Some([b'\r']) => return Step::Wants(block_end + 2),
            Some([]) | None => return Step::Wants(block_end + 1),
            Some(_) => {
                let reply = if command.noreply() { &b""[..] } else { BAD_CHUNK };
                self.state = State::SkipLine { reply };
                return Step::Used(block_end);
            }
        }
        let data = &input[line_bytes..block_end];
        taken(run_keyed(command, line, data, target), block_end + 2)
    }

    fn exptime(&mut self, input: &[u8], retrieval: Retrieval) -> Step {
        match token(input) {
            Token::Spaces(bytes) => Step::Used(bytes),
            Token::Whole(text) => {
                self.state = match Exptime::parse(text) {
                    Some(exptime) => {
                        State::Keys { retrieval: Retrieval { touch: Some(exptime), ..retrieval }, any: false }
                    }
                    None => State::SkipLine { reply: BAD_EXPTIME },
                };
                Step::Used(text.len())
            }
            Token::LineEnd(_) => {
                self.state = State::SkipLine { reply: ERROR };
                Step::Used(0)
            }
            Token::TooLong => {
                self.state = State::SkipLine { reply: BAD_EXPTIME };
                Step::Used(0)
            }
            Token::Partial => Step::Wants(input.len() + 1),
        }
    }

    fn key(&mut self, input: &[u8], retrieval: Retrieval, any: bool, target: &mut impl Target) -> Step {
        match token(input) {
            Token::Spaces(bytes) => Step::Used(bytes),
            Token::Whole(text) => {
                let is_first_of_many = !any && input[text.len()] == b' ';
                let legal = if is_first_of_many { keys_are_legal(input) } else { Some(true) };
                let Some(legal) = legal else { return Step::Wants(input.len() + 1) };
                let Some(key) = target.key(text).ok().filter(|_| legal) else {
                    self.state = State::SkipLine { reply: BAD_FORMAT };
                    return Step::Used(0);
                };
                if !target.run(Op::Get { key, retrieval }) {
                    return Step::Blocked;
                }
                self.state = State::Keys { retrieval, any: true };
                Step::Used(text.len())
            }
            Token::LineEnd(bytes) => {
                self.state = State::Line;
                // A time without keys is a retrieval of no keys.
                let is_whole = any || retrieval.touch.is_some();
                taken(target.run(Op::Text(if is_whole { END } else { ERROR })), bytes)
            }
            Token::TooLong => {
                self.state = State::SkipLine { reply: BAD_FORMAT };
                Step::Used(0)
            }
            Token::Partial => Step::Wants(input.len() + 1),
        }
    }

    fn dump(&mut self, part: u64, mut left: Option<u64>, target: &mut impl Target) -> Step {
        if part == target.dump_parts() || left == Some(0) {
            self.state = State::Line;
            return taken(target.run(Op::Text(END)), 1);
        }
        let op = match &mut left {
            None => Op::Dump { part },
            Some(left) => Op::ShortDump { part, left },
        };
        if !target.run(op) {
            return Step::Blocked;
        }
        self.state = State::Dump { part: part + 1, left };
        if part.is_multiple_of(DUMP_PARTS_PER_TURN) { Step::Pause } else { Step::Used(0) }
    }

    fn connections(&mut self, mut after: RawFd, target: &mut impl Target) -> Step {
        if after == ALL_LISTED {
            self.state = State::Line;
            return taken(target.run(Op::Text(END)), 1);
        }
        if !target.run(Op::ListConnections { after: &mut after }) {
            return Step::Blocked;
        }
        self.state = State::Connections { after };
        Step::Used(0)
    }

    fn skip_block(&mut self, input: &[u8], left_bytes: u64, reply: &'static [u8]) -> Step {
        let skipped = left_bytes.min(input.len() as u64);
        self.state = match left_bytes - skipped {
            0 => State::SkipLine { reply },
            left_bytes => State::SkipBlock { left_bytes, reply },
        };
        Step::Used(skipped as usize)
    }

    /// Discards a line that is too long for a command. If it is an HTTP request line, the following lines are under
    /// the control of a web page, and the connection is closed; see [`parse`].
    fn long_line(&mut self, input: &[u8], target: &mut impl Target) -> Step {
        let Some(end) = memchr::memchr(b'\n', input) else {
            return match input.len().saturating_sub(LINE_TAIL_BYTES) {
                0 => Step::Wants(input.len() + 1),
                done => Step::Used(done),
            };
        };
        let line = strip_return(&input[..end]);
        if last_token(&line[line.len().saturating_sub(LINE_TAIL_BYTES - 1)..]).starts_with(b"HTTP/") {
            self.state = State::Closed;
            return Step::Used(input.len());
        }
        self.state = State::Line;
        // There is room, so `Op::Text` is accepted.
        target.run(Op::Text(ERROR));
        Step::Used(end + 1)
    }

    fn skip_line(&mut self, input: &[u8], reply: &'static [u8], target: &mut impl Target) -> Step {
        let Some(end) = memchr::memchr(b'\n', input) else { return Step::Used(input.len()) };
        self.state = State::Line;
        target.run(Op::Text(reply));
        Step::Used(end + 1)
    }
}

fn taken(accepted: bool, bytes: usize) -> Step {
    if accepted { Step::Used(bytes) } else { Step::Blocked }
}

fn run_keyed(command: Command<'_>, line: &[u8], data: &[u8], target: &mut impl Target) -> bool {
    let command = KeyedCommand(command);
    // The parser has checked the length, and commands without a key were handled before.
    let Some(Ok(key)) = command.0.key().map(|bytes| target.key(bytes)) else {
        return target.run(Op::Text(BAD_FORMAT));
    };
    target.run(Op::Keyed { key, line, command: &command, data })
}

/// Returns whether no key of the line is too long; `None` while its end is missing. For a line that is longer than
/// other lines may be, returns true without waiting, because its keys are processed as they arrive.
fn keys_are_legal(input: &[u8]) -> Option<bool> {
    let window = &input[..input.len().min(LINE_MAX_BYTES)];
    match memchr::memchr(b'\n', window) {
        Some(end) => {
            let mut keys = strip_return(&window[..end]).split(|&byte| byte == b' ');
            Some(keys.all(|key| key.len() <= KEY_MAX_BYTES))
        }
        None if window.len() < LINE_MAX_BYTES => None,
        None => Some(true),
    }
}

fn strip_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The next token in a line of keys.
enum Token<'a> {
    Spaces(usize),
    Whole(&'a [u8]),
    LineEnd(usize),
    TooLong,
    Partial,
}

fn token(input: &[u8]) -> Token<'_> {
    let spaces = input.iter().take_while(|&&byte| byte == b' ').count();
    if spaces > 0 {
        return Token::Spaces(spaces);
    }
    // The longest key, followed by the two bytes of a line end.
    let window = &input[..input.len().min(KEY_MAX_BYTES + 2)];
    match memchr::memchr2(b' ', b'\n', window) {
        Some(end) => {
            let (at_end_of_line, text) = (window[end] == b'\n', &window[..end]);
            let text = if at_end_of_line { strip_return(text) } else { text };
            match text.len() {
                0 => Token::LineEnd(end + 1),
                1..=KEY_MAX_BYTES => Token::Whole(text),
                _ => Token::TooLong,
            }
        }
        None if window.len() < KEY_MAX_BYTES + 2 => Token::Partial,
        None => Token::TooLong,
    }
}
