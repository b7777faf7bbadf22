//! The bootstrap door: one thread that accepts TCP connections, reads hellos, and keeps every connection as a lifeline.
//!
//! Nothing here blocks on a client: sockets are non-blocking, a handshake has a deadline, and those under way are limited.
//! Hellos go to the inbox of the server thread that they ask for; answers come back by [`LineSender`].

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farcall_link::bootstrap::{Acceptor, Hello, Notice, Refusal, RefusalKind, VersionRange, Welcome};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::{Inbox, Stop};

/// A client's bootstrap connection. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LineId(u64);

/// What clients do, told to a server thread.
#[derive(Debug)]
pub enum LineEvent {
    /// A client asks to be connected; answer with [`LineSender::welcome`] or [`LineSender::refuse`].
    Hello(LineId, Box<Hello>),
    /// A client says something.
    Notice(LineId, Notice),
    /// A client hung up: its process is gone, or it closed.
    HungUp(LineId),
}

enum Command {
    Welcome(LineId, Box<Welcome>),
    Refuse(LineId, Refusal),
    Notice(LineId, Notice),
    Close(LineId),
    StopAccepting,
}

/// How server threads answer.
#[derive(Clone)]
pub struct LineSender {
    commands: Inbox<Command>,
    waker: Arc<Waker>,
}

impl LineSender {
    fn send(&self, command: Command) {
        self.commands.push(command);
        // A listener that cannot be woken is gone, and with it all lines.
        let _ = self.waker.wake();
    }

    /// Lets a client in.
    pub fn welcome(&self, line: LineId, welcome: Welcome) {
        self.send(Command::Welcome(line, Box::new(welcome)));
    }

    /// Refuses a client, or tells it why its connection ends, and closes the line.
    pub fn refuse(&self, line: LineId, refusal: Refusal) {
        self.send(Command::Refuse(line, refusal));
    }

    /// Tells a client something.
    pub fn notice(&self, line: LineId, notice: Notice) {
        self.send(Command::Notice(line, notice));
    }

    /// Closes a line.
    pub fn close(&self, line: LineId) {
        self.send(Command::Close(line));
    }
}

/// Limits of a listener.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// Handshakes under way at once.
    pub pending_max: usize,
    /// Lines open at once.
    pub lines_max: usize,
    /// How long a client may take to say hello.
    pub handshake_timeout: Duration,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { pending_max: 256, lines_max: 16_384, handshake_timeout: Duration::from_secs(2) }
    }
}

/// The listening thread. Dropping it closes all lines.
pub struct Listener {
    address: SocketAddr,
    sender: LineSender,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens; hands the hellos for thread `i` to `inboxes[i]`.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn start(
        address: SocketAddr,
        inboxes: Vec<Inbox<LineEvent>>,
        config: ListenConfig,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let mut socket = TcpListener::bind(address)?;
        let address = socket.local_addr()?;
        poll.registry().register(&mut socket, ACCEPT, Interest::READABLE)?;
        let commands = Inbox::new()?;
        let sender = LineSender { commands: commands.clone(), waker };
        let stop = Stop::new()?;
        let door = Door {
            poll,
            socket: Some(socket),
            commands,
            stop: stop.clone(),
            inboxes,
            config,
            lines: HashMap::new(),
            greeting: 0,
            next_line: FIRST_LINE,
        };
        let thread = std::thread::Builder::new().name("bootstrap".into()).spawn(move || door.run())?;
        Ok(Self { address, sender, stop, thread: Some(thread) })
    }

    /// Where it listens: with the port that the system chose, if none was given.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// How to answer.
    pub fn sender(&self) -> LineSender {
        self.sender.clone()
    }

    /// Takes no new connections; lines stay.
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

const WAKE: Token = Token(0);
const ACCEPT: Token = Token(1);
const FIRST_LINE: u64 = 2;

/// One line.
struct Line {
    socket: TcpStream,
    machine: Acceptor,
    /// Until when the hello must be whole; `None` once it is.
    hello_until: Option<Instant>,
    thread: usize,
    unsent: Vec<u8>,
    close_when_sent: bool,
}

/// What reading from a line came to.
enum Heard {
    Nothing,
    HungUp,
    Refused(Refusal),
}

struct Door {
    poll: Poll,
    socket: Option<TcpListener>,
    commands: Inbox<Command>,
    stop: Stop,
    inboxes: Vec<Inbox<LineEvent>>,
    config: ListenConfig,
    lines: HashMap<u64, Line>,
    /// Lines that have not said hello.
    greeting: usize,
    next_line: u64,
}

impl Door {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while !self.stop.is_requested() {
            let timeout = (self.greeting > 0).then_some(Duration::from_millis(50));
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Without its poll the door is shut; running connections go on without it.
                Err(_) => return,
            }
            for event in &events {
                match event.token() {
                    WAKE => {}
                    ACCEPT => self.accept_all(),
                    Token(line) => self.ready(line as u64),
                }
            }
            while let Some(command) = self.commands.pop() {
                self.obey(command);
            }
            self.expire();
        }
    }

    fn accept_all(&mut self) {
        loop {
            let Some(Ok((socket, _))) = self.socket.as_ref().map(TcpListener::accept) else { return };
            self.admit(socket);
        }
    }

    fn admit(&mut self, mut socket: TcpStream) {
        let machine = Acceptor::new(VersionRange::CURRENT);
        if self.greeting >= self.config.pending_max || self.lines.len() >= self.config.lines_max {
            let refusal = RefusalKind::TooManyConnections.because(format!(
                "{} lines, {} of them in their handshake",
                self.lines.len(),
                self.greeting
            ));
            let _ = socket.write(&machine.refuse(&refusal));
            return;
        }
        let line = self.next_line;
        self.next_line += 1;
        let _ = socket.set_nodelay(true);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut socket, Token(line as usize), interest).is_err() {
            return;
        }
        let hello_until = Some(Instant::now() + self.config.handshake_timeout);
        self.greeting += 1;
        let line_state =
            Line { socket, machine, hello_until, thread: 0, unsent: Vec::new(), close_when_sent: false };
        self.lines.insert(line, line_state);
        self.ready(line);
    }

    /// A line is readable or writable.
    fn ready(&mut self, id: u64) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        let flushed = line.flush();
        let heard = if line.close_when_sent {
            Heard::Nothing
        } else {
            line.read(LineId(id), &self.inboxes, &mut self.greeting)
        };
        match heard {
            Heard::Refused(refusal) => self.refuse(id, &refusal),
            Heard::HungUp => self.remove(id),
            Heard::Nothing if flushed.is_err() || line.is_over() => self.remove(id),
            Heard::Nothing => {}
        }
    }

    fn obey(&mut self, command: Command) {
        let (LineId(id), bytes, close) = match &command {
            Command::Welcome(line, welcome) => {
                (*line, self.lines.get(&line.0).map(|l| l.machine.welcome(welcome)), false)
            }
            Command::Refuse(line, refusal) => {
                (*line, self.lines.get(&line.0).map(|l| l.machine.refuse(refusal)), true)
            }
            Command::Notice(line, notice) => {
                (*line, self.lines.get(&line.0).map(|l| l.machine.notice(*notice)), false)
            }
            Command::Close(line) => (*line, Some(Vec::new()), true),
            Command::StopAccepting => {
                self.socket = None;
                return;
            }
        };
        if let Some(bytes) = bytes {
            self.send(id, &bytes, close);
        }
    }

    fn refuse(&mut self, id: u64, refusal: &Refusal) {
        let Some(line) = self.lines.get(&id) else { return };
        if line.hello_until.is_none() {
            // The server thread knows this line: for it, the client is gone.
            self.inboxes[line.thread].push(LineEvent::HungUp(LineId(id)));
        }
        let bytes = line.machine.refuse(refusal);
        self.send(id, &bytes, true);
    }

    fn send(&mut self, id: u64, bytes: &[u8], close: bool) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        line.unsent.extend_from_slice(bytes);
        line.close_when_sent |= close;
        let failed = line.flush().is_err();
        let over = line.is_over();
        if over {
            // What we said arrives even if the client is still talking.
            let _ = line.socket.shutdown(Shutdown::Write);
        }
        if failed || over {
            self.drop_line(id);
        }
    }

    /// The client is gone.
    fn remove(&mut self, id: u64) {
        if let Some(line) = self.lines.get(&id)
            && line.hello_until.is_none()
            && !line.close_when_sent
        {
            self.inboxes[line.thread].push(LineEvent::HungUp(LineId(id)));
        }
        self.drop_line(id);
    }

    fn drop_line(&mut self, id: u64) {
        if let Some(mut line) = self.lines.remove(&id) {
            self.greeting -= usize::from(line.hello_until.is_some());
            let _ = self.poll.registry().deregister(&mut line.socket);
        }
    }

    fn expire(&mut self) {
        if self.greeting == 0 {
            return;
        }
        let now = Instant::now();
        let late = |line: &Line| line.hello_until.is_some_and(|until| until <= now);
        let late: Vec<u64> = self.lines.iter().filter(|(_, line)| late(line)).map(|(id, _)| *id).collect();
        for id in late {
            let waited_ms = self.config.handshake_timeout.as_millis();
            self.refuse(id, &RefusalKind::Timeout.because(format!("no whole hello within {waited_ms} ms")));
            self.drop_line(id);
        }
    }
}

impl Line {
    fn is_over(&self) -> bool {
        self.close_when_sent && self.unsent.is_empty()
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what there is.
    fn read(&mut self, id: LineId, inboxes: &[Inbox<LineEvent>], greeting: &mut usize) -> Heard {
        let mut buffer = [0u8; 4_096];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return Heard::HungUp,
                Ok(got) => {
                    if let Err(refusal) = self.hear(&buffer[..got], id, inboxes, greeting) {
                        return Heard::Refused(refusal);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Nothing,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Heard::HungUp,
            }
        }
    }

    fn hear(
        &mut self,
        mut bytes: &[u8],
        id: LineId,
        inboxes: &[Inbox<LineEvent>],
        greeting: &mut usize,
    ) -> Result<(), Refusal> {
        while !bytes.is_empty() {
            let taken = if self.hello_until.is_some() {
                let (taken, hello) = self.machine.feed_hello(bytes)?;
                if let Some(hello) = hello {
                    self.thread = usize::from(hello.thread);
                    let Some(inbox) = inboxes.get(self.thread) else {
                        let why = format!("thread {} of {}", hello.thread, inboxes.len());
                        return Err(RefusalKind::NoSuchThread.because(why));
                    };
                    self.hello_until = None;
                    *greeting -= 1;
                    inbox.push(LineEvent::Hello(id, Box::new(hello)));
                }
                taken
            } else {
                let (taken, notice) = self.machine.feed_notice(bytes)?;
                if let Some(notice) = notice {
                    inboxes[self.thread].push(LineEvent::Notice(id, notice));
                }
                taken
            };
            bytes = &bytes[taken..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_link::bootstrap::{BootstrapError, Initiator};
    use std::net::TcpStream as StdStream;

    fn start(config: ListenConfig) -> Listener {
        let inboxes = vec![Inbox::new().unwrap()];
        Listener::start("127.0.0.1:0".parse().unwrap(), inboxes, config).unwrap()
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
    fn silence_is_refused_after_a_while() {
        let listener =
            start(ListenConfig { handshake_timeout: Duration::from_millis(1), ..ListenConfig::default() });
        assert_eq!(answer(StdStream::connect(listener.address()).unwrap()), RefusalKind::Timeout);
    }

    #[test]
    fn handshakes_under_way_are_limited() {
        let listener = start(ListenConfig { pending_max: 0, ..ListenConfig::default() });
        assert_eq!(answer(StdStream::connect(listener.address()).unwrap()), RefusalKind::TooManyConnections);
    }
}
