//! Event loop of a server thread: input from sockets, replies to them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farcall_drive::{AcceptBackoff, LogThrottle};
use farcall_stats::Block;
use mio::event::Source;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use thiserror::Error;

use super::FrontEndConfig;
use super::buffers::Buffers;
use super::connection::{Connection, LONG_TURN, NextAction, SHORT_TURN, ThreadState, TurnBudget};
use super::connections::Connections;
use super::forward::{PartitionExchange, exchanges};
use super::listener::Listener;
use crate::memcached::ServerInfo;
use crate::store::Partition;

/// A failure of the loop itself. Failures of a connection only end that connection.
#[derive(Debug, Error)]
#[error("{what} failed")]
pub struct FrontEndError {
    what: &'static str,
    source: io::Error,
}

farcall_stats::counters! {
    /// Counters of a thread's front end, for `farcall stats`.
    struct FrontEndCounters {
        /// Connections that this thread accepted.
        connections_opened,
        /// Connections of this thread that ended.
        connections_closed,
        /// Connections refused over the limit.
        connections_refused,
        /// Connections closed because buffers took too much.
        connections_shed,
    }
}

/// Counters over all threads.
#[derive(Debug, Default)]
struct ConnectionCounts {
    open: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
    /// Connections closed because buffers used too much memory.
    shed: AtomicU64,
    buffer_bytes: Arc<AtomicU64>,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    list: Connections,
}

/// The memcached front end of one server thread.
pub struct FrontEnd {
    poll: Poll,
    events: Events,
    listeners: Vec<Listener>,
    backoff: AcceptBackoff,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    next_id: u64,
    /// Connections with a turn in this round; a field to reuse its memory.
    due: Vec<usize>,
    /// Connections whose short turn was not sufficient.
    long: VecDeque<usize>,
    /// Connections that wait for batches to be returned.
    stalled: Vec<usize>,
    exchange: Option<PartitionExchange>,
    /// Thread to which the next connection is assigned.
    next_thread: u32,
    threads: u32,
    read_buffer: Vec<u8>,
    reply_buffer: Vec<u8>,
    buffers: Buffers,
    refusals: LogThrottle,
    sheds: LogThrottle,
    counts: Arc<ConnectionCounts>,
    counters: Block<FrontEndCounters>,
    config: FrontEndConfig,
}

const WAKER: Token = Token(0);
const FIRST_LISTENER: usize = 1;
/// Lower tokens belong to the waker and the listeners.
const FIRST_CONNECTION: usize = 64;
const EVENTS_PER_WAIT: usize = 256;

/// Number of bytes that the long turns of one round may move together; the last turn may exceed it.
const LONG_TURNS_BYTES: usize = 1 << 20;

/// Minimum number of bytes for which a long turn counts, because a listing of items takes time even if it is empty.
const LONG_TURN_MIN_BYTES: usize = 64 << 10;

const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

impl FrontEnd {
    /// Creates the front ends of `threads` server threads, one each, in the order of their partitions: thread `i` must
    /// poll front end `i` with partition `i` of `threads`. All listeners belong to the first.
    ///
    /// # Errors
    /// [`FrontEndError`] if an epoll instance or a registration fails.
    pub fn bind(
        listeners: Vec<Listener>,
        threads: u32,
        config: &FrontEndConfig,
    ) -> Result<Vec<FrontEnd>, FrontEndError> {
        let threads = threads.max(1);
        assert!(listeners.len() < FIRST_CONNECTION - FIRST_LISTENER, "a front end has at most 62 listeners");
        let counts = Arc::new(ConnectionCounts::default());
        let mut polls = Vec::new();
        let mut wakers = Vec::new();
        for _ in 0..threads {
            let poll =
                Poll::new().map_err(|source| FrontEndError { what: "creating an epoll instance", source })?;
            let waker = Waker::new(poll.registry(), WAKER)
                .map_err(|source| FrontEndError { what: "creating an eventfd", source })?;
            polls.push(poll);
            wakers.push(Arc::new(waker));
        }
        let mut exchanges: Vec<Option<PartitionExchange>> =
            if threads > 1 { exchanges(&wakers).into_iter().map(Some).collect() } else { vec![None] };
        let mut front_ends: Vec<FrontEnd> = polls
            .into_iter()
            .zip(exchanges.iter_mut())
            .enumerate()
            .map(|(number, (poll, exchange))| {
                FrontEnd::new(number, poll, exchange.take(), threads, counts.clone(), config.clone())
            })
            .collect();
        front_ends[0].listen(listeners)?;
        Ok(front_ends)
    }

    fn new(
        number: usize,
        poll: Poll,
        exchange: Option<PartitionExchange>,
        threads: u32,
        counts: Arc<ConnectionCounts>,
        config: FrontEndConfig,
    ) -> FrontEnd {
        FrontEnd {
            poll,
            events: Events::with_capacity(EVENTS_PER_WAIT),
            listeners: Vec::new(),
            backoff: AcceptBackoff::new("memcached front ends"),
            connections: Vec::new(),
            free: Vec::new(),
            next_id: 0,
            due: Vec::new(),
            long: VecDeque::new(),
            stalled: Vec::new(),
            exchange,
            next_thread: 0,
            threads,
            read_buffer: vec![0; config.read_buffer_bytes.max(4096)],
            reply_buffer: Vec::new(),
            buffers: Buffers::new(
                config.buffers_max_bytes / threads as usize,
                Arc::clone(&counts.buffer_bytes),
            ),
            refusals: LogThrottle::default(),
            sheds: LogThrottle::default(),
            counts,
            counters: Block::new(&format!("kv front end {number}"), 0),
            config,
        }
    }

    fn listen(&mut self, listeners: Vec<Listener>) -> Result<(), FrontEndError> {
        self.listeners = listeners;
        for (place, listener) in self.listeners.iter_mut().enumerate() {
            listener
                .register(self.poll.registry(), Token(FIRST_LISTENER + place))
                .map_err(|source| FrontEndError { what: "registering a listener", source })?;
            self.counts.list.add_listener(&*listener, self.config.started_ms);
        }
        Ok(())
    }

    /// Returns the listeners of this front end.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// Accepts no further connections and removes Unix socket files. Open connections continue.
    pub fn stop_listening(&mut self) {
        for listener in self.listeners.drain(..) {
            self.counts.list.remove(&listener);
        }
    }

    /// Returns the time after which [`FrontEnd::poll`] has work that its descriptor does not announce: `accept` failed
    /// and is retried.
    pub fn retry_delay(&self) -> Option<Duration> {
        self.backoff.remaining()
    }

    /// Returns the number of open connections of this front end.
    pub fn connections(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Returns whether all commands have been executed and all replies sent.
    pub fn is_drained(&self) -> bool {
        self.long.is_empty()
            && self.stalled.is_empty()
            && self.connections.iter().flatten().all(|c| c.replies.is_done())
    }

    /// Waits at most `timeout` for events (`None`: without limit), then handles them. Calls `now_ms` once, after the
    /// wait, for the partition's time in milliseconds. Returns the number of turns of connections.
    ///
    /// # Errors
    /// [`FrontEndError`] if waiting itself fails.
    pub fn poll(
        &mut self,
        partition: &mut Partition,
        now_ms: impl FnOnce() -> u64,
        timeout: Option<Duration>,
    ) -> Result<usize, FrontEndError> {
        let timeout = self.wait_at_most(timeout);
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() != ErrorKind::Interrupted => {
                return Err(FrontEndError { what: "waiting for sockets", source: error });
            }
            _ => {}
        }
        let now_ms = now_ms();
        let mut due = std::mem::take(&mut self.due);
        self.handle_events(now_ms, &mut due);
        self.accept_assigned(now_ms, &mut due);
        self.exchange(partition, now_ms, &mut due);
        let mut turns = due.len();
        for place in due.drain(..) {
            self.turn(place, &SHORT_TURN, partition, now_ms);
        }
        self.due = due;
        let mut left_bytes = LONG_TURNS_BYTES;
        while left_bytes > 0
            && let Some(place) = self.long.pop_front()
        {
            let moved_bytes = self.long_turn(place, partition, now_ms);
            left_bytes = left_bytes.saturating_sub(moved_bytes.max(LONG_TURN_MIN_BYTES));
            turns += 1;
        }
        self.buffers.return_after_peak(&mut self.reply_buffer);
        if let Some(exchange) = &mut self.exchange {
            exchange.send_all();
        }
        Ok(turns)
    }

    fn wait_at_most(&self, timeout: Option<Duration>) -> Option<Duration> {
        if !self.long.is_empty() {
            return Some(Duration::ZERO);
        }
        timeout.into_iter().chain(self.backoff.remaining()).min()
    }

    /// Passes reported readiness to the connections, and accepts new ones.
    fn handle_events(&mut self, now_ms: u64, due: &mut Vec<usize>) {
        let mut accept = self.backoff.take_expired();
        for event in &self.events {
            match event.token() {
                WAKER => {}
                Token(token) if token < FIRST_CONNECTION => accept = true,
                Token(token) => {
                    let place = token - FIRST_CONNECTION;
                    if let Some(Some(connection)) = self.connections.get_mut(place) {
                        // A read returns errors and hang-ups.
                        let ended = event.is_error() || event.is_read_closed();
                        connection.set_ready(event.is_readable(), event.is_writable(), ended);
                        due.push(place);
                    }
                }
            }
        }
        if accept {
            self.accept(now_ms, due);
        }
    }

    fn accept(&mut self, now_ms: u64, due: &mut Vec<usize>) {
        for listener in 0..self.listeners.len() {
            loop {
                match self.listeners[listener].accept() {
                    Ok(stream) => self.admit(stream, now_ms, due),
                    Err(error) if self.backoff.should_retry(&error) => {}
                    Err(_) => break,
                }
            }
        }
    }

    /// Counts a new connection, refuses it above the limit, and assigns it to a thread.
    fn admit(&mut self, mut stream: TcpStream, now_ms: u64, due: &mut Vec<usize>) {
        if self.counts.open.load(Ordering::Relaxed) >= self.config.connections_max {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            self.counters.connections_refused.increment();
            if let Some(count) = self.refusals.count() {
                let max = self.config.connections_max;
                tracing::warn!(
                    count,
                    max,
                    "refused memcached connections: all places are taken (connections_max)"
                );
            }
            // Best effort: the send buffer of a new socket has space for one line.
            let _ = io::Write::write(&mut stream, TOO_MANY);
            return;
        }
        self.counts.open.fetch_add(1, Ordering::Relaxed);
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let to = self.next_thread;
        self.next_thread = (to + 1) % self.threads;
        let own = match &self.exchange {
            Some(exchange) if to != 0 => exchange.pass_connection(to, stream).err(),
            _ => Some(stream),
        };
        if let Some(stream) = own {
            self.adopt(stream, now_ms, due);
        }
    }

    fn accept_assigned(&mut self, now_ms: u64, due: &mut Vec<usize>) {
        while let Some(stream) = self.exchange.as_ref().and_then(PartitionExchange::next_connection) {
            self.adopt(stream, now_ms, due);
        }
    }

    /// Adds a connection to this thread.
    fn adopt(&mut self, mut stream: TcpStream, now_ms: u64, due: &mut Vec<usize>) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        // Registered once for both directions, edge-triggered, so that no further system call is needed per wake-up.
        let (token, interest) = (Token(FIRST_CONNECTION + place), Interest::READABLE | Interest::WRITABLE);
        if stream.register(self.poll.registry(), token, interest).is_err() {
            self.counts.open.fetch_sub(1, Ordering::Relaxed);
            self.free.push(place);
            return;
        }
        self.next_id += 1;
        let activity = self.counts.list.add(&stream, now_ms);
        self.counters.connections_opened.increment();
        tracing::debug!(socket = stream.as_raw_fd(), "a memcached connection begins");
        self.connections[place] = Some(Connection::new(self.next_id, stream, activity));
        due.push(place);
    }

    /// Executes forwarded commands of other threads, and delivers their replies to forwarded commands of this thread.
    fn exchange(&mut self, partition: &mut Partition, now_ms: u64, due: &mut Vec<usize>) {
        let info = self.info(partition);
        let Some(exchange) = &mut self.exchange else { return };
        let connections = &mut self.connections;
        let any = exchange.receive(partition, now_ms, |to, reply| {
            let Some(Some(connection)) = connections.get_mut(to.connection) else { return };
            if connection.id == to.connection_id {
                connection.replies.deliver(to.part, reply, &info, now_ms);
                if due.last() != Some(&to.connection) {
                    due.push(to.connection);
                }
            }
        });
        if any {
            due.append(&mut self.stalled);
        }
    }

    fn long_turn(&mut self, place: usize, partition: &mut Partition, now_ms: u64) -> usize {
        let Some(Some(connection)) = self.connections.get_mut(place) else { return 0 };
        connection.awaits_long_turn = false;
        self.turn(place, &LONG_TURN, partition, now_ms)
    }

    /// Runs a turn of a connection, unless it waits for a longer one. Returns the number of bytes moved.
    fn turn(
        &mut self,
        place: usize,
        budget: &'static TurnBudget,
        partition: &mut Partition,
        now_ms: u64,
    ) -> usize {
        let info = self.info(partition);
        let Some(Some(connection)) = self.connections.get_mut(place) else { return 0 };
        if connection.awaits_long_turn {
            return 0;
        }
        connection.borrow_buffer(&mut self.reply_buffer);
        let mut thread = ThreadState {
            partition,
            exchange: self.exchange.as_mut(),
            connections: &self.counts.list,
            info: &info,
            now_ms,
            unsent_max_bytes: self.buffers.unsent_max_bytes(),
            budget,
            moved_bytes: 0,
            read_bytes: 0,
            written_bytes: 0,
            read_buffer: &mut self.read_buffer,
        };
        let next = connection.turn(place, &mut thread).unwrap_or(NextAction::Close);
        let moved_bytes = thread.moved_bytes;
        let (read_bytes, written_bytes) = (thread.read_bytes, thread.written_bytes);
        connection.return_buffer(&mut self.reply_buffer);
        let held_bytes = connection.held_bytes();
        self.buffers.count(connection.counted_bytes, held_bytes);
        connection.counted_bytes = held_bytes;
        // Once per turn, not per message.
        self.counts.read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.counts.written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
        match next {
            NextAction::Wait => {}
            NextAction::Again => {
                connection.awaits_long_turn = true;
                self.long.push_back(place);
            }
            NextAction::WhenForwarded => self.stalled.push(place),
            NextAction::Close => self.close(place),
        }
        while self.buffers.is_over_limit() && self.shed() {}
        moved_bytes
    }

    fn close(&mut self, place: usize) {
        let Some(connection) = self.connections[place].take() else { return };
        self.counters.connections_closed.increment();
        tracing::debug!(socket = connection.stream.as_raw_fd(), "a memcached connection ends");
        self.counts.list.remove(&connection.stream);
        self.buffers.count(connection.counted_bytes, 0);
        self.free.push(place);
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Closes the connection with the largest buffers. Returns whether there was one.
    #[cold]
    fn shed(&mut self) -> bool {
        let held_bytes = |place: &usize| self.connections[*place].as_ref().map_or(0, |c| c.counted_bytes);
        let Some(most) = (0..self.connections.len()).max_by_key(held_bytes) else { return false };
        if held_bytes(&most) == 0 {
            return false;
        }
        self.counts.shed.fetch_add(1, Ordering::Relaxed);
        self.counters.connections_shed.increment();
        if let Some(count) = self.sheds.count() {
            let (held_bytes, max_bytes) = (held_bytes(&most), self.config.buffers_max_bytes);
            tracing::warn!(
                count,
                held_bytes,
                max_bytes,
                "closed memcached connections: their buffers took too much"
            );
        }
        self.close(most);
        true
    }

    fn info(&self, partition: &Partition) -> ServerInfo {
        ServerInfo {
            wall: partition.wall(),
            started_ms: self.config.started_ms,
            threads: self.threads,
            connections: self.counts.open.load(Ordering::Relaxed),
            connections_total: self.counts.accepted.load(Ordering::Relaxed),
            connections_refused: self.counts.refused.load(Ordering::Relaxed),
            connections_max: self.config.connections_max,
            value_max_bytes: partition.config().value_max_bytes,
            evicts: partition.config().evict,
            counts_prefixes: partition.prefixes.is_counting(),
            connections_shed: self.counts.shed.load(Ordering::Relaxed),
            buffer_bytes: self.counts.buffer_bytes.load(Ordering::Relaxed),
            read_bytes: self.counts.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.counts.written_bytes.load(Ordering::Relaxed),
        }
    }
}

impl AsRawFd for FrontEnd {
    /// Returns the epoll instance, which is readable when [`FrontEnd::poll`] has work, so that another loop can wait
    /// on it.
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}
