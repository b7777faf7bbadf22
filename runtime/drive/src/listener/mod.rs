//! The bootstrap port: one thread that accepts TCP connections, reads hellos, and keeps every connection open, so that
//! its hang-up says that the client went.
//!
//! Nothing here blocks on a client: sockets are non-blocking, a handshake has a deadline, and those under way are
//! limited, together and for each address; the oldest silent one gives way to a newcomer. Hellos go to the queue of the
//! server thread that they ask for; answers come back by [`BootstrapSender`].

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

use farcall_link::bootstrap::{Acceptor, Hello, Notice, Refusal, VersionRange, Welcome};
use mio::Waker;

use crate::{Stop, WakeQueue};
use thread::ListenThread;

/// A client's bootstrap connection. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BootstrapId(u64);

/// What clients do, told to a server thread.
#[derive(Debug)]
pub enum BootstrapEvent {
    /// A client asks to be connected; answer with [`BootstrapSender::welcome`] or [`BootstrapSender::refuse`].
    Hello(BootstrapId, Box<Hello>),
    /// A client says something.
    Notice(BootstrapId, Notice),
    /// A client hung up: its process is gone, or it closed.
    HungUp(BootstrapId),
}

/// What the listening thread is told.
enum Command {
    /// Send these bytes to a client and, if so said, close its connection when they are sent.
    Say {
        connection: BootstrapId,
        bytes: Vec<u8>,
        close: bool,
    },
    Refuse(BootstrapId, Refusal),
    StopAccepting,
}

/// How server threads answer.
#[derive(Clone)]
pub struct BootstrapSender {
    commands: WakeQueue<Command>,
    waker: Arc<Waker>,
}

impl BootstrapSender {
    fn send(&self, command: Command) {
        self.commands.push(command);
        // A listener that cannot be woken is gone, and with it all connections.
        let _ = self.waker.wake();
    }

    fn say(&self, connection: BootstrapId, bytes: Vec<u8>, close: bool) {
        self.send(Command::Say { connection, bytes, close });
    }

    /// Lets a client in.
    pub fn welcome(&self, connection: BootstrapId, welcome: &Welcome) {
        self.say(connection, acceptor().welcome(welcome), false);
    }

    /// Refuses a client, or tells it why its connection ends, and closes the connection.
    pub fn refuse(&self, connection: BootstrapId, refusal: &Refusal) {
        self.send(Command::Refuse(connection, refusal.clone()));
    }

    /// Tells a client something.
    pub fn notice(&self, connection: BootstrapId, notice: Notice) {
        self.say(connection, acceptor().notice(notice), false);
    }

    /// Closes a connection.
    pub fn close(&self, connection: BootstrapId) {
        self.say(connection, Vec::new(), true);
    }
}

fn acceptor() -> Acceptor {
    Acceptor::new(VersionRange::CURRENT)
}

/// Judges the user of a client of this machine, before anything is kept for him; why he is not let in.
pub type JudgeUser = Box<dyn Fn(u32) -> Result<(), String> + Send>;

/// Limits of a listener.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// Handshakes under way at once.
    pub pending_max: usize,
    /// Of those, from one address.
    pub pending_per_address_max: usize,
    /// Lines open at once.
    pub connections_max: usize,
    /// How long a client may take to say hello.
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
    /// Listens; hands the hellos for thread `i` to `queues[i]`. `judge` decides about clients of this machine whose
    /// user the kernel tells; others are let in.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn start(
        address: SocketAddr,
        queues: Vec<WakeQueue<BootstrapEvent>>,
        config: ListenConfig,
        judge: JudgeUser,
    ) -> io::Result<Self> {
        let (commands, stop) = (WakeQueue::new()?, Stop::new()?);
        let (thread, address, waker) =
            ListenThread::bind(address, commands.clone(), stop.clone(), queues, config, judge)?;
        let sender = BootstrapSender { commands, waker: Arc::new(waker) };
        let thread = std::thread::Builder::new().name("bootstrap".into()).spawn(move || thread.run())?;
        Ok(Self { address, sender, stop, thread: Some(thread) })
    }

    /// Where it listens: with the port that the system chose, if none was given.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// How to answer.
    pub fn sender(&self) -> BootstrapSender {
        self.sender.clone()
    }

    /// Takes no new connections; those that are open stay.
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
    fn a_user_who_is_not_let_in_is_refused_before_his_hello() {
        let judge: JudgeUser = Box::new(|user| Err(format!("user {user} is a stranger")));
        let queues = vec![WakeQueue::new().unwrap()];
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::start(address, queues, ListenConfig::default(), judge).unwrap();
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
    fn notices_without_end_close_the_connection() {
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
        let notices = client.notice(Notice::Goodbye).repeat(100);
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
    fn handshakes_under_way_are_limited_and_the_oldest_silent_one_gives_way() {
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
