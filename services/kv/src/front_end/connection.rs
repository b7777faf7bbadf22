//! One connection: its socket, its protocol state, its replies.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use mio::net::TcpStream;

use super::connections::{Activity, Connections, SocketState};
use super::forward::{Action, PartitionExchange, ReplyTo};
use super::replies::{MergedReply, ReplyQueue};
use crate::key::{Key, KeyError};
use crate::memcached::{
    Change, Op, Report, ServerInfo, Session, Target, execute, execute_dump, execute_get, execute_short_dump,
    list_prefixes,
};
use crate::store::{Partition, Prefixes};

/// Limits of one turn of a connection, so that others do not wait long.
pub(super) struct TurnBudget {
    reads: u32,
    /// Maximum number of bytes to read at once, to reply with, and to send. A longer value is left for another turn.
    bytes: usize,
}

/// The turn of every connection that has work. All other connections wait for it, so it is short.
pub(super) const SHORT_TURN: TurnBudget = TurnBudget { reads: 1, bytes: 64 << 10 };

/// The turn of connections whose short turn was not sufficient; a round has a few. Unsent replies are bounded as well.
pub(super) const LONG_TURN: TurnBudget = TurnBudget { reads: 4, bytes: usize::MAX };

/// Buffers above this capacity are released when they are empty.
const BUFFER_KEEP_BYTES: usize = 16 << 10;

/// State of the thread that a connection's turn uses.
pub(super) struct ThreadState<'a> {
    pub(super) partition: &'a mut Partition,
    pub(super) exchange: Option<&'a mut PartitionExchange>,
    pub(super) connections: &'a Connections,
    pub(super) info: &'a ServerInfo,
    pub(super) now_ms: u64,
    /// Limit of unsent replies above which no further command is executed.
    pub(super) unsent_max_bytes: usize,
    pub(super) budget: &'static TurnBudget,
    /// Number of bytes read, replied with and sent in this turn.
    pub(super) moved_bytes: usize,
    /// Number of bytes read from the socket in this turn.
    pub(super) read_bytes: u64,
    /// Number of bytes written to the socket in this turn.
    pub(super) written_bytes: u64,
    /// Buffer for reads from the socket.
    pub(super) read_buffer: &'a mut [u8],
}

/// Next action of the event loop for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextAction {
    /// Wait for its socket or for other threads.
    Wait,
    /// Give it a long turn.
    Again,
    /// Give it another turn when batches have been returned.
    WhenForwarded,
    /// Close it.
    Close,
}

pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) stream: TcpStream,
    activity: Arc<Activity>,
    session: Session,
    /// Bytes of an incomplete command.
    pending: Vec<u8>,
    pub(super) replies: ReplyQueue,
    /// Memory of its buffers as last accounted.
    pub(super) counted_bytes: usize,
    /// `true` if it waits for a long turn.
    pub(super) awaits_long_turn: bool,
    readable: bool,
    /// `true` if the system reported the end of the stream. The connection is then read to the end, since no further
    /// edge arrives.
    ending: bool,
    writable: bool,
    /// `true` if the peer sends no more.
    ended: bool,
}

impl Connection {
    pub(super) fn new(id: u64, stream: TcpStream, activity: Arc<Activity>) -> Self {
        Connection {
            id,
            stream,
            activity,
            session: Session::new(),
            pending: Vec::new(),
            replies: ReplyQueue::default(),
            counted_bytes: 0,
            awaits_long_turn: false,
            readable: true,
            ending: false,
            writable: true,
            ended: false,
        }
    }

    /// Records the readiness reported for the socket.
    pub(super) fn set_ready(&mut self, readable: bool, writable: bool, ending: bool) {
        self.readable |= readable || ending;
        self.ending |= ending;
        self.writable |= writable;
    }

    /// Reads, executes and replies as far as one turn allows: first all input that has arrived, then one write.
    ///
    /// # Errors
    /// Returns any error of the socket; the connection is lost then.
    pub(super) fn turn(&mut self, place: usize, thread: &mut ThreadState<'_>) -> io::Result<NextAction> {
        let mut next = self.take_input(place, thread)?;
        self.send(thread)?;
        self.activity.note_state(self.state());
        let unsent_max_bytes = thread.unsent_max_bytes;
        let can_send = self.writable && self.replies.unsent_bytes() > 0;
        if next == NextAction::Wait && (can_send || self.can_execute(unsent_max_bytes)) {
            // There is more work than a turn allows, or the write freed space for replies to commands that have
            // arrived.
            next = NextAction::Again;
        }
        if self.has_ended(unsent_max_bytes) { Ok(NextAction::Close) } else { Ok(next) }
    }

    fn state(&self) -> SocketState {
        match (self.replies.unsent_bytes(), self.pending.len()) {
            (0, 0) => SocketState::Read,
            (0, _) => SocketState::ReadRest,
            _ => SocketState::Write,
        }
    }

    fn can_execute(&self, unsent_max_bytes: usize) -> bool {
        let has_input = self.pending.len() >= self.session.wants_bytes().max(1) || self.readable;
        has_input && !self.session.is_closed() && self.replies.has_room(unsent_max_bytes)
    }

    fn has_ended(&self, unsent_max_bytes: usize) -> bool {
        (self.session.is_closed() || (self.ended && !self.can_execute(unsent_max_bytes)))
            && self.replies.is_done()
    }

    /// Returns the memory used by the buffers.
    #[inline]
    pub(super) fn held_bytes(&self) -> usize {
        self.pending.capacity() + self.replies.held_bytes()
    }

    fn take_input(&mut self, place: usize, thread: &mut ThreadState<'_>) -> io::Result<NextAction> {
        for _ in 0..thread.budget.reads {
            if self.pending.len() >= self.session.wants_bytes().max(1) {
                let pending = std::mem::take(&mut self.pending);
                let (consumed, stopped) = self.feed(&pending, place, thread);
                self.pending = pending;
                self.pending.drain(..consumed);
                if let Some(next) = stopped {
                    return Ok(next);
                }
            }
            if !self.replies.has_room(thread.unsent_max_bytes) || self.session.is_closed() || !self.readable {
                break;
            }
            let read_bytes = self.read(thread)?;
            if self.pending.is_empty() {
                let buffer = std::mem::take(&mut thread.read_buffer);
                let (consumed, stopped) = self.feed(&buffer[..read_bytes], place, thread);
                self.pending.extend_from_slice(&buffer[consumed..read_bytes]);
                thread.read_buffer = buffer;
                if let Some(next) = stopped {
                    return Ok(next);
                }
            } else {
                self.pending.extend_from_slice(&thread.read_buffer[..read_bytes]);
            }
        }
        if self.pending.is_empty() && self.pending.capacity() > BUFFER_KEEP_BYTES {
            self.pending = Vec::new();
        }
        Ok(NextAction::Wait)
    }

    /// Reads once into the shared buffer. Returns the number of bytes, zero if none were available.
    fn read(&mut self, thread: &mut ThreadState<'_>) -> io::Result<usize> {
        let room = thread.read_buffer.len().min(thread.budget.bytes);
        loop {
            match self.stream.read(&mut thread.read_buffer[..room]) {
                Ok(0) => {
                    (self.ended, self.readable) = (true, false);
                    return Ok(0);
                }
                Ok(bytes) => {
                    // A short read has emptied the socket, and new bytes raise a new edge. The end of the stream may
                    // have arrived with the same edge as the bytes, so another read checks for it if it was reported.
                    self.readable = bytes == room || self.ending;
                    thread.moved_bytes += bytes;
                    thread.read_bytes += bytes as u64;
                    return Ok(bytes);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Executes the complete commands at the start of `input`. Returns the number of bytes consumed, and the next
    /// action if the execution stopped early.
    fn feed(
        &mut self,
        input: &[u8],
        place: usize,
        thread: &mut ThreadState<'_>,
    ) -> (usize, Option<NextAction>) {
        let stored_before_bytes = self.replies.stored_bytes();
        let mut target = Routed {
            partition: thread.partition,
            exchange: thread.exchange.as_deref_mut(),
            connections: thread.connections,
            socket: self.stream.as_raw_fd(),
            info: thread.info,
            now_ms: thread.now_ms,
            replies: &mut self.replies,
            unsent_max_bytes: thread.unsent_max_bytes,
            stored_max_bytes: stored_before_bytes.saturating_add(thread.budget.bytes),
            value_max_bytes: thread.budget.bytes,
            reply_to: ReplyTo { connection: place, connection_id: self.id, part: 0 },
            stopped: None,
        };
        let consumed = self.session.feed_into(input, &mut target);
        let stopped = target.stopped;
        thread.moved_bytes += self.replies.stored_bytes() - stored_before_bytes;
        if consumed > 0 {
            self.activity.note_commands(thread.now_ms);
        }
        (consumed, stopped)
    }

    /// Writes the finished replies, as far as the turn and the socket allow.
    fn send(&mut self, thread: &mut ThreadState<'_>) -> io::Result<()> {
        let mut left_bytes = thread.budget.bytes.min(self.replies.unsent_bytes());
        while self.writable && left_bytes > 0 {
            match self.stream.write(&self.replies.ready[self.replies.sent..][..left_bytes]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.replies.note_sent(bytes);
                    left_bytes -= bytes;
                    thread.moved_bytes += bytes;
                    thread.written_bytes += bytes as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Lends the thread's buffer for the replies of this turn, if the connection has no unsent replies.
    pub(super) fn borrow_buffer(&mut self, buffer: &mut Vec<u8>) {
        if self.replies.ready.is_empty() {
            std::mem::swap(&mut self.replies.ready, buffer);
        }
    }

    /// Returns the buffer to the thread. A connection keeps memory only for replies that its peer has not received
    /// yet.
    pub(super) fn return_buffer(&mut self, buffer: &mut Vec<u8>) {
        if self.replies.ready.is_empty() && self.replies.ready.capacity() > buffer.capacity() {
            std::mem::swap(&mut self.replies.ready, buffer);
        }
        if self.replies.ready.is_empty() {
            self.replies.ready = Vec::new();
        }
    }
}

/// The target of a session: the partition of this thread, and others through the exchange.
struct Routed<'a> {
    partition: &'a mut Partition,
    exchange: Option<&'a mut PartitionExchange>,
    connections: &'a Connections,
    /// Socket of the connection itself.
    socket: RawFd,
    info: &'a ServerInfo,
    now_ms: u64,
    replies: &'a mut ReplyQueue,
    unsent_max_bytes: usize,
    /// Length of the replies at which this turn ends.
    stored_max_bytes: usize,
    /// Maximum length of a value in this turn; longer values are left for another turn.
    value_max_bytes: usize,
    reply_to: ReplyTo,
    /// Next action if an operation could not be accepted.
    stopped: Option<NextAction>,
}

impl Routed<'_> {
    fn forward(&mut self, owner: u32, action: Action, text: &[u8], data: &[u8]) -> bool {
        let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.has_room(owner)) else {
            self.stopped = Some(NextAction::WhenForwarded);
            return false;
        };
        let part = self.replies.reserve_one();
        exchange.push(owner, ReplyTo { part, ..self.reply_to }, action, text, data);
        true
    }

    /// Returns whether the key's value is too long for this turn.
    #[inline]
    fn is_too_long(&mut self, key: &Key<'_>) -> bool {
        let max_bytes = self.value_max_bytes;
        // Most stores have no long values, and this check avoids a second lookup.
        let is_too_long = max_bytes < self.partition.longest_value_bytes()
            && self.partition.peek(key, self.now_ms).is_some_and(|item| item.value.len() > max_bytes);
        if is_too_long {
            self.stopped = Some(NextAction::Again);
        }
        is_too_long
    }

    fn owner(&self, key: &Key<'_>) -> u32 {
        self.partition.router().owner(key)
    }

    /// Forwards the action to all other partitions; returns whether the exchange accepted it.
    fn everywhere(&mut self, action: Action, merged: MergedReply) -> bool {
        let Some(exchange) = self.exchange.as_mut() else { return false };
        if !exchange.has_room_everywhere() {
            self.stopped = Some(NextAction::WhenForwarded);
            return false;
        }
        let part = self.replies.reserve_all(exchange.others(), merged);
        exchange.push_everywhere(ReplyTo { part, ..self.reply_to }, action);
        true
    }

    fn change(&mut self, change: Change, reply: &'static [u8]) -> bool {
        let reply = change.reply_or_error(reply, self.partition);
        if self.exchange.is_some() && !self.everywhere(Action::Change(change), MergedReply::Done(reply)) {
            return false;
        }
        change.apply(self.partition, self.now_ms);
        if self.exchange.is_none() {
            self.replies.local(|out| out.extend_from_slice(reply));
        }
        true
    }

    fn report(&mut self, report: Report) -> bool {
        let own = self.partition.stats();
        if self.exchange.is_some() {
            return self.everywhere(Action::Stats, MergedReply::Report(Box::new((report, own))));
        }
        let (info, now_ms) = (self.info, self.now_ms);
        self.replies.local(|out| report.render(&own, info, now_ms, out));
        true
    }

    fn list_prefixes(&mut self) -> bool {
        if self.exchange.is_none() {
            let prefixes = &self.partition.prefixes;
            self.replies.local(|out| list_prefixes(prefixes, out));
            return true;
        }
        let (mut own, mut sum) = (Vec::new(), Box::<Prefixes>::default());
        self.partition.prefixes.encode(&mut own);
        sum.add_encoded(&own);
        self.everywhere(Action::Prefixes, MergedReply::Prefixes(sum))
    }

    /// Lists a part of all items. Parts are numbered by partition; every partition has the same number of parts.
    fn dump(&mut self, part: u64) -> bool {
        let parts = u64::from(self.partition.listing_parts());
        let (owner, part) = ((part / parts) as u32, (part % parts) as u32);
        if owner != self.partition.config().partition {
            return self.forward(owner, Action::Dump(part), &[], &[]);
        }
        let now_ms = self.now_ms;
        self.replies.local(|out| execute_dump(part, self.partition, now_ms, out));
        true
    }
}

impl Target for Routed<'_> {
    #[inline]
    fn has_room(&self) -> bool {
        self.replies.has_room(self.unsent_max_bytes) && self.replies.stored_bytes() < self.stored_max_bytes
    }

    #[inline]
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, KeyError> {
        self.partition.key(bytes)
    }

    fn value_max_bytes(&self) -> usize {
        self.partition.config().value_max_bytes
    }

    fn dump_parts(&self) -> u64 {
        u64::from(self.partition.listing_parts()) * u64::from(self.partition.config().partitions)
    }

    #[inline]
    fn run(&mut self, op: Op<'_>) -> bool {
        let now_ms = self.now_ms;
        match op {
            Op::Text(text) => self.replies.local(|out| out.extend_from_slice(text)),
            Op::Get { key, retrieval } if self.partition.owns(&key) => {
                if self.is_too_long(&key) {
                    return false;
                }
                self.replies.local(|out| execute_get(&key, retrieval, self.partition, now_ms, out));
            }
            Op::Get { key, retrieval } => {
                return self.forward(self.owner(&key), Action::Get(retrieval), key.bytes(), &[]);
            }
            Op::Keyed { key, command, data, .. } if self.partition.owns(&key) => {
                if command.reads_value() && self.is_too_long(&key) {
                    return false;
                }
                self.replies.local(|out| execute(&key, &command.0, data, self.partition, now_ms, out));
            }
            Op::Keyed { key, line, data, .. } => {
                return self.forward(self.owner(&key), Action::Line, line, data);
            }
            Op::Everywhere { change, reply } => return self.change(change, reply),
            Op::Report(report) => return self.report(report),
            Op::ListPrefixes => return self.list_prefixes(),
            Op::ListConnections { after } => {
                self.replies.local(|out| self.connections.list(after, self.socket, now_ms, out));
            }
            Op::Dump { part } => return self.dump(part),
            Op::ShortDump { part, left } => {
                self.replies.local(|out| execute_short_dump(part, left, self.partition, now_ms, out));
            }
        }
        true
    }
}
