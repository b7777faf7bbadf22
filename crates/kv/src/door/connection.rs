//! One connection: its socket, its protocol state, its replies.

use std::io::{self, ErrorKind, Read, Write};

use super::forward::{Port, Return, What};
use super::listener::Stream;
use super::replies::Replies;
use crate::key::{Key, KeyError};
use crate::memcached::{Exptime, Op, ServerInfo, Session, Target, execute, execute_get, render_stats};
use crate::store::{Partition, Stats};

/// Unsent replies of one connection, in bytes, above which no further command is executed for it.
pub(super) const UNSENT_MAX_BYTES: usize = 1 << 20;

/// Reads of one connection in one turn, so that a busy one leaves time for the others.
const READS_PER_TURN: u32 = 4;

/// Buffers above this size are given back when they are empty.
const BUFFER_KEEP_BYTES: usize = 16 << 10;

/// What a turn works with besides the connection.
pub(super) struct Surroundings<'a> {
    pub(super) partition: &'a mut Partition,
    pub(super) port: Option<&'a mut Port>,
    pub(super) info: &'a ServerInfo,
    pub(super) now_ms: u64,
    /// Where bytes are read into first.
    pub(super) read_buffer: &'a mut [u8],
}

/// What the event loop shall do next with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for its socket or for other threads.
    Wait,
    /// Give it another turn without waiting.
    Again,
    /// Give it another turn when batches have come back.
    WhenForwarded,
    /// It is over.
    Close,
}

pub(super) struct Connection {
    pub(super) id: u64,
    stream: Stream,
    session: Session,
    /// Bytes read but not yet a whole command.
    pending: Vec<u8>,
    pub(super) replies: Replies,
    readable: bool,
    /// The end of the stream was announced: it is read up to that, since no edge comes for it again.
    ending: bool,
    writable: bool,
    /// The peer sends no more.
    ended: bool,
}

impl Connection {
    pub(super) fn new(id: u64, stream: Stream) -> Self {
        Connection {
            id,
            stream,
            session: Session::new(),
            pending: Vec::new(),
            replies: Replies::default(),
            readable: true,
            ending: false,
            writable: true,
            ended: false,
        }
    }

    /// Notes what the system reported about the socket.
    pub(super) fn note(&mut self, readable: bool, writable: bool, ending: bool) {
        self.readable |= readable || ending;
        self.ending |= ending;
        self.writable |= writable;
    }

    /// Reads, executes and answers as much as one turn allows: first everything that has arrived, then one write.
    ///
    /// # Errors
    /// Whatever the socket reports; the connection is lost then.
    pub(super) fn turn(&mut self, place: usize, around: &mut Surroundings<'_>) -> io::Result<Next> {
        let mut next = self.take_input(place, around)?;
        self.send()?;
        if next == Next::Wait && self.can_go_on() {
            // The write made room for commands that are already here.
            next = Next::Again;
        }
        if self.is_over() { Ok(Next::Close) } else { Ok(next) }
    }

    fn can_go_on(&self) -> bool {
        let has_input = self.pending.len() >= self.session.wants_bytes().max(1) || self.readable;
        has_input && !self.session.is_closed() && self.replies.has_room(UNSENT_MAX_BYTES)
    }

    fn is_over(&self) -> bool {
        (self.session.is_closed() || (self.ended && !self.can_go_on())) && self.replies.is_done()
    }

    fn take_input(&mut self, place: usize, around: &mut Surroundings<'_>) -> io::Result<Next> {
        for _ in 0..READS_PER_TURN {
            if self.pending.len() >= self.session.wants_bytes().max(1) {
                let pending = std::mem::take(&mut self.pending);
                let (consumed, blocked) = self.feed(&pending, place, around);
                self.pending = pending;
                self.pending.drain(..consumed);
                if blocked {
                    return Ok(Next::WhenForwarded);
                }
            }
            if !self.replies.has_room(UNSENT_MAX_BYTES) || self.session.is_closed() || !self.readable {
                break;
            }
            let read_bytes = self.read(around)?;
            if self.pending.is_empty() {
                let buffer = std::mem::take(&mut around.read_buffer);
                let (consumed, blocked) = self.feed(&buffer[..read_bytes], place, around);
                self.pending.extend_from_slice(&buffer[consumed..read_bytes]);
                around.read_buffer = buffer;
                if blocked {
                    return Ok(Next::WhenForwarded);
                }
            } else {
                self.pending.extend_from_slice(&around.read_buffer[..read_bytes]);
            }
        }
        if self.pending.is_empty() && self.pending.capacity() > BUFFER_KEEP_BYTES {
            self.pending = Vec::new();
        }
        Ok(Next::Wait)
    }

    /// Reads once into the shared buffer; the number of bytes, zero when there were none.
    fn read(&mut self, around: &mut Surroundings<'_>) -> io::Result<usize> {
        loop {
            match self.stream.read(around.read_buffer) {
                Ok(0) => {
                    (self.ended, self.readable) = (true, false);
                    return Ok(0);
                }
                Ok(bytes) => {
                    // A short read has emptied the socket; new bytes raise a new edge. The end may have come with the
                    // edge of the bytes, so it is looked for if it was announced.
                    self.readable = bytes == around.read_buffer.len() || self.ending;
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

    /// Executes what is complete at the start of `input`: how many bytes, and whether another thread's full mailbox
    /// stopped it.
    fn feed(&mut self, input: &[u8], place: usize, around: &mut Surroundings<'_>) -> (usize, bool) {
        let mut target = Routed {
            partition: around.partition,
            port: around.port.as_deref_mut(),
            info: around.info,
            now_ms: around.now_ms,
            replies: &mut self.replies,
            connection: place,
            connection_id: self.id,
            blocked: false,
        };
        let consumed = self.session.feed_into(input, &mut target);
        (consumed, target.blocked)
    }

    /// Writes what is ready, as far as the peer takes it.
    pub(super) fn send(&mut self) -> io::Result<()> {
        while self.writable && self.replies.unsent_bytes() > 0 {
            match self.stream.write(&self.replies.ready[self.replies.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => self.replies.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.replies.unsent_bytes() == 0 {
            self.replies.ready.clear();
            self.replies.sent = 0;
        }
        Ok(())
    }

    /// Lends the thread's buffer for the replies of this turn, if the connection has nothing unsent.
    pub(super) fn borrow_buffer(&mut self, buffer: &mut Vec<u8>) {
        if self.replies.ready.is_empty() {
            std::mem::swap(&mut self.replies.ready, buffer);
        }
    }

    /// Takes the buffer back; a connection keeps memory only for what its peer has not taken yet.
    pub(super) fn return_buffer(&mut self, buffer: &mut Vec<u8>) {
        if self.replies.ready.is_empty() && self.replies.ready.capacity() > buffer.capacity() {
            std::mem::swap(&mut self.replies.ready, buffer);
        }
        if self.replies.ready.is_empty() {
            self.replies.ready = Vec::new();
        }
    }
}

/// A session's target: the own partition, and others through the port.
struct Routed<'a> {
    partition: &'a mut Partition,
    port: Option<&'a mut Port>,
    info: &'a ServerInfo,
    now_ms: u64,
    replies: &'a mut Replies,
    connection: usize,
    connection_id: u64,
    blocked: bool,
}

impl Routed<'_> {
    fn forward(&mut self, key: &Key<'_>, what: What, text: &[u8], data: &[u8]) -> bool {
        let owner = self.partition.router().owner(key);
        let Some(port) = self.port.as_mut().filter(|port| port.has_room(owner)) else {
            self.blocked = true;
            return false;
        };
        let part = self.replies.await_one();
        let to = Return { connection: self.connection, connection_id: self.connection_id, part };
        port.push(owner, to, what, text, data);
        true
    }

    /// Executes on the own partition and asks all others to.
    fn everywhere(&mut self, what: What, reply: &'static [u8], stats: Option<Stats>) -> bool {
        let Some(port) = self.port.as_mut() else { return false };
        if !port.has_room_everywhere() {
            self.blocked = true;
            return false;
        }
        let part = self.replies.await_all(port.others(), reply, stats.map(Box::new));
        port.push_everywhere(
            Return { connection: self.connection, connection_id: self.connection_id, part },
            what,
        );
        true
    }

    fn flush_all(&mut self, delay: Exptime, reply: &'static [u8]) -> bool {
        if self.port.is_some() && !self.everywhere(What::FlushAll(delay), reply, None) {
            return false;
        }
        self.partition.flush_all(delay.to_flush_ms(self.now_ms), self.now_ms);
        if self.port.is_none() {
            self.replies.local(|out| out.extend_from_slice(reply));
        }
        true
    }

    fn stats(&mut self) -> bool {
        let own = self.partition.stats();
        if self.port.is_some() {
            return self.everywhere(What::Stats, b"", Some(own));
        }
        let (info, now_ms) = (self.info, self.now_ms);
        self.replies.local(|out| render_stats(&own, info, now_ms, out));
        true
    }
}

impl Target for Routed<'_> {
    #[inline]
    fn has_room(&self) -> bool {
        self.replies.has_room(UNSENT_MAX_BYTES)
    }

    #[inline]
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, KeyError> {
        self.partition.key(bytes)
    }

    fn value_max_bytes(&self) -> usize {
        self.partition.config().value_max_bytes
    }

    #[inline]
    fn run(&mut self, op: Op<'_>) -> bool {
        let now_ms = self.now_ms;
        match op {
            Op::Text(text) => self.replies.local(|out| out.extend_from_slice(text)),
            Op::Get { key, retrieval } if self.partition.owns(&key) => {
                self.replies.local(|out| execute_get(&key, retrieval, self.partition, now_ms, out));
            }
            Op::Get { key, retrieval } => return self.forward(&key, What::Get(retrieval), key.bytes(), &[]),
            Op::Keyed { key, command, data, .. } if self.partition.owns(&key) => {
                self.replies.local(|out| execute(&key, &command.0, data, self.partition, now_ms, out));
            }
            Op::Keyed { key, line, data, .. } => return self.forward(&key, What::Line, line, data),
            Op::FlushAll { delay, reply } => return self.flush_all(delay, reply),
            Op::Stats => return self.stats(),
        }
        true
    }
}
