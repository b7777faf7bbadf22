//! A stream through rings: both directions over one queue pair.
//!
//! Submodules: [`open`] (creation from a handshake), [`transfer`] (reading and writing), [`turn`] (driver iteration,
//! sleep), [`growth`] (longer and shorter rings), [`ending`] (half-close, reset, peer exit).

mod ending;
mod growth;
mod open;
mod transfer;
mod turn;

use std::sync::Arc;

use farcall_link::Connection;
use farcall_verbs::{CompChannel, Nanos, ProtectionDomain, RawCq, Wc};

use crate::backoff_sleep::BackoffSleep;
use crate::config::StreamConfig;
use crate::error::Broken;
use crate::probe::StreamProbe;
use crate::receive_buffer::ReceiveBuffer;
use crate::recv_half::RecvHalf;
use crate::send_half::SendHalf;
use crate::stream::Counters;
pub use open::UnconnectedStream;

const COMPLETIONS_AT_ONCE: usize = 16;

/// The methods are documented at [`crate::Stream`].
pub(crate) struct RingStream {
    // Drop order: the queue pair before the queue of its completions.
    connection: Connection,
    cq: Box<dyn RawCq>,
    channel: Arc<dyn CompChannel>,
    pd: Arc<dyn ProtectionDomain>,
    recv_half: RecvHalf,
    send_half: SendHalf,
    config: StreamConfig,
    broken: Option<Broken>,
    /// `true` once the peer no longer reads what this end writes.
    is_unread: bool,
    /// At most `lent_bytes_max` bytes.
    receive_buffer: ReceiveBuffer,
    wcs: [Wc; COMPLETIONS_AT_ONCE],
    turns_to_poll: u32,
    is_armed: bool,
    /// `true` while a poller polls for this sleeping end.
    is_delegated: bool,
    /// `None` if control words are valid only after the wake-up sent with them.
    probe: Option<Arc<StreamProbe>>,
    /// Timeouts of an end whose wake request is not yet acknowledged. A writing peer reads the request before each
    /// post, so only bytes that cross with the request arrive without a wake-up.
    backoff: BackoffSleep,
    now: Nanos,
    /// Number of bytes received when bytes last arrived, and the time of that.
    moved_at: (u64, Nanos),
    counters: Counters,
}

impl RingStream {
    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        Counters {
            wakes_sent: self.send_half.wake_sender.sent,
            wakes_taken: self.recv_half.wakes_taken,
            ..self.counters
        }
    }

    /// Returns the length in bytes of the ring that is being read.
    pub fn ring_bytes(&self) -> usize {
        self.recv_half.ring.len_bytes() as usize
    }

    /// Returns the numbers of bytes written to and read from this end.
    pub fn totals(&self) -> (u64, u64) {
        (self.send_half.written, self.recv_half.read - self.receive_buffer.rest().len() as u64)
    }
}
