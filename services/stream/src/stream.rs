//! A stream, whatever carries its bytes.

use std::fmt;
use std::sync::Arc;

use farcall_link::Nic;
use farcall_link::bootstrap::{Refusal, StreamEnd};
use farcall_verbs::{Endpoint, Nanos, Next, Probe, Result as VerbsResult, WaitSet};

use crate::config::StreamConfig;
use crate::error::{Broken, StreamError};
use crate::ring_stream::RingStream;
use crate::space::Space;
use crate::tcp_stream::TcpEnd;

/// An open stream: reads and writes bytes, never waits. An [`farcall_verbs::Endpoint`], to be run by a driver.
///
/// What [`Stream::write`] accepts is on its way: no further call is needed for it to arrive.
pub struct Stream(Carriage);

/// One branch a call chooses between them.
#[expect(clippy::large_enum_variant, reason = "rings are the usual case, and no further pointer away")]
enum Carriage {
    Ring(RingStream),
    Tcp(Box<TcpEnd>),
}

/// What carries the bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamPath {
    /// One-sided WRITEs into a ring of the reader: through shared memory or an RNIC, as the device does it.
    Verbs,
    /// The TCP connection that the handshake went over: the other end is on another host, where no device reaches.
    Tcp,
}

impl StreamPath {
    /// A word for programs: `verbs` or `tcp`.
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

/// What a stream did, in numbers. Over TCP there are stalls and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Wake-ups sent.
    pub wakes_sent: u64,
    /// Wake-ups taken.
    pub wakes_taken: u64,
    /// How often the peer was told how much was read.
    pub credits: u64,
    /// How often the peer was asked for wake-ups, or to leave them out.
    pub wishes: u64,
    /// Times that a write found no room.
    pub stalls: u64,
    /// Rings that this end offered to the peer.
    pub rings_offered: u64,
    /// Rings of the peer that this end turned to.
    pub rings_taken: u64,
}

/// Calls the same method of what carries the bytes.
macro_rules! carried {
    ($stream:expr, $end:ident => $call:expr) => {
        match $stream {
            Carriage::Ring($end) => $call,
            Carriage::Tcp($end) => $call,
        }
    };
}

impl Stream {
    pub(crate) const fn through_rings(ring: RingStream) -> Self {
        Self(Carriage::Ring(ring))
    }

    pub(crate) fn over_tcp(end: TcpEnd) -> Self {
        Self(Carriage::Tcp(Box::new(end)))
    }

    /// The server's step: makes an end for a client that asks for a stream. Nothing the client says is believed before
    /// it is checked, nothing is made before.
    ///
    /// # Errors
    /// What to tell the client.
    pub fn accept(nic: &Nic, config: StreamConfig, theirs: &StreamEnd) -> Result<(Self, StreamEnd), Refusal> {
        RingStream::accept(nic, config, theirs).map(|(ring, ours)| (Self::through_rings(ring), ours))
    }

    /// What carries the bytes.
    pub const fn path(&self) -> StreamPath {
        match &self.0 {
            Carriage::Ring(_) => StreamPath::Verbs,
            Carriage::Tcp(_) => StreamPath::Tcp,
        }
    }

    /// Writes as many of these bytes as there is room for, at least one. They are on their way then.
    ///
    /// There may be no room though the peer has read everything: it must also take wake-ups, and a loaded machine lets it
    /// do so late.
    ///
    /// # Errors
    /// [`StreamError::WouldBlock`] if there is no room; others if nothing can be written any more.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        carried!(&mut self.0, end => end.write(bytes))
    }

    /// Lets `compose` write into the send ring itself, where at most `most` bytes have room, and sends what it put.
    /// Returns how many bytes that is. The room may be shorter than `most`: it ends where the ring does.
    ///
    /// Over TCP it writes into private memory; what the system does not take at once goes with the next call or turn.
    ///
    /// # Errors
    /// As [`Stream::write`].
    #[inline]
    pub fn write_with(
        &mut self,
        most: usize,
        compose: impl FnOnce(&mut Space<'_>),
    ) -> Result<usize, StreamError> {
        carried!(&mut self.0, end => end.write_with(most, compose))
    }

    /// Whether a write would take at least one byte, or say that none can be written any more.
    #[inline]
    pub fn is_writable(&self) -> bool {
        carried!(&self.0, end => end.is_writable())
    }

    /// Reads as many bytes as there are, at least one. 0 means that the stream has ended, and that everything was read.
    ///
    /// # Errors
    /// [`StreamError::WouldBlock`] if there is nothing; [`StreamError::Reset`] if the rest of the stream is lost.
    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, StreamError> {
        carried!(&mut self.0, end => end.read(out))
    }

    /// Lends at least `at_least` bytes from a private copy, more if there are; fewer only where the stream ends. What
    /// was [`Stream::consume`]d is not lent again. The peer may overwrite the ring meanwhile; it cannot change what is
    /// lent.
    ///
    /// # Errors
    /// As [`Stream::read`].
    ///
    /// # Panics
    /// If `at_least` exceeds the configured bound.
    #[inline]
    pub fn fill(&mut self, at_least: usize) -> Result<&[u8], StreamError> {
        carried!(&mut self.0, end => end.fill(at_least))
    }

    /// Gives back the first bytes of what [`Stream::fill`] lent.
    ///
    /// # Panics
    /// If it lent fewer.
    #[inline]
    pub fn consume(&mut self, len_bytes: usize) {
        carried!(&mut self.0, end => end.consume(len_bytes));
    }

    /// Whether a read would give bytes, the end or an error. Over TCP it may turn out that it would not yet.
    #[inline]
    pub fn is_readable(&mut self) -> bool {
        carried!(&mut self.0, end => end.is_readable())
    }

    /// Whether there are bytes that were not seen yet: one load.
    #[inline]
    pub fn has_news(&self) -> bool {
        carried!(&self.0, end => end.has_news())
    }

    /// Ends what this end writes: the peer reads what is on its way, then the end. Reading goes on.
    pub fn finish(&mut self) {
        carried!(&mut self.0, end => end.finish());
    }

    /// Gives the stream up: nothing more is read or written here. The peer learns of it at once over TCP, otherwise when
    /// the channel of the handshake is closed.
    pub fn reset(&mut self) {
        carried!(&mut self.0, end => end.reset());
    }

    /// Why the stream broke, if it did.
    pub fn broken(&self) -> Option<&Broken> {
        carried!(&self.0, end => end.broken())
    }

    /// Whether nothing of ours is under way any more after a break.
    pub fn is_drained(&self) -> bool {
        match &self.0 {
            Carriage::Ring(ring) => ring.is_drained(),
            Carriage::Tcp(_) => true,
        }
    }

    /// How many bytes were written in all, once this end has ended its stream and everything is known to have arrived.
    /// The peer is to be told over the channel of the handshake before that is closed, unless that carried them.
    pub fn ended(&mut self) -> Option<u64> {
        carried!(&mut self.0, end => end.ended())
    }

    /// The peer said over the channel of the handshake that its stream ended after so many bytes, and that they
    /// arrived. Over TCP the connection itself says so.
    pub fn peer_ended(&mut self, bytes: u64) {
        if let Carriage::Ring(ring) = &mut self.0 {
            ring.peer_ended(bytes);
        }
    }

    /// The peer closed the channel of the handshake: it is gone. What arrived can still be read, to the end if it had
    /// ended its stream. Over TCP the connection itself says so.
    pub fn hung_up(&mut self) {
        if let Carriage::Ring(ring) = &mut self.0 {
            ring.hung_up();
        }
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        carried!(&self.0, end => end.counters())
    }

    /// Bytes of the ring that this end reads from now; 0 over TCP.
    pub fn ring_bytes(&self) -> usize {
        match &self.0 {
            Carriage::Ring(ring) => ring.ring_bytes(),
            Carriage::Tcp(_) => 0,
        }
    }

    /// Bytes written to and read from this end.
    pub fn totals(&self) -> (u64, u64) {
        carried!(&self.0, end => end.totals())
    }
}

impl Endpoint for Stream {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Next {
        carried!(&mut self.0, end => end.progress(now))
    }

    fn arm(&mut self) -> VerbsResult<()> {
        carried!(&mut self.0, end => end.arm())
    }

    fn news_probe(&self) -> Option<Arc<dyn Probe>> {
        carried!(&self.0, end => end.news_probe())
    }

    fn arm_covered(&mut self) -> VerbsResult<()> {
        carried!(&mut self.0, end => end.arm_covered())
    }

    fn wait_set(&self, set: &mut WaitSet) {
        carried!(&self.0, end => end.wait_set(set));
    }

    fn looks(&self) -> u32 {
        carried!(&self.0, end => end.looks())
    }
}
