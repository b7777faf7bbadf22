//! The loop of one server thread: sockets in, replies out.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mio::{Events, Poll, Token, Waker};
use thiserror::Error;

use super::connection::{Connection, Next, Surroundings};
use super::forward::{Port, ports};
use super::listener::{Listener, Stream};
use crate::memcached::ServerInfo;
use crate::store::Partition;

/// How doors behave.
#[derive(Debug, Clone)]
pub struct DoorConfig {
    /// Connections open at a time, over all threads; further ones are told so and closed.
    pub connections_max: u64,
    /// The size of the buffer one read fills, in bytes; one per thread.
    pub read_buffer_bytes: usize,
    /// When the server started, in milliseconds since the Unix epoch; `stats` tells the uptime by it.
    pub started_ms: u64,
}

impl Default for DoorConfig {
    fn default() -> Self {
        DoorConfig { connections_max: 4096, read_buffer_bytes: 256 << 10, started_ms: 0 }
    }
}

/// A failure of the loop itself; failures of connections only end these.
#[derive(Debug, Error)]
#[error("{what} failed: {source}")]
pub struct DoorError {
    what: &'static str,
    source: io::Error,
}

/// Counted over all threads.
#[derive(Debug, Default)]
struct Census {
    open: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
}

/// The memcached front door of one server thread.
pub struct Door {
    poll: Poll,
    events: Events,
    listeners: Vec<Listener>,
    /// Listeners to be tried again: the system was out of file descriptors.
    accept_again: bool,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    next_id: u64,
    /// Connections to be given a turn without waiting.
    due: Vec<usize>,
    /// Connections that wait for batches to come back.
    stalled: Vec<usize>,
    port: Option<Port>,
    /// The next thread to deal a connection to.
    deal_to: u32,
    threads: u32,
    read_buffer: Vec<u8>,
    reply_buffer: Vec<u8>,
    census: Arc<Census>,
    config: DoorConfig,
}

const WAKER: Token = Token(0);
const FIRST_LISTENER: usize = 1;
/// Tokens below belong to the waker and the listeners.
const FIRST_CONNECTION: usize = 64;
const EVENTS_PER_WAIT: usize = 256;

/// How long to wait before accepting again when the system refused, e.g. for lack of descriptors.
const ACCEPT_AGAIN_MS: u64 = 100;

const TOO_MANY: &[u8] = b"SERVER_ERROR too many open connections\r\n";

impl Door {
    /// The doors of `threads` server threads, one each, in the order of their partitions: thread `i` must poll door
    /// `i` with partition `i` of `threads`. All listeners belong to the first.
    ///
    /// # Errors
    /// [`DoorError`] when the system refuses an epoll instance or a registration.
    pub fn bind(listeners: Vec<Listener>, threads: u32, config: &DoorConfig) -> Result<Vec<Door>, DoorError> {
        let threads = threads.max(1);
        assert!(listeners.len() < FIRST_CONNECTION - FIRST_LISTENER, "a door has at most 62 listeners");
        let census = Arc::new(Census::default());
        let mut polls = Vec::new();
        let mut wakers = Vec::new();
        for _ in 0..threads {
            let poll =
                Poll::new().map_err(|source| DoorError { what: "creating an epoll instance", source })?;
            let waker = Waker::new(poll.registry(), WAKER)
                .map_err(|source| DoorError { what: "creating an eventfd", source })?;
            polls.push(poll);
            wakers.push(Arc::new(waker));
        }
        let mut ports: Vec<Option<Port>> =
            if threads > 1 { ports(&wakers).into_iter().map(Some).collect() } else { vec![None] };
        let mut doors: Vec<Door> = polls
            .into_iter()
            .zip(ports.iter_mut())
            .map(|(poll, port)| Door::new(poll, port.take(), threads, census.clone(), config.clone()))
            .collect();
        doors[0].listen(listeners)?;
        Ok(doors)
    }

    fn new(poll: Poll, port: Option<Port>, threads: u32, census: Arc<Census>, config: DoorConfig) -> Door {
        Door {
            poll,
            events: Events::with_capacity(EVENTS_PER_WAIT),
            listeners: Vec::new(),
            accept_again: false,
            connections: Vec::new(),
            free: Vec::new(),
            next_id: 0,
            due: Vec::new(),
            stalled: Vec::new(),
            port,
            deal_to: 0,
            threads,
            read_buffer: vec![0; config.read_buffer_bytes.max(4096)],
            reply_buffer: Vec::new(),
            census,
            config,
        }
    }

    fn listen(&mut self, listeners: Vec<Listener>) -> Result<(), DoorError> {
        self.listeners = listeners;
        for (place, listener) in self.listeners.iter_mut().enumerate() {
            listener
                .register(self.poll.registry(), Token(FIRST_LISTENER + place))
                .map_err(|source| DoorError { what: "registering a listener", source })?;
        }
        Ok(())
    }

    /// The listeners of this door.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// Accepts no further connections; Unix socket files disappear. Open connections go on.
    pub fn stop_listening(&mut self) {
        self.listeners.clear();
        self.accept_again = false;
    }

    /// Connections open on this door.
    pub fn connections(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Whether nothing is unanswered or unsent.
    pub fn is_drained(&self) -> bool {
        self.due.is_empty()
            && self.stalled.is_empty()
            && self.connections.iter().flatten().all(|c| c.replies.is_done())
    }

    /// Waits at most `timeout` for something to do (none: for ever), then does it. `now_ms` is asked once, after the
    /// wait, for the time since the Unix epoch in milliseconds. Returns how many connections had a turn.
    ///
    /// # Errors
    /// [`DoorError`] when waiting itself fails.
    pub fn poll(
        &mut self,
        partition: &mut Partition,
        now_ms: impl FnOnce() -> u64,
        timeout: Option<Duration>,
    ) -> Result<usize, DoorError> {
        let timeout = self.wait_at_most(timeout);
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() != ErrorKind::Interrupted => {
                return Err(DoorError { what: "waiting for sockets", source: error });
            }
            _ => {}
        }
        let now_ms = now_ms();
        let mut due = std::mem::take(&mut self.due);
        self.note_events(&mut due);
        self.take_arrivals(&mut due);
        self.exchange(partition, now_ms, &mut due);
        let turns = due.len();
        for place in due.drain(..) {
            self.turn(place, partition, now_ms);
        }
        // Keeps the list's memory; what is due next was collected in `self.due`.
        due.append(&mut self.due);
        self.due = due;
        if let Some(port) = &mut self.port {
            port.send_all();
        }
        Ok(turns)
    }

    fn wait_at_most(&self, timeout: Option<Duration>) -> Option<Duration> {
        if !self.due.is_empty() {
            return Some(Duration::ZERO);
        }
        let again = self.accept_again.then_some(Duration::from_millis(ACCEPT_AGAIN_MS));
        match (timeout, again) {
            (Some(timeout), Some(again)) => Some(timeout.min(again)),
            (timeout, again) => timeout.or(again),
        }
    }

    /// Tells connections what their sockets report, and accepts new ones.
    fn note_events(&mut self, due: &mut Vec<usize>) {
        let mut accept = std::mem::take(&mut self.accept_again);
        for event in &self.events {
            match event.token() {
                WAKER => {}
                Token(token) if token < FIRST_CONNECTION => accept = true,
                Token(token) => {
                    let place = token - FIRST_CONNECTION;
                    if let Some(Some(connection)) = self.connections.get_mut(place) {
                        // Errors and hang-ups are found by reading.
                        let ended = event.is_error() || event.is_read_closed();
                        connection.note(event.is_readable(), event.is_writable(), ended);
                        due.push(place);
                    }
                }
            }
        }
        if accept {
            self.accept(due);
        }
    }

    fn accept(&mut self, due: &mut Vec<usize>) {
        for listener in 0..self.listeners.len() {
            loop {
                match self.listeners[listener].accept() {
                    Ok(stream) => self.admit(stream, due),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(_) => {
                        self.accept_again = true;
                        break;
                    }
                }
            }
        }
    }

    /// Counts a new connection, refuses it over the limit, and deals it to a thread.
    fn admit(&mut self, mut stream: Stream, due: &mut Vec<usize>) {
        if self.census.open.load(Ordering::Relaxed) >= self.config.connections_max {
            self.census.refused.fetch_add(1, Ordering::Relaxed);
            // Best effort: a fresh socket's buffer has room for one line.
            let _ = io::Write::write(&mut stream, TOO_MANY);
            return;
        }
        self.census.open.fetch_add(1, Ordering::Relaxed);
        self.census.accepted.fetch_add(1, Ordering::Relaxed);
        let to = self.deal_to;
        self.deal_to = (to + 1) % self.threads;
        let own = match &self.port {
            Some(port) if to != 0 => port.hand_over(to, stream).err(),
            _ => Some(stream),
        };
        if let Some(stream) = own {
            self.adopt(stream, due);
        }
    }

    fn take_arrivals(&mut self, due: &mut Vec<usize>) {
        while let Some(stream) = self.port.as_ref().and_then(Port::arrival) {
            self.adopt(stream, due);
        }
    }

    /// Makes a connection this thread's own.
    fn adopt(&mut self, mut stream: Stream, due: &mut Vec<usize>) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        if stream.register(self.poll.registry(), Token(FIRST_CONNECTION + place)).is_err() {
            self.census.open.fetch_sub(1, Ordering::Relaxed);
            self.free.push(place);
            return;
        }
        self.next_id += 1;
        self.connections[place] = Some(Connection::new(self.next_id, stream));
        due.push(place);
    }

    /// Executes what other threads ask, and gives back what they answered.
    fn exchange(&mut self, partition: &mut Partition, now_ms: u64, due: &mut Vec<usize>) {
        let info = self.info();
        let Some(port) = &mut self.port else { return };
        let connections = &mut self.connections;
        let any = port.exchange(partition, now_ms, |to, reply| {
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

    fn turn(&mut self, place: usize, partition: &mut Partition, now_ms: u64) {
        let info = self.info();
        let Some(Some(connection)) = self.connections.get_mut(place) else { return };
        connection.borrow_buffer(&mut self.reply_buffer);
        let mut around = Surroundings {
            partition,
            port: self.port.as_mut(),
            info: &info,
            now_ms,
            read_buffer: &mut self.read_buffer,
        };
        let next = connection.turn(place, &mut around).unwrap_or(Next::Close);
        connection.return_buffer(&mut self.reply_buffer);
        match next {
            Next::Wait => {}
            Next::Again => self.due.push(place),
            Next::WhenForwarded => self.stalled.push(place),
            Next::Close => {
                self.connections[place] = None;
                self.free.push(place);
                self.census.open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn info(&self) -> ServerInfo {
        ServerInfo {
            started_ms: self.config.started_ms,
            threads: self.threads,
            connections: self.census.open.load(Ordering::Relaxed),
            connections_total: self.census.accepted.load(Ordering::Relaxed),
            connections_refused: self.census.refused.load(Ordering::Relaxed),
            connections_max: self.config.connections_max,
        }
    }
}

impl AsRawFd for Door {
    /// The epoll instance: readable when [`Door::poll`] has something to do, so that another loop can wait on it.
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}
