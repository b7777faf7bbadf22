//! The listening thread: admission, deadlines of handshakes, and messages to clients.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use farcall_link::bootstrap::{Refusal, RefusalKind};
use farcall_shm::request_short_slice;
use farcall_stats::Block;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::connection::{Connection, ReadOutcome};
use super::counters::{Counters, next_label};
use super::handshakes::Handshakes;
use super::peer_user::PeerUsers;
use super::placement::ServerThreads;
use super::{AuthorizeUser, BootstrapEvent, BootstrapId, Command, ListenConfig, acceptor};
use crate::{AcceptBackoff, Stop, WakeQueue, deepen_backlog};

const WAKE: Token = Token(0);
const ACCEPT: Token = Token(1);
const FIRST_CONNECTION: u64 = 2;

pub(super) struct ListenThread {
    poll: Poll,
    socket: Option<TcpListener>,
    commands: WakeQueue<Command>,
    stop: Stop,
    threads: ServerThreads,
    config: ListenConfig,
    connections: HashMap<u64, Connection>,
    handshakes: Handshakes,
    /// `None` if the kernel does not report users.
    users: Option<PeerUsers>,
    authorize: AuthorizeUser,
    backoff: AcceptBackoff,
    next_id: u64,
    counters: Block<Counters>,
}

/// Interval between two checks for handshakes that take too long.
const EXPIRY_PERIOD: Duration = Duration::from_millis(50);

impl ListenThread {
    /// Binds the address. Also returns the address with its port, and the waker that announces commands to the thread.
    pub(super) fn bind(
        address: SocketAddr,
        commands: WakeQueue<Command>,
        stop: Stop,
        queues: Vec<WakeQueue<BootstrapEvent>>,
        config: ListenConfig,
        authorize: AuthorizeUser,
    ) -> io::Result<(Self, SocketAddr, Waker)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let mut socket = TcpListener::bind(address)?;
        deepen_backlog(&socket)?;
        let address = socket.local_addr()?;
        poll.registry().register(&mut socket, ACCEPT, Interest::READABLE)?;
        let (socket, connections) = (Some(socket), HashMap::new());
        let thread = Self {
            poll,
            socket,
            commands,
            stop,
            threads: ServerThreads::new(queues),
            handshakes: Handshakes::new(config.pending_max, config.pending_per_address_max),
            users: PeerUsers::open().ok(),
            authorize,
            backoff: AcceptBackoff::new(format!("bootstrap port {address}")),
            config,
            connections,
            next_id: FIRST_CONNECTION,
            counters: Block::new(&next_label(), 0),
        };
        Ok((thread, address, waker))
    }

    pub(super) fn run(mut self) {
        // Handshakes wait for this thread, which sleeps between events.
        request_short_slice();
        let mut events = Events::with_capacity(256);
        while !self.stop.is_requested() {
            match self.poll.poll(&mut events, self.wait_at_most()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Without its poll no client can connect; established connections work without it.
                Err(error) => {
                    tracing::error!(
                        "bootstrap port: waiting for sockets failed: {error}; no client can connect any more"
                    );
                    return;
                }
            }
            for event in &events {
                match event.token() {
                    WAKE => {}
                    ACCEPT => self.accept_all(),
                    Token(connection) => self.ready(connection as u64),
                }
            }
            if self.backoff.take_expired() {
                self.accept_all();
            }
            self.run_commands();
            self.expire();
        }
        // Send the queued messages before the end.
        self.run_commands();
    }

    fn wait_at_most(&self) -> Option<Duration> {
        let expiry = (self.handshakes.count() > 0).then_some(EXPIRY_PERIOD);
        self.backoff.remaining().into_iter().chain(expiry).min()
    }

    fn accept_all(&mut self) {
        while let Some(listener) = &self.socket {
            match listener.accept() {
                Ok((socket, peer)) => match self.authorize_user(&socket, peer) {
                    Ok(()) => self.admit(socket, peer.ip()),
                    Err(why) => self.reject(socket, peer.ip(), &RefusalKind::NotAdmitted.because(why)),
                },
                Err(error) if self.backoff.should_retry(&error) => {}
                Err(_) => return,
            }
        }
    }

    /// Refuses a connection that was not admitted.
    fn reject(&self, mut socket: TcpStream, peer: IpAddr, refusal: &Refusal) {
        tracing::info!(%peer, "{refusal}");
        self.counters.refused.increment();
        let _ = socket.write(&acceptor().refuse(refusal));
        let _ = socket.shutdown(Shutdown::Write);
    }

    /// Checks whether the user at the other end may connect, if it is a user of this machine.
    fn authorize_user(&mut self, socket: &TcpStream, peer: SocketAddr) -> Result<(), String> {
        let Some(users) = &mut self.users else { return Ok(()) };
        let user = socket.local_addr().ok().and_then(|ours| users.user_of(peer, ours));
        user.map_or(Ok(()), &self.authorize)
    }

    fn admit(&mut self, mut socket: TcpStream, address: IpAddr) {
        let address = address.to_canonical();
        if self.connections.len() >= self.config.connections_max || !self.make_room_for(address) {
            let (connections, handshakes) = (self.connections.len(), self.handshakes.count());
            let why = format!("{connections} connections, {handshakes} of them in their handshake");
            return self.reject(socket, address, &RefusalKind::TooManyConnections.because(why));
        }
        let id = self.next_id;
        self.next_id += 1;
        let _ = socket.set_nodelay(true);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut socket, Token(id as usize), interest).is_err() {
            return;
        }
        self.counters.admitted.increment();
        self.handshakes.begin(id, address);
        self.connections.insert(id, Connection::new(BootstrapId(id), socket, self.config.handshake_timeout));
        self.ready(id);
    }

    /// Returns whether one more handshake may begin. Evicts the oldest incomplete handshakes if necessary.
    fn make_room_for(&mut self, address: IpAddr) -> bool {
        while !self.handshakes.has_room_for(address) {
            let Some(oldest) = self.handshakes.oldest_to_evict(address) else { return false };
            // Its hello may have arrived since it was accepted.
            self.ready(oldest);
            if self.connections.get(&oldest).is_some_and(Connection::awaits_hello) {
                let why = "others wanted to begin, and this handshake was the oldest without a whole hello";
                self.refuse(oldest, &RefusalKind::TooManyConnections.because(why));
                self.drop_connection(oldest);
            }
        }
        true
    }

    /// Handles a connection that is readable or writable.
    fn ready(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let flushed = connection.flush();
        let outcome = match connection.close_when_sent {
            true => ReadOutcome::Nothing,
            false => connection.read(&mut self.threads),
        };
        if !connection.awaits_hello() {
            self.handshakes.end(id);
        }
        match outcome {
            ReadOutcome::Refused(refusal) => self.refuse(id, &refusal),
            ReadOutcome::HungUp => self.remove(id),
            ReadOutcome::Nothing if flushed.is_err() || connection.has_ended() => self.remove(id),
            ReadOutcome::Nothing => {}
        }
    }

    fn run_commands(&mut self) {
        while let Some(command) = self.commands.pop() {
            match command {
                Command::Send { connection, bytes, close } => self.send(connection.0, &bytes, close),
                Command::Refuse(connection, refusal) => {
                    self.counters.refused.increment();
                    self.send(connection.0, &acceptor().refuse(&refusal), true);
                }
                Command::StopAccepting => self.socket = None,
            }
        }
    }

    fn refuse(&mut self, id: u64, refusal: &Refusal) {
        let Some(connection) = self.connections.get(&id) else { return };
        tracing::info!(connection = id, "{refusal}");
        self.counters.refused.increment();
        connection.notify_hang_up(&self.threads);
        self.send(id, &acceptor().refuse(refusal), true);
    }

    fn send(&mut self, id: u64, bytes: &[u8], close: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.unsent.extend_from_slice(bytes);
        connection.close_when_sent |= close;
        let failed = connection.flush().is_err();
        let over = connection.has_ended();
        if over {
            // Shutting down only the write direction delivers the reply even if the client still sends.
            let _ = connection.socket.shutdown(Shutdown::Write);
        }
        if failed || over {
            self.drop_connection(id);
        }
    }

    /// Handles a client that is gone.
    fn remove(&mut self, id: u64) {
        if let Some(connection) = self.connections.get(&id).filter(|connection| !connection.close_when_sent) {
            connection.notify_hang_up(&self.threads);
        }
        self.drop_connection(id);
    }

    fn drop_connection(&mut self, id: u64) {
        if let Some(mut connection) = self.connections.remove(&id) {
            self.handshakes.end(id);
            connection.thread().into_iter().for_each(|thread| self.threads.release(thread));
            let _ = self.poll.registry().deregister(&mut connection.socket);
        }
    }

    fn expire(&mut self) {
        if self.handshakes.count() == 0 {
            return;
        }
        let now = Instant::now();
        let late =
            self.connections.iter().filter(|(_, connection)| connection.is_late(now)).map(|(id, _)| *id);
        let late: Vec<u64> = late.collect();
        for id in late {
            let waited_ms = self.config.handshake_timeout.as_millis();
            self.refuse(id, &RefusalKind::Timeout.because(format!("no whole hello within {waited_ms} ms")));
            self.drop_connection(id);
        }
    }
}
