//! A stream together with its handshake channel. The channel stays open as long as the stream: its closing reports
//! that the peer has exited, and before that it carries the length of a stream that ended normally. If no device
//! reaches the peer, the channel carries the stream itself: see [`tcp_path`].

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use farcall_link::Nic;
use farcall_link::bootstrap::{
    Acceptor, BootstrapError, Initiator, PostHandshakeMessage, Refusal, RefusalKind, StreamEnd, StreamReply,
    VersionRange,
};
use farcall_verbs::{Endpoint, Nanos, Progress, Result, WaitSet, WakeProbe};

use crate::config::StreamConfig;
use crate::error::OpenError;
use crate::ring_stream::UnconnectedStream;
use crate::stream::{Stream, StreamPath};
use crate::stream_stats::StreamStats;
use crate::tcp_path;
use crate::tcp_stream::TcpEnd;

/// An ordered, non-blocking byte channel between two ends: a TCP connection, or its substitute in a simulation.
pub trait BootstrapChannel {
    /// Reads received bytes. Returns 0 at the end of the channel.
    ///
    /// # Errors
    /// Returns `WouldBlock` if no bytes are available; any other error ends the channel.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Sends a prefix of `bytes` and returns its length.
    ///
    /// # Errors
    /// Returns `WouldBlock` if no bytes can be sent now; any other error ends the channel.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Returns a descriptor that is readable when bytes have arrived or the channel has ended.
    fn fd(&self) -> RawFd;

    /// Returns the underlying TCP connection; `None` for other channels.
    fn tcp(&self) -> Option<&TcpStream> {
        None
    }

    /// Converts the channel into its TCP connection; `None` for other channels.
    fn into_tcp(self) -> Option<TcpStream>
    where
        Self: Sized,
    {
        None
    }
}

/// A stream that is opening, is open or has failed, with its handshake channel.
pub struct NegotiatedStream<C: BootstrapChannel> {
    /// `None` once the channel has ended.
    channel: Option<C>,
    unsent: Vec<u8>,
    phase: Phase,
    /// Statistics of an open stream; `None` before, and if the channel is not a TCP connection.
    stats: Option<StreamStats>,
    next_channel_poll: Nanos,
    is_armed: bool,
}

enum Phase {
    Requesting {
        nic: Box<Nic>,
        config: Box<StreamConfig>,
        unconnected: Box<UnconnectedStream>,
        machine: Initiator,
    },
    Accepting {
        nic: Box<Nic>,
        config: Box<StreamConfig>,
        machine: Acceptor,
    },
    Open {
        stream: Box<Stream>,
        role: HandshakeRole,
        end_sent: bool,
    },
    /// The channel carries the stream.
    OverTcp(Box<Stream>),
    /// Reason of the failure, until [`NegotiatedStream::take_failure`] returns it.
    Failed(Option<OpenError>),
}

/// Role of this end in the handshake.
enum HandshakeRole {
    Client(Initiator),
    Server(Acceptor),
}

/// Names of the two roles in the process's statistics.
const CONNECTED: &str = "connected";
const ACCEPTED: &str = "accepted";
/// Interval between polls of an idle channel: each poll is a system call.
const CHANNEL_POLL_PERIOD: Duration = Duration::from_millis(1);
/// Maximum number of reads before the channel is closed. After the handshake a peer sends at most one notice.
const UNREAD_MAX: usize = 8;

impl<C: BootstrapChannel> NegotiatedStream<C> {
    /// Requests a stream from the peer at the other end of the channel.
    ///
    /// # Errors
    /// Returns an error if the device cannot create the queue pair, completion queue or memory regions.
    pub fn open(nic: &Nic, config: StreamConfig, channel: C) -> std::result::Result<Self, OpenError> {
        let unconnected = Box::new(UnconnectedStream::new(nic, config)?);
        let machine = Initiator::new(VersionRange::CURRENT);
        let unsent = machine.open_stream(&unconnected.end());
        let (nic, config) = (Box::new(nic.clone()), Box::new(config));
        Ok(Self::new(channel, unsent, Phase::Requesting { nic, config, unconnected, machine }))
    }

    /// Creates the server's end: waits for the peer to request a stream. No device resources are allocated before the
    /// request arrives.
    pub fn accept(nic: &Nic, config: StreamConfig, channel: C) -> Self {
        let machine = Acceptor::new(VersionRange::CURRENT);
        Self::new(
            channel,
            Vec::new(),
            Phase::Accepting { nic: Box::new(nic.clone()), config: Box::new(config), machine },
        )
    }

    fn new(channel: C, unsent: Vec<u8>, phase: Phase) -> Self {
        Self {
            channel: Some(channel),
            unsent,
            phase,
            stats: None,
            next_channel_poll: Nanos(0),
            is_armed: false,
        }
    }

    /// Returns the stream, once it is open.
    #[inline]
    pub fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            Phase::Open { stream, .. } | Phase::OverTcp(stream) => Some(stream),
            _ => None,
        }
    }

    /// Returns the path that carries the bytes. The value is meaningful once the stream is open.
    pub const fn path(&self) -> StreamPath {
        match &self.phase {
            Phase::OverTcp(stream) => stream.path(),
            _ => StreamPath::Verbs,
        }
    }

    /// Returns whether the stream is open or has failed.
    pub fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Open { .. } | Phase::OverTcp(_) | Phase::Failed(_))
    }

    /// Returns the reason why the stream failed to open. Later calls return `None`.
    pub fn take_failure(&mut self) -> Option<OpenError> {
        match &mut self.phase {
            Phase::Failed(why) => why.take(),
            _ => None,
        }
    }

    /// Returns whether the channel may be closed: this end has ended its stream and has notified the peer that
    /// everything arrived, or the peer can no longer be notified.
    pub fn may_close(&mut self) -> bool {
        match &mut self.phase {
            Phase::OverTcp(stream) => stream.ended().is_some() || stream.broken().is_some(),
            Phase::Open { stream, end_sent, .. } => {
                let is_notified = *end_sent && self.unsent.is_empty();
                is_notified || stream.broken().is_some() || self.channel.is_none()
            }
            Phase::Failed(_) => true,
            _ => false,
        }
    }

    /// Publishes the state of the stream in the statistics.
    fn show(&self, show: impl FnOnce(&StreamStats, &Stream)) {
        if let (Some(stats), Phase::Open { stream, .. } | Phase::OverTcp(stream)) = (&self.stats, &self.phase)
        {
            show(stats, stream);
        }
    }

    fn flush(&mut self) {
        while let (Some(channel), false) = (&mut self.channel, self.unsent.is_empty()) {
            match channel.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The next read reports the state of the channel.
                Err(_) => self.unsent.clear(),
            }
        }
    }

    /// Polls the channel. Returns whether bytes or the end of the channel were received.
    fn poll_channel(&mut self) -> bool {
        let mut any = false;
        let mut bytes = [0; 1_024];
        while let Some(channel) = &mut self.channel {
            let got = match channel.read(&mut bytes) {
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
        self.channel = None;
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
                Phase::Requesting { machine, .. } => match machine.feed_stream_opened(bytes) {
                    Ok((taken, None)) => taken,
                    Ok((taken, Some(StreamReply::Opened(theirs)))) => {
                        self.connect(&theirs);
                        taken
                    }
                    Ok((taken, Some(StreamReply::OverChannel))) => {
                        return self.handle_over_tcp(&bytes[taken..]);
                    }
                    Err(error) => return self.fail(error.into()),
                },
                Phase::Accepting { machine, .. } => match machine.feed_open_stream(bytes) {
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
                Phase::Open { stream, role, .. } => {
                    let later = match role {
                        HandshakeRole::Client(machine) => machine.feed_post_handshake(bytes),
                        HandshakeRole::Server(machine) => {
                            machine.feed_post_handshake(bytes).map_err(BootstrapError::Unusable)
                        }
                    };
                    match later {
                        Ok((taken, notice)) => {
                            if let Some(PostHandshakeMessage::StreamEnded { bytes }) = notice {
                                stream.peer_ended(bytes);
                            }
                            taken
                        }
                        Err(error) => return self.channel_ended(io::Error::other(error)),
                    }
                }
                // A client sends nothing between its request and the reply, so no bytes of a stream over TCP can be in
                // this buffer.
                Phase::Failed(_) | Phase::OverTcp(_) => return,
            };
            bytes = &bytes[taken..];
        }
    }

    fn connect(&mut self, theirs: &StreamEnd) {
        let Phase::Requesting { unconnected, machine, .. } =
            std::mem::replace(&mut self.phase, Phase::Failed(None))
        else {
            return;
        };
        match unconnected.connect(theirs) {
            Ok(stream) => self.opened(stream, HandshakeRole::Client(machine)),
            Err(error) => {
                self.channel = None;
                self.fail(error);
            }
        }
    }

    fn welcome(&mut self, theirs: &StreamEnd) {
        let Phase::Accepting { nic, config, machine } =
            std::mem::replace(&mut self.phase, Phase::Failed(None))
        else {
            return;
        };
        if tcp_path::is_due(&nic, &config, theirs, self.addresses()) {
            self.unsent.extend_from_slice(&machine.stream_over_channel());
            return self.switch_to_tcp(&config, ACCEPTED, &[]);
        }
        match Stream::accept(&nic, *config, theirs) {
            Ok((stream, ours)) => {
                self.unsent.extend_from_slice(&machine.stream_opened(&ours));
                self.opened(stream, HandshakeRole::Server(machine));
            }
            Err(refusal) => {
                self.unsent.extend_from_slice(&machine.refuse(&refusal));
                self.fail(refusal.into());
            }
        }
        self.flush();
    }

    fn addresses(&self) -> Option<tcp_path::Addresses> {
        let socket = self.channel.as_ref()?.tcp()?;
        Some((socket.local_addr().ok()?, socket.peer_addr().ok()?))
    }

    /// Handles the server's reply that TCP carries the stream.
    fn handle_over_tcp(&mut self, received: &[u8]) {
        let Phase::Requesting { nic, config, .. } = std::mem::replace(&mut self.phase, Phase::Failed(None))
        else {
            return;
        };
        match tcp_path::check_choice(&nic, &config, self.addresses()) {
            Ok(()) => self.switch_to_tcp(&config, CONNECTED, received),
            Err(refusal) => {
                self.channel = None;
                self.fail(refusal.into());
            }
        }
    }

    /// Switches to TCP: the channel carries the stream after the unsent rest of the handshake.
    fn switch_to_tcp(&mut self, config: &StreamConfig, role: &str, received: &[u8]) {
        let addresses = self.addresses();
        let peer = addresses.map(|(_, peer)| peer.to_string()).unwrap_or_default();
        let Some(socket) = self.channel.take().and_then(BootstrapChannel::into_tcp) else { return };
        match TcpEnd::new(socket, config, std::mem::take(&mut self.unsent)) {
            Ok(mut end) => {
                end.received(received);
                tracing::info!(%peer, "a stream goes over TCP: no shared memory and no RNIC reaches its peer");
                self.phase = Phase::OverTcp(Box::new(Stream::over_tcp(end)));
                self.stats = addresses.map(|of| StreamStats::new(of, role, StreamPath::Tcp));
            }
            Err(error) => self.fail(no_resources(&error).into()),
        }
    }

    fn opened(&mut self, stream: Stream, role: HandshakeRole) {
        let role_name = match role {
            HandshakeRole::Client(_) => CONNECTED,
            HandshakeRole::Server(_) => ACCEPTED,
        };
        self.stats = self.addresses().map(|of| StreamStats::new(of, role_name, StreamPath::Verbs));
        self.phase = Phase::Open { stream: Box::new(stream), role, end_sent: false };
    }

    /// Notifies the peer, once, that this end's stream has ended and all its bytes have arrived. Returns whether a
    /// notice was queued.
    fn send_end(&mut self) -> bool {
        let Phase::Open { stream, role, end_sent: end_sent @ false } = &mut self.phase else {
            return false;
        };
        let Some(bytes) = stream.ended() else { return false };
        *end_sent = true;
        let notice = PostHandshakeMessage::StreamEnded { bytes };
        self.unsent.extend_from_slice(&match role {
            HandshakeRole::Client(machine) => machine.notice(notice),
            HandshakeRole::Server(machine) => machine.notice(notice),
        });
        true
    }
}

fn no_resources(error: &io::Error) -> Refusal {
    RefusalKind::Resources.because(format!("the system gives no descriptor for a stream: {error}"))
}

impl<C: BootstrapChannel> Endpoint for NegotiatedStream<C> {
    fn progress(&mut self, now: Nanos) -> Progress {
        let next = match &mut self.phase {
            Phase::OverTcp(stream) => {
                let next = stream.progress(now);
                self.show(StreamStats::update);
                return next;
            }
            Phase::Open { stream, .. } => stream.progress(now),
            _ => Progress::IDLE,
        };
        if next == Progress::Again {
            self.is_armed = false;
            return next;
        }
        let mut any = self.send_end();
        self.flush();
        let is_open = matches!(self.phase, Phase::Open { .. });
        if !is_open || self.is_armed || now >= self.next_channel_poll {
            self.next_channel_poll = now + CHANNEL_POLL_PERIOD;
            self.show(StreamStats::update);
            any |= self.poll_channel();
        }
        if any {
            self.is_armed = false;
            return Progress::Again;
        }
        next
    }

    fn arm(&mut self) -> Result<()> {
        self.is_armed = true;
        self.show(StreamStats::sleeps);
        match &mut self.phase {
            Phase::Open { stream, .. } | Phase::OverTcp(stream) => stream.arm(),
            _ => Ok(()),
        }
    }

    fn wake_probe(&self) -> Option<Arc<dyn WakeProbe>> {
        match &self.phase {
            Phase::Open { stream, .. } => stream.wake_probe(),
            _ => None,
        }
    }

    fn arm_delegated(&mut self) -> Result<()> {
        self.is_armed = true;
        self.show(StreamStats::sleeps);
        match &mut self.phase {
            Phase::Open { stream, .. } | Phase::OverTcp(stream) => stream.arm_delegated(),
            _ => Ok(()),
        }
    }

    fn wait_set(&self, set: &mut WaitSet) {
        if let Some(channel) = &self.channel {
            set.insert(channel.fd());
        }
        if let Phase::Open { stream, .. } | Phase::OverTcp(stream) = &self.phase {
            stream.wait_set(set);
        }
    }

    fn poll_weight(&self) -> u32 {
        match &self.phase {
            Phase::OverTcp(stream) => stream.poll_weight(),
            _ => 1,
        }
    }
}

impl<C: BootstrapChannel> Drop for NegotiatedStream<C> {
    fn drop(&mut self) {
        self.show(StreamStats::update);
        // The queue pair is destroyed first: no bytes of an abandoned stream may arrive after the channel closes.
        self.phase = Phase::Failed(None);
        // Closing a socket with unread bytes resets the connection, and the peer would lose the notice. Read them
        // first.
        let mut bytes = [0; 1_024];
        for _ in 0..UNREAD_MAX {
            let read = self.channel.as_mut().map(|channel| channel.read(&mut bytes));
            if !matches!(read, Some(Ok(1..))) {
                break;
            }
        }
    }
}
