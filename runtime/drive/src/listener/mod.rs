//! The bootstrap port: one thread that accepts TCP connections, reads hellos, and keeps every connection open, so that
//! a hang-up indicates that the client is gone.
//!
//! Nothing blocks on a client: sockets are non-blocking and handshakes have a deadline. The number of handshakes in
//! progress is limited, in total and per address; the oldest one without a complete hello is evicted for a new
//! connection. A hello goes to the queue of the requested server thread; server threads reply by [`BootstrapSender`].

mod connection;
mod counters;
mod handshakes;
mod peer_user;
mod placement;
mod thread;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_link::bootstrap::{Acceptor, Hello, PostHandshakeMessage, Refusal, VersionRange, Welcome};
use mio::Waker;

use crate::{Stop, WakeQueue};
use thread::ListenThread;

/// Identifies the bootstrap connection of a client. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BootstrapId(u64);

/// An event of a client, sent to a server thread.
#[derive(Debug)]
pub enum BootstrapEvent {
    /// A client requests a connection. Reply with [`BootstrapSender::welcome`] or [`BootstrapSender::refuse`].
    Hello(BootstrapId, Box<Hello>),
    /// A client sent a message after its handshake.
    PostHandshake(BootstrapId, PostHandshakeMessage),
    /// A client hung up: its process exited, or it closed the connection.
    HungUp(BootstrapId),
}

/// A command to the listening thread.
enum Command {
    /// Sends `bytes` to a client and then closes its connection if `close` is set.
    Send {
        connection: BootstrapId,
        bytes: Vec<u8>,
        close: bool,
    },
    Refuse(BootstrapId, Refusal),
    StopAccepting,
}

/// Sends replies of server threads to clients.
#[derive(Clone)]
pub struct BootstrapSender {
    commands: WakeQueue<Command>,
    waker: Arc<Waker>,
}

impl BootstrapSender {
    fn send(&self, command: Command) {
        self.commands.push(command);
        // If waking fails, the listener has ended and all connections with it.
        let _ = self.waker.wake();
    }

    fn send_bytes(&self, connection: BootstrapId, bytes: Vec<u8>, close: bool) {
        self.send(Command::Send { connection, bytes, close });
    }

    /// Accepts a client.
    pub fn welcome(&self, connection: BootstrapId, welcome: &Welcome) {
        self.send_bytes(connection, acceptor().welcome(welcome), false);
    }

    /// Refuses a client, or sends it the reason why its connection ends, and closes the connection.
    pub fn refuse(&self, connection: BootstrapId, refusal: &Refusal) {
        self.send(Command::Refuse(connection, refusal.clone()));
    }

    /// Sends a message to a client after its handshake.
    pub fn notice(&self, connection: BootstrapId, notice: PostHandshakeMessage) {
        self.send_bytes(connection, acceptor().notice(notice), false);
    }

    /// Closes a connection.
    pub fn close(&self, connection: BootstrapId) {
        self.send_bytes(connection, Vec::new(), true);
    }
}

fn acceptor() -> Acceptor {
    Acceptor::new(VersionRange::CURRENT)
}

/// Decides by user ID whether a client of this machine is admitted, before any state is stored for it; the error is
/// the reason for a refusal.
pub type AuthorizeUser = Box<dyn Fn(u32) -> Result<(), String> + Send>;

/// Limits of a listener.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// Maximum number of handshakes in progress.
    pub pending_max: usize,
    /// Maximum number of handshakes in progress from one address.
    pub pending_per_address_max: usize,
    /// Maximum number of open connections.
    pub connections_max: usize,
    /// Time within which a client must send its complete hello.
    pub handshake_timeout: Duration,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self {
            pending_max: 256,
            pending_per_address_max: 128,
            connections_max: 16_384,
            handshake_timeout: Duration::from_secs(2),
        }
    }
}

/// The listening thread. Dropping it closes all connections.
pub struct Listener {
    address: SocketAddr,
    sender: BootstrapSender,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Starts the listener. Hellos for thread `i` go to `queues[i]`. `authorize` decides about clients of this machine
    /// whose user the kernel reports; other clients are admitted.
    ///
    /// # Errors
    /// If the address cannot be bound, or a thread or descriptor cannot be created.
    pub fn start(
        address: SocketAddr,
        queues: Vec<WakeQueue<BootstrapEvent>>,
        config: ListenConfig,
        authorize: AuthorizeUser,
    ) -> io::Result<Self> {
        let (commands, stop) = (WakeQueue::new()?, Stop::new()?);
        let (thread, address, waker) =
            ListenThread::bind(address, commands.clone(), stop.clone(), queues, config, authorize)?;
        let sender = BootstrapSender { commands, waker: Arc::new(waker) };
        let thread = std::thread::Builder::new().name("bootstrap".into()).spawn(move || thread.run())?;
        Ok(Self { address, sender, stop, thread: Some(thread) })
    }

    /// Returns the address of the listener, with the port that the system chose if none was given.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a sender for replies.
    pub fn sender(&self) -> BootstrapSender {
        self.sender.clone()
    }

    /// Accepts no further connections; open connections stay open.
    pub fn stop_accepting(&self) {
        self.sender.send(Command::StopAccepting);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.request();
        let _ = self.sender.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_link::Plan;
    use farcall_link::bootstrap::{BootstrapError, Features, Grants, Initiator, QpInfo, RefusalKind};
    use std::io::{Read, Write};
    use std::net::TcpStream as StdStream;

    fn start(config: ListenConfig) -> Listener {
        let queues = vec![WakeQueue::new().unwrap()];
        Listener::start("127.0.0.1:0".parse().unwrap(), queues, config, Box::new(|_| Ok(()))).unwrap()
    }

    #[test]
    fn rejects_an_unauthorized_user_before_its_hello() {
        let authorize: AuthorizeUser = Box::new(|user| Err(format!("user {user} is a stranger")));
        let queues = vec![WakeQueue::new().unwrap()];
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::start(address, queues, ListenConfig::default(), authorize).unwrap();
        assert_eq!(answer(StdStream::connect(listener.address()).unwrap()), RefusalKind::NotAdmitted);
    }

    fn answer(mut socket: StdStream) -> RefusalKind {
        let mut bytes = Vec::new();
        let _ = socket.read_to_end(&mut bytes);
        match Initiator::new(VersionRange::CURRENT).feed_welcome(&bytes) {
            Err(BootstrapError::Refused(refusal)) => refusal.kind,
            other => panic!("{other:?} from {bytes:?}"),
        }
    }

    #[test]
    fn garbage_is_refused_in_words() {
        let listener = start(ListenConfig::default());
        let mut socket = StdStream::connect(listener.address()).unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(answer(socket), RefusalKind::NotThisProtocol);
    }

    #[test]
    fn closes_a_connection_that_sends_too_many_messages() {
        let listener = start(ListenConfig::default());
        let hello = Hello {
            provider: "nobody".into(),
            qp: QpInfo { qp_num: 1, psn: 1, gid: [0; 16], lid: 0, mtu_log2: 12 },
            grants: Grants::default(),
            plan: Plan::default(),
            features: Features::KICK,
            thread: 0,
            resume: None,
            datagrams: None,
        };
        let client = Initiator::new(VersionRange::CURRENT);
        let notices = client.notice(PostHandshakeMessage::CloseNotify).repeat(100);
        let mut socket = StdStream::connect(listener.address()).unwrap();
        socket.write_all(&[client.hello(&hello), notices].concat()).unwrap();
        assert_eq!(answer(socket), RefusalKind::OutOfTurn);
    }

    #[test]
    fn silence_is_refused_after_a_while() {
        let listener =
            start(ListenConfig { handshake_timeout: Duration::from_millis(1), ..ListenConfig::default() });
        assert_eq!(answer(StdStream::connect(listener.address()).unwrap()), RefusalKind::Timeout);
    }

    #[test]
    fn limits_pending_handshakes_and_evicts_the_oldest_silent_one() {
        let listener = start(ListenConfig { pending_max: 2, ..ListenConfig::default() });
        let connect = || StdStream::connect(listener.address()).unwrap();
        let [oldest, older, newcomer] = [connect(), connect(), connect()];
        assert_eq!(answer(oldest), RefusalKind::TooManyConnections);
        let garbage_is_answered = |mut socket: StdStream| {
            socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            assert_eq!(answer(socket), RefusalKind::NotThisProtocol);
        };
        garbage_is_answered(newcomer);
        garbage_is_answered(older);

        let nobody = start(ListenConfig { pending_max: 0, ..ListenConfig::default() });
        assert_eq!(answer(StdStream::connect(nobody.address()).unwrap()), RefusalKind::TooManyConnections);
    }
}
