//! An RPC server and its clients as programs of a simulated node: the ordinary endpoints, with the handshake over
//! pipes.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use farcall_link::bootstrap::{Acceptor, Initiator, PostHandshakeMessage, VersionRange};
use farcall_link::{Backoff, Entropy, Nic};
use farcall_rpc::{
    AnyCaller, Broken, CallerConfig, Completion, ConnectionId, Handler, Responder, ResponderConfig,
    ResponderEvent, any_caller,
};
use farcall_sim::{Host, HostClock, Listener, NodeId, Pipe};
use farcall_verbs::{Endpoint, Nanos, Progress, Result, WaitSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub const PORT: u16 = 4_711;

/// Returns the node's device, with secrets derived from a seed.
pub fn nic(host: &Host, seed: u64) -> Nic {
    Nic::open(host).unwrap().with_entropy(Entropy::seeded(seed))
}

/// The pipe of one client.
struct Line {
    pipe: Pipe,
    acceptor: Acceptor,
    connection: Option<ConnectionId>,
}

/// A server thread.
pub struct ServerProgram<H> {
    pub responder: Responder<H, HostClock>,
    listener: Listener,
    lines: Vec<Line>,
}

/// Result of reading a pipe.
#[derive(PartialEq)]
enum Hear {
    Nothing,
    Something,
    End,
}

impl<H: Handler> ServerProgram<H> {
    pub fn new(host: &Host, nic: Nic, config: ResponderConfig, incarnation: u64, handler: H) -> Self {
        let responder = Responder::new(nic, config, incarnation, handler, host.clock()).unwrap();
        let listener = host.listen(PORT).expect("one server a node");
        Self { responder, listener, lines: Vec::new() }
    }

    /// Returns whether a descriptor of the system on which it sleeps is ready, as opposed to one of its world.
    pub fn is_woken_by_its_process(&self) -> bool {
        let mut set = WaitSet::default();
        self.responder.wait_set(&mut set);
        let is_ready = |fd: &RawFd| {
            // SAFETY: the descriptor is only polled. The responder keeps its own open, and numbers of the world are
            // none of the system.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
                && fds[0].revents() == PollFlags::IN
        };
        set.fds().iter().any(is_ready)
    }

    /// Returns a human-readable description of the state.
    pub fn describe(&self) -> String {
        let responder = &self.responder;
        format!(
            "server: {} lines, {} connections, {} parked, {:?}",
            self.lines.len(),
            responder.connections(),
            responder.detached_sessions(),
            responder.counters()
        )
    }

    fn accept(&mut self) {
        while let Some(pipe) = self.listener.accept() {
            let acceptor = Acceptor::new(VersionRange::CURRENT);
            self.lines.push(Line { pipe, acceptor, connection: None });
        }
    }

    fn hear(&mut self, at: usize, now: Nanos) -> Hear {
        let mut bytes = [0; 512];
        let line = &mut self.lines[at];
        let got = match line.pipe.read(&mut bytes) {
            Ok(0) => return Hear::End,
            Ok(got) => got,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Hear::Nothing,
            Err(_) => return Hear::End,
        };
        let mut rest = &bytes[..got];
        while !rest.is_empty() {
            let taken = match line.connection {
                None => line.acceptor.feed_hello(rest).map(|(taken, hello)| {
                    if let Some(hello) = hello {
                        let answer = match self.responder.accept(&hello, now) {
                            Ok((id, welcome)) => {
                                line.connection = Some(id);
                                line.acceptor.welcome(&welcome)
                            }
                            Err(refusal) => line.acceptor.refuse(&refusal),
                        };
                        let _ = line.pipe.write(&answer);
                    }
                    taken
                }),
                Some(_) => line.acceptor.feed_post_handshake(rest).map(|(taken, _)| taken),
            };
            match taken {
                Ok(taken) => rest = &rest[taken..],
                Err(refusal) => {
                    let _ = line.pipe.write(&line.acceptor.refuse(&refusal));
                    return Hear::End;
                }
            }
        }
        Hear::Something
    }

    fn hear_all(&mut self, now: Nanos) -> bool {
        let mut any = false;
        let mut at = 0;
        while at < self.lines.len() {
            match self.hear(at, now) {
                Hear::Nothing => at += 1,
                Hear::Something => any = true,
                Hear::End => {
                    any = true;
                    if let Some(id) = self.lines.remove(at).connection {
                        self.responder.hang_up(id, true, now);
                    }
                }
            }
        }
        any
    }

    fn forward_events(&mut self) {
        while let Some(ResponderEvent::Closed { connection, refusal, .. }) = self.responder.poll_event() {
            let Some(at) = self.lines.iter().position(|line| line.connection == Some(connection)) else {
                continue;
            };
            let mut line = self.lines.remove(at);
            if let Some(refusal) = refusal {
                let _ = line.pipe.write(&line.acceptor.refuse(&refusal));
            }
        }
    }
}

impl<H: Handler + 'static> Endpoint for ServerProgram<H> {
    fn progress(&mut self, now: Nanos) -> Progress {
        self.accept();
        let heard = self.hear_all(now);
        let next = self.responder.progress(now);
        self.forward_events();
        if heard { Progress::Again } else { next }
    }

    fn arm(&mut self) -> Result<()> {
        self.responder.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.listener.fd());
        self.lines.iter().for_each(|line| set.insert(line.pipe.fd()));
        self.responder.wait_set(set);
    }
}

/// The calls that a client makes over its connection.
pub trait Workload: 'static {
    /// Begins the calls that can begin now; returns the time of the next attempt, if not before.
    fn begin(&mut self, caller: &mut dyn AnyCaller, now: Nanos) -> Option<Nanos>;

    /// Handles a completed call.
    fn ended(&mut self, completion: Completion<'_>, now: Nanos);

    /// Returns whether all work is done.
    fn is_done(&self) -> bool;
}

enum Stage {
    /// Wait before the next attempt.
    Pause {
        until: Nanos,
    },
    Handshake {
        pipe: Pipe,
        machine: Initiator,
        until: Nanos,
    },
    Open {
        pipe: Pipe,
        machine: Initiator,
    },
}

/// A client: one connection, which is re-established whenever it breaks.
pub struct ClientProgram<W> {
    host: Host,
    server: NodeId,
    pub caller: Box<dyn AnyCaller>,
    pub workload: W,
    stage: Stage,
    backoff: Backoff,
    pub handshakes: u32,
}

const HANDSHAKE_PATIENCE: Duration = Duration::from_millis(20);

impl<W: Workload> ClientProgram<W> {
    pub fn new(host: &Host, server: NodeId, config: CallerConfig, seed: u64, workload: W) -> Self {
        let backoff = Backoff::new(Duration::from_micros(200), Duration::from_millis(10), seed);
        let nic = nic(host, seed);
        let caller = any_caller(nic, config).unwrap();
        Self {
            host: host.clone(),
            server,
            caller,
            workload,
            stage: Stage::Pause { until: Nanos(0) },
            backoff,
            handshakes: 0,
        }
    }

    /// Returns a human-readable description of the state.
    pub fn describe(&self) -> String {
        let stage = match &self.stage {
            Stage::Pause { until } => format!("pauses until {until}"),
            Stage::Handshake { until, .. } => format!("shakes hands until {until}"),
            Stage::Open { .. } => "open".into(),
        };
        let caller = &self.caller;
        format!(
            "client: {stage}, {} pending, broken {:?}, {:?}",
            caller.pending(),
            caller.broken(),
            caller.counters()
        )
    }

    fn pause(&mut self, now: Nanos) {
        self.stage = Stage::Pause { until: now + self.backoff.next_delay() };
    }

    /// Breaks the connection at this end, as if the kernel had reported an error; the server detects it later.
    pub fn hang_up(&mut self) {
        if let Stage::Open { .. } = self.stage {
            self.caller.disconnect(Broken::HungUp);
            self.stage = Stage::Pause { until: Nanos(0) };
        }
    }

    fn dial(&mut self, now: Nanos) {
        let Ok(hello) = self.caller.hello() else {
            self.pause(now);
            return;
        };
        let mut pipe = self.host.dial(self.server, PORT);
        let machine = Initiator::new(VersionRange::CURRENT);
        let _ = pipe.write(&machine.hello(&hello));
        self.stage = Stage::Handshake { pipe, machine, until: now + HANDSHAKE_PATIENCE };
    }

    /// Reads the pipe; returns whether the connection was established, continues, or ended.
    fn hear(&mut self, now: Nanos) -> Hear {
        // One byte at a time during the handshake: bytes after the welcome belong to the established connection.
        let mut bytes = [0; 256];
        let (pipe, machine, take) = match &mut self.stage {
            Stage::Pause { .. } => return Hear::Nothing,
            Stage::Handshake { pipe, machine, .. } => (pipe, machine, 1),
            Stage::Open { pipe, machine } => (pipe, machine, bytes.len()),
        };
        let got = match pipe.read(&mut bytes[..take]) {
            Ok(0) => return Hear::End,
            Ok(got) => got,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Hear::Nothing,
            Err(_) => return Hear::End,
        };
        if take == 1 {
            match machine.feed_welcome(&bytes[..1]) {
                Ok((_, None)) => return Hear::Something,
                Ok((_, Some(welcome))) => {
                    if self.caller.welcome(welcome, now).is_err() {
                        return Hear::End;
                    }
                }
                Err(_) => return Hear::End,
            }
            self.handshakes += 1;
            self.backoff.reset();
            let stage = std::mem::replace(&mut self.stage, Stage::Pause { until: now });
            if let Stage::Handshake { pipe, machine, .. } = stage {
                self.stage = Stage::Open { pipe, machine };
            }
            return Hear::Something;
        }
        let mut rest = &bytes[..got];
        while !rest.is_empty() {
            match machine.feed_post_handshake(rest) {
                Ok((taken, notice)) => {
                    rest = &rest[taken..];
                    if notice == Some(PostHandshakeMessage::GoingAway) {
                        self.caller.set_draining();
                    }
                }
                Err(_) => return Hear::End,
            }
        }
        Hear::Something
    }

    fn connection(&mut self, now: Nanos) -> (bool, Option<Nanos>) {
        let due = match &self.stage {
            Stage::Pause { until } => Some(*until),
            Stage::Handshake { until, .. } => Some(*until),
            Stage::Open { .. } => None,
        };
        match &self.stage {
            Stage::Pause { until } if *until <= now => {
                self.dial(now);
                return (true, None);
            }
            Stage::Handshake { until, .. } if *until <= now => {
                self.pause(now);
                return (true, None);
            }
            Stage::Open { .. } if !self.caller.is_open() => {
                self.pause(now);
                return (true, None);
            }
            _ => {}
        }
        match self.hear(now) {
            Hear::Nothing => (false, due),
            Hear::Something => (true, due),
            Hear::End => {
                self.caller.disconnect(Broken::HungUp);
                self.pause(now);
                (true, None)
            }
        }
    }
}

impl<W: Workload> Endpoint for ClientProgram<W> {
    fn progress(&mut self, now: Nanos) -> Progress {
        let (moved, due) = self.connection(now);
        let wish = self.workload.begin(&mut *self.caller, now);
        let next = self.caller.progress(now);
        let mut any = moved;
        while let Some(completion) = self.caller.next_completion() {
            self.workload.ended(completion, now);
            any = true;
        }
        if any {
            return Progress::Again;
        }
        next.merge(Progress::Idle { until: Nanos::earlier(due, wish) })
    }

    fn arm(&mut self) -> Result<()> {
        self.caller.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        match &self.stage {
            Stage::Pause { .. } => {}
            Stage::Handshake { pipe, .. } | Stage::Open { pipe, .. } => set.insert(pipe.fd()),
        }
        self.caller.wait_set(set);
    }
}
