//! A stream, independent of the path that carries its bytes.

use std::fmt;
use std::sync::Arc;

use farcall_link::Nic;
use farcall_link::bootstrap::{Refusal, StreamEnd};
use farcall_verbs::{Endpoint, Nanos, Progress, Result as VerbsResult, WaitSet, WakeProbe};

use crate::config::StreamConfig;
use crate::error::{Broken, StreamError};
use crate::ring_stream::RingStream;
use crate::tcp_stream::TcpEnd;
use crate::write_buffer::WriteBuffer;

/// An open stream. Its reads and writes never block. It is a [`farcall_verbs::Endpoint`], run by a driver.
///
/// The WRITEs of all bytes that [`Stream::write`] accepts are posted: they arrive without further calls.
pub struct Stream(StreamBackend);

farcall_verbs::opaque_debug!(Stream);

/// The path of a stream. Each call costs one branch to select it.
#[expect(clippy::large_enum_variant, reason = "rings are the usual case, and no further pointer away")]
enum StreamBackend {
    Ring(RingStream),
    Tcp(Box<TcpEnd>),
}

/// The path that carries the bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamPath {
    /// One-sided WRITEs into a ring of the reader, through shared memory or an RNIC, depending on the device.
    Verbs,
    /// The TCP connection of the handshake: the peer is on another host that no device reaches.
    Tcp,
}

impl StreamPath {
    /// Returns the machine-readable name: `verbs` or `tcp`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Tcp => "tcp",
        }
    }
}

impl fmt::Display for StreamPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Verbs => "one-sided WRITEs",
            Self::Tcp => "TCP",
        })
    }
}

/// Counters of a stream. Over TCP only `stalls` is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Wake-ups sent.
    pub wakes_sent: u64,
    /// Wake-ups consumed.
    pub wakes_taken: u64,
    /// Credit messages sent to the peer.
    pub credits: u64,
    /// Wake requests sent to the peer, both to start and to stop wake-ups.
    pub wishes: u64,
    /// Writes that found no space.
    pub stalls: u64,
    /// Rings that this end offered to the peer.
    pub rings_offered: u64,
    /// Rings of the peer that this end switched to.
    pub rings_taken: u64,
}

/// Calls the same method of the end that carries the bytes.
macro_rules! carried {
    ($stream:expr, $end:ident => $call:expr) => {
        match $stream {
            StreamBackend::Ring($end) => $call,
            StreamBackend::Tcp($end) => $call,
        }
    };
}

impl Stream {
    pub(crate) const fn through_rings(ring: RingStream) -> Self {
        Self(StreamBackend::Ring(ring))
    }

    pub(crate) fn over_tcp(end: TcpEnd) -> Self {
        Self(StreamBackend::Tcp(Box::new(end)))
    }

    /// Creates the server's end for a client that requests a stream. All parameters of the client are validated first;
    /// no resources are allocated before that.
    ///
    /// # Errors
    /// Returns the refusal to send to the client.
    pub fn accept(nic: &Nic, config: StreamConfig, theirs: &StreamEnd) -> Result<(Self, StreamEnd), Refusal> {
        RingStream::accept(nic, config, theirs).map(|(ring, ours)| (Self::through_rings(ring), ours))
    }

    /// Returns the path that carries the bytes.
    pub const fn path(&self) -> StreamPath {
        match &self.0 {
            StreamBackend::Ring(_) => StreamPath::Verbs,
            StreamBackend::Tcp(_) => StreamPath::Tcp,
        }
    }

    /// Writes as many of `bytes` as there is space for, at least one. Returns their number. Their WRITEs are posted.
    ///
    /// There may be no space although the peer has read everything: the peer must also consume wake-ups, and on a
    /// loaded machine it does so late.
    ///
    /// # Errors
    /// Returns [`StreamError::WouldBlock`] if there is no space; other errors if no bytes can be written any more.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        carried!(&mut self.0, end => end.write(bytes))
    }

    /// Calls `compose` to write up to `most` bytes directly into the send ring, and sends them. Returns their number.
    /// The space may be shorter than `most`: it ends at the end of the ring.
    ///
    /// Over TCP, `compose` writes into private memory. Bytes that the kernel does not accept at once are sent by the
    /// next call or driver iteration.
    ///
    /// # Errors
    /// Returns the errors of [`Stream::write`].
    #[inline]
    pub fn write_with(
        &mut self,
        most: usize,
        compose: impl FnOnce(&mut WriteBuffer<'_>),
    ) -> Result<usize, StreamError> {
        carried!(&mut self.0, end => end.write_with(most, compose))
    }

    /// Returns whether a write would accept at least one byte or return an error other than `WouldBlock`.
    #[inline]
    pub fn is_writable(&self) -> bool {
        carried!(&self.0, end => end.is_writable())
    }

    /// Reads the available bytes, at least one. Returns 0 if the stream has ended and all of it was read.
    ///
    /// # Errors
    /// Returns [`StreamError::WouldBlock`] if no bytes are available; [`StreamError::Reset`] if the rest of the stream
    /// is lost.
    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, StreamError> {
        carried!(&mut self.0, end => end.read(out))
    }

    /// Lends at least `at_least` bytes from a private copy, more if they are available; fewer only at the end of the
    /// stream. Bytes passed to [`Stream::consume`] are not lent again. The peer may overwrite the ring concurrently;
    /// it cannot change the lent bytes.
    ///
    /// # Errors
    /// Returns the errors of [`Stream::read`].
    ///
    /// # Panics
    /// If `at_least` exceeds the configured bound.
    #[inline]
    pub fn fill(&mut self, at_least: usize) -> Result<&[u8], StreamError> {
        carried!(&mut self.0, end => end.fill(at_least))
    }

    /// Releases the first `len_bytes` bytes that [`Stream::fill`] lent.
    ///
    /// # Panics
    /// If [`Stream::fill`] lent fewer bytes.
    #[inline]
    pub fn consume(&mut self, len_bytes: usize) {
        carried!(&mut self.0, end => end.consume(len_bytes));
    }

    /// Returns whether a read would return bytes, the end or an error. Over TCP the result may be `true` although the
    /// next read returns `WouldBlock`.
    #[inline]
    pub fn is_readable(&mut self) -> bool {
        carried!(&mut self.0, end => end.is_readable())
    }

    /// Returns whether unseen bytes have arrived. Costs one load.
    #[inline]
    pub fn has_work(&self) -> bool {
        carried!(&self.0, end => end.has_work())
    }

    /// Ends the outgoing direction: the peer reads the bytes in flight, then the end. Reading continues.
    pub fn finish(&mut self) {
        carried!(&mut self.0, end => end.finish());
    }

    /// Resets the stream: no more bytes are read or written at this end. The peer is notified immediately over TCP,
    /// otherwise when the handshake channel closes.
    pub fn reset(&mut self) {
        carried!(&mut self.0, end => end.reset());
    }

    /// Returns the reason why the stream broke, if it did.
    pub fn broken(&self) -> Option<&Broken> {
        carried!(&self.0, end => end.broken())
    }

    /// Returns whether no request of this end is outstanding any more after a break.
    pub fn is_drained(&self) -> bool {
        match &self.0 {
            StreamBackend::Ring(ring) => ring.is_drained(),
            StreamBackend::Tcp(_) => true,
        }
    }

    /// Returns the total number of bytes written, once this end has ended its stream and all bytes are known to have
    /// arrived. The peer must then be notified over the handshake channel before that is closed, unless the channel
    /// carried the stream.
    pub fn ended(&mut self) -> Option<u64> {
        carried!(&mut self.0, end => end.ended())
    }

    /// Handles the peer's notice on the handshake channel that its stream ended after `bytes` bytes and that they
    /// arrived. Ignored over TCP, where the connection itself reports the end.
    pub fn peer_ended(&mut self, bytes: u64) {
        if let StreamBackend::Ring(ring) = &mut self.0 {
            ring.peer_ended(bytes);
        }
    }

    /// Handles the closing of the handshake channel by the peer, which has exited. Bytes that arrived can still be
    /// read, up to the end if the peer had ended its stream. Ignored over TCP, where the connection itself reports it.
    pub fn hung_up(&mut self) {
        if let StreamBackend::Ring(ring) = &mut self.0 {
            ring.hung_up();
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        carried!(&self.0, end => end.counters())
    }

    /// Returns the length in bytes of the ring that is being read; 0 over TCP.
    pub fn ring_bytes(&self) -> usize {
        match &self.0 {
            StreamBackend::Ring(ring) => ring.ring_bytes(),
            StreamBackend::Tcp(_) => 0,
        }
    }

    /// Returns the numbers of bytes written to and read from this end.
    pub fn totals(&self) -> (u64, u64) {
        carried!(&self.0, end => end.totals())
    }
}

impl Endpoint for Stream {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Progress {
        carried!(&mut self.0, end => end.progress(now))
    }

    fn arm(&mut self) -> VerbsResult<()> {
        carried!(&mut self.0, end => end.arm())
    }

    fn wake_probe(&self) -> Option<Arc<dyn WakeProbe>> {
        carried!(&self.0, end => end.wake_probe())
    }

    fn arm_delegated(&mut self) -> VerbsResult<()> {
        carried!(&mut self.0, end => end.arm_delegated())
    }

    fn wait_set(&self, set: &mut WaitSet) {
        carried!(&self.0, end => end.wait_set(set));
    }

    fn poll_weight(&self) -> u32 {
        carried!(&self.0, end => end.poll_weight())
    }
}
