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

use crate::config::StreamConfig;
use crate::error::Broken;
use crate::inlet::Inlet;
use crate::lent::Lent;
use crate::nap::Nap;
use crate::outlet::Outlet;
use crate::probe::StreamProbe;
use crate::stream::Counters;
pub use open::Opening;

const COMPLETIONS_AT_ONCE: usize = 16;

/// The methods are documented at [`crate::Stream`].
pub(crate) struct RingStream {
    // Drop order: the queue pair before the queue of its completions.
    connection: Connection,
    cq: Box<dyn RawCq>,
    channel: Arc<dyn CompChannel>,
    pd: Arc<dyn ProtectionDomain>,
    inlet: Inlet,
    outlet: Outlet,
    config: StreamConfig,
    broken: Option<Broken>,
    /// `true` once the peer no longer reads what this end writes.
    is_unread: bool,
    /// At most `lent_bytes_max` bytes.
    lent: Lent,
    wcs: [Wc; COMPLETIONS_AT_ONCE],
    turns_to_poll: u32,
    is_armed: bool,
    /// `true` while a poller polls for this sleeping end.
    is_covered: bool,
    /// `None` if control words are valid only after the wake-up sent with them.
    probe: Option<Arc<StreamProbe>>,
    /// Timeouts of an end whose wake request is not yet acknowledged. A writing peer reads the request before each
    /// post, so only bytes that cross with the request arrive without a wake-up.
    nap: Nap,
    now: Nanos,
    /// Number of bytes received when bytes last arrived, and the time of that.
    moved_at: (u64, Nanos),
    counters: Counters,
}

impl RingStream {
    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        Counters { wakes_sent: self.outlet.waker.sent, wakes_taken: self.inlet.wakes_taken, ..self.counters }
    }

    /// Returns the length in bytes of the ring that is being read.
    pub fn ring_bytes(&self) -> usize {
        self.inlet.ring.len_bytes() as usize
    }

    /// Returns the numbers of bytes written to and read from this end.
    pub fn totals(&self) -> (u64, u64) {
        (self.outlet.written, self.inlet.read - self.lent.rest().len() as u64)
    }
}
