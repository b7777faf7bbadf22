//! A stream together with the channel that its handshake goes over. The channel stays open as long as the stream: its
//! end says that the peer is gone, and before that it carries how long a stream was that ended well. Or it is what
//! carries the stream: see [`tcp_path`].

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use farcall_link::Nic;
use farcall_link::bootstrap::{
    Acceptor, BootstrapError, Initiator, Notice, Refusal, RefusalKind, StreamAnswer, StreamEnd, VersionRange,
};
use farcall_verbs::{Endpoint, Nanos, Next, Probe, Result, WaitSet};

use crate::config::StreamConfig;
use crate::error::OpenError;
use crate::ring_stream::Opening;
use crate::shown::Shown;
use crate::stream::{Stream, StreamPath};
use crate::tcp_path;
use crate::tcp_stream::TcpEnd;

/// Ordered bytes between two ends that never block: a TCP connection, or what takes its place in a simulation.
pub trait Carrier {
    /// Reads what has come; 0 at the end.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has come; anything else ends the channel.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Sends some of these bytes; returns how many.
    ///
    /// # Errors
    /// `WouldBlock` if none can be sent now; anything else ends the channel.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Readable when something has come or the channel has ended.
    fn fd(&self) -> RawFd;

    /// The TCP connection that it is, if it is one.
    fn tcp(&self) -> Option<&TcpStream> {
        None
    }

    /// That connection itself.
    fn into_tcp(self) -> Option<TcpStream>
    where
        Self: Sized,
    {
        None
    }
}

/// A stream that opens, is open or has failed, with its channel.
pub struct Carried<C: Carrier> {
    /// `None` once it has ended.
    carrier: Option<C>,
    unsent: Vec<u8>,
    phase: Phase,
    /// Once it is open, if a TCP connection opened it.
    shown: Option<Shown>,
    next_look: Nanos,
    is_armed: bool,
}

enum Phase {
    Asking {
        nic: Box<Nic>,
        config: Box<StreamConfig>,
        opening: Box<Opening>,
        machine: Initiator,
    },
    Asked {
        nic: Box<Nic>,
        config: Box<StreamConfig>,
        machine: Acceptor,
    },
    Open {
        stream: Box<Stream>,
        talk: Talk,
        has_said_end: bool,
    },
    /// The channel is the stream's now.
    OverTcp(Box<Stream>),
    /// With the reason, until it is taken.
    Failed(Option<OpenError>),
}

/// The side of the handshake that this end was.
enum Talk {
    Client(Initiator),
    Server(Acceptor),
}

/// What this end is called in the process's statistics.
const CONNECTED: &str = "connected";
const ACCEPTED: &str = "accepted";
/// While nothing moves the channel is looked at so often: a look is a system call.
const LOOK_PERIOD: Duration = Duration::from_millis(1);
/// Reads of a channel before it is closed: after the handshake a peer has one notice to send.
const UNREAD_MAX: usize = 8;

impl<C: Carrier> Carried<C> {
    /// Asks the peer at the other end of the channel for a stream.
    ///
    /// # Errors
    /// If the device has no room for it.
    pub fn open(nic: &Nic, config: StreamConfig, carrier: C) -> std::result::Result<Self, OpenError> {
        let opening = Box::new(Opening::new(nic, config)?);
        let machine = Initiator::new(VersionRange::CURRENT);
        let unsent = machine.open_stream(&opening.end());
        let (nic, config) = (Box::new(nic.clone()), Box::new(config));
        Ok(Self::new(carrier, unsent, Phase::Asking { nic, config, opening, machine }))
    }

    /// Waits for the peer to ask for a stream. Nothing is made before.
    pub fn accept(nic: &Nic, config: StreamConfig, carrier: C) -> Self {
        let machine = Acceptor::new(VersionRange::CURRENT);
        Self::new(
            carrier,
            Vec::new(),
            Phase::Asked { nic: Box::new(nic.clone()), config: Box::new(config), machine },
        )
    }

    fn new(carrier: C, unsent: Vec<u8>, phase: Phase) -> Self {
        Self { carrier: Some(carrier), unsent, phase, shown: None, next_look: Nanos(0), is_armed: false }
    }

    /// The stream, once it is open.
    #[inline]
    pub fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            Phase::Open { stream, .. } | Phase::OverTcp(stream) => Some(stream),
            _ => None,
        }
    }

    /// What carries the bytes, once it is open.
    pub const fn path(&self) -> StreamPath {
        match &self.phase {
            Phase::OverTcp(stream) => stream.path(),
            _ => StreamPath::Verbs,
        }
    }

    /// Whether there is a stream, or will never be one.
    pub fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Open { .. } | Phase::OverTcp(_) | Phase::Failed(_))
    }

    /// Why there will be no stream; told once.
    pub fn take_failure(&mut self) -> Option<OpenError> {
        match &mut self.phase {
            Phase::Failed(why) => why.take(),
            _ => None,
        }
    }

    /// Whether this end has ended its stream and the peer was told that everything arrived, or nobody can be told any
    /// more: the channel may be closed.
    pub fn is_over(&mut self) -> bool {
        match &mut self.phase {
            Phase::OverTcp(stream) => stream.ended().is_some() || stream.broken().is_some(),
            Phase::Open { stream, has_said_end, .. } => {
                let is_told = *has_said_end && self.unsent.is_empty();
                is_told || stream.broken().is_some() || self.carrier.is_none()
            }
            Phase::Failed(_) => true,
            _ => false,
        }
    }

    /// Lets others see how the stream stands.
    fn show(&self, show: impl FnOnce(&Shown, &Stream)) {
        if let (Some(shown), Phase::Open { stream, .. } | Phase::OverTcp(stream)) = (&self.shown, &self.phase)
        {
            show(shown, stream);
        }
    }

    fn flush(&mut self) {
        while let (Some(carrier), false) = (&mut self.carrier, self.unsent.is_empty()) {
            match carrier.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Reading tells what became of it.
                Err(_) => self.unsent.clear(),
            }
        }
    }

    /// Looks at the channel. Returns whether anything came.
    fn look(&mut self) -> bool {
        let mut any = false;
        let mut bytes = [0; 1_024];
        while let Some(carrier) = &mut self.carrier {
            let got = match carrier.read(&mut bytes) {
                Ok(0) => Err(io::Error::from(ErrorKind::UnexpectedEof)),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return any,
                got => got,
            };
            any = true;
            match got {
                Ok(got) => self.feed(&bytes[..got]),
                Err(error) => self.channel_ended(error),
            }
        }
        any
    }

    fn channel_ended(&mut self, source: io::Error) {
        self.carrier = None;
        match &mut self.phase {
            Phase::Open { stream, .. } => stream.hung_up(),
            Phase::Failed(_) | Phase::OverTcp(_) => {}
            _ => self.fail(OpenError::Unreachable { address: "the peer".into(), source }),
        }
    }

    fn fail(&mut self, why: OpenError) {
        self.phase = Phase::Failed(Some(why));
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = match &mut self.phase {
                Phase::Asking { machine, .. } => match machine.feed_stream_opened(bytes) {
                    Ok((taken, None)) => taken,
                    Ok((taken, Some(StreamAnswer::Opened(theirs)))) => {
                        self.connect(&theirs);
                        taken
                    }
                    Ok((taken, Some(StreamAnswer::OverChannel))) => {
                        return self.follow_over_tcp(&bytes[taken..]);
                    }
                    Err(error) => return self.fail(error.into()),
                },
                Phase::Asked { machine, .. } => match machine.feed_open_stream(bytes) {
                    Ok((taken, None)) => taken,
                    Ok((taken, Some(theirs))) => {
                        self.welcome(&theirs);
                        taken
                    }
                    Err(refusal) => {
                        self.unsent.extend_from_slice(&machine.refuse(&refusal));
                        self.flush();
                        return self.fail(refusal.into());
                    }
                },
                Phase::Open { stream, talk, .. } => {
                    let heard = match talk {
                        Talk::Client(machine) => machine.feed_later(bytes),
                        Talk::Server(machine) => machine.feed_notice(bytes).map_err(BootstrapError::Unusable),
                    };
                    match heard {
                        Ok((taken, notice)) => {
                            if let Some(Notice::StreamEnded { bytes }) = notice {
                                stream.peer_ended(bytes);
                            }
                            taken
                        }
                        Err(error) => return self.channel_ended(io::Error::other(error)),
                    }
                }
                // Who asks is silent until it was answered, so that nothing of a stream over TCP comes here.
                Phase::Failed(_) | Phase::OverTcp(_) => return,
            };
            bytes = &bytes[taken..];
        }
    }

    fn connect(&mut self, theirs: &StreamEnd) {
        let Phase::Asking { opening, machine, .. } = std::mem::replace(&mut self.phase, Phase::Failed(None))
        else {
            return;
        };
        match opening.connect(theirs) {
            Ok(stream) => self.opened(stream, Talk::Client(machine)),
            Err(error) => {
                self.carrier = None;
                self.fail(error);
            }
        }
    }

    fn welcome(&mut self, theirs: &StreamEnd) {
        let Phase::Asked { nic, config, machine } = std::mem::replace(&mut self.phase, Phase::Failed(None))
        else {
            return;
        };
        if tcp_path::is_due(&nic, &config, theirs, self.addresses()) {
            self.unsent.extend_from_slice(&machine.stream_over_channel());
            return self.turn_to_tcp(&config, ACCEPTED, &[]);
        }
        match Stream::accept(&nic, *config, theirs) {
            Ok((stream, ours)) => {
                self.unsent.extend_from_slice(&machine.stream_opened(&ours));
                self.opened(stream, Talk::Server(machine));
            }
            Err(refusal) => {
                self.unsent.extend_from_slice(&machine.refuse(&refusal));
                self.fail(refusal.into());
            }
        }
        self.flush();
    }

    fn addresses(&self) -> Option<tcp_path::Addresses> {
        let socket = self.carrier.as_ref()?.tcp()?;
        Some((socket.local_addr().ok()?, socket.peer_addr().ok()?))
    }

    /// The server has chosen TCP.
    fn follow_over_tcp(&mut self, received: &[u8]) {
        let Phase::Asking { nic, config, .. } = std::mem::replace(&mut self.phase, Phase::Failed(None))
        else {
            return;
        };
        match tcp_path::check_choice(&nic, &config, self.addresses()) {
            Ok(()) => self.turn_to_tcp(&config, CONNECTED, received),
            Err(refusal) => {
                self.carrier = None;
                self.fail(refusal.into());
            }
        }
    }

    /// From here on the channel carries the stream, behind what is still to be sent of the handshake.
    fn turn_to_tcp(&mut self, config: &StreamConfig, role: &str, received: &[u8]) {
        let addresses = self.addresses();
        let peer = addresses.map(|(_, peer)| peer.to_string()).unwrap_or_default();
        let Some(socket) = self.carrier.take().and_then(Carrier::into_tcp) else { return };
        match TcpEnd::new(socket, config, std::mem::take(&mut self.unsent)) {
            Ok(mut end) => {
                end.received(received);
                tracing::info!(%peer, "a stream goes over TCP: no shared memory and no RNIC reaches its peer");
                self.phase = Phase::OverTcp(Box::new(Stream::over_tcp(end)));
                self.shown = addresses.map(|of| Shown::new(of, role, StreamPath::Tcp));
            }
            Err(error) => self.fail(no_resources(&error).into()),
        }
    }

    fn opened(&mut self, stream: Stream, talk: Talk) {
        let role = match talk {
            Talk::Client(_) => CONNECTED,
            Talk::Server(_) => ACCEPTED,
        };
        self.shown = self.addresses().map(|of| Shown::new(of, role, StreamPath::Verbs));
        self.phase = Phase::Open { stream: Box::new(stream), talk, has_said_end: false };
    }

    /// Tells the peer that this end's stream has ended and arrived.
    fn say_end(&mut self) -> bool {
        let Phase::Open { stream, talk, has_said_end: has_said_end @ false } = &mut self.phase else {
            return false;
        };
        let Some(bytes) = stream.ended() else { return false };
        *has_said_end = true;
        let notice = Notice::StreamEnded { bytes };
        self.unsent.extend_from_slice(&match talk {
            Talk::Client(machine) => machine.notice(notice),
            Talk::Server(machine) => machine.notice(notice),
        });
        true
    }
}

fn no_resources(error: &io::Error) -> Refusal {
    RefusalKind::Resources.because(format!("the system gives no descriptor for a stream: {error}"))
}

impl<C: Carrier> Endpoint for Carried<C> {
    fn progress(&mut self, now: Nanos) -> Next {
        let next = match &mut self.phase {
            Phase::OverTcp(stream) => {
                let next = stream.progress(now);
                self.show(Shown::update);
                return next;
            }
            Phase::Open { stream, .. } => stream.progress(now),
            _ => Next::IDLE,
        };
        if next == Next::Again {
            self.is_armed = false;
            return next;
        }
        let mut any = self.say_end();
        self.flush();
        let is_open = matches!(self.phase, Phase::Open { .. });
        if !is_open || self.is_armed || now >= self.next_look {
            self.next_look = now + LOOK_PERIOD;
            self.show(Shown::update);
            any |= self.look();
        }
        if any {
            self.is_armed = false;
            return Next::Again;
        }
        next
    }

    fn arm(&mut self) -> Result<()> {
        self.is_armed = true;
        self.show(Shown::sleeps);
        match &mut self.phase {
            Phase::Open { stream, .. } | Phase::OverTcp(stream) => stream.arm(),
            _ => Ok(()),
        }
    }

    fn news_probe(&self) -> Option<Arc<dyn Probe>> {
        match &self.phase {
            Phase::Open { stream, .. } => stream.news_probe(),
            _ => None,
        }
    }

    fn arm_covered(&mut self) -> Result<()> {
        self.is_armed = true;
        self.show(Shown::sleeps);
        match &mut self.phase {
            Phase::Open { stream, .. } | Phase::OverTcp(stream) => stream.arm_covered(),
            _ => Ok(()),
        }
    }

    fn wait_set(&self, set: &mut WaitSet) {
        if let Some(carrier) = &self.carrier {
            set.insert(carrier.fd());
        }
        if let Phase::Open { stream, .. } | Phase::OverTcp(stream) = &self.phase {
            stream.wait_set(set);
        }
    }

    fn looks(&self) -> u32 {
        match &self.phase {
            Phase::OverTcp(stream) => stream.looks(),
            _ => 1,
        }
    }
}

impl<C: Carrier> Drop for Carried<C> {
    fn drop(&mut self) {
        self.show(Shown::update);
        // The queue pair goes first: nothing of a stream that was given up arrives after its peer was told.
        self.phase = Phase::Failed(None);
        // A socket that is closed with something unread tells the other side that all is lost.
        let mut bytes = [0; 1_024];
        for _ in 0..UNREAD_MAX {
            let read = self.carrier.as_mut().map(|carrier| carrier.read(&mut bytes));
            if !matches!(read, Some(Ok(1..))) {
                break;
            }
        }
    }
}
