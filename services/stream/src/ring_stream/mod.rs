//! A stream through rings: both directions over one queue pair.
//!
//! A file for each concern: [`open`] (from a handshake), [`transfer`] (reading and writing), [`turn`] (progress,
//! sleep), [`growth`] (longer and shorter rings), [`ending`] (half-close, reset, death).

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

/// See [`crate::Stream`], which says what each method does.
pub(crate) struct RingStream {
    // The queue pair goes before the queue of its completions.
    connection: Connection,
    cq: Box<dyn RawCq>,
    channel: Arc<dyn CompChannel>,
    pd: Arc<dyn ProtectionDomain>,
    inlet: Inlet,
    outlet: Outlet,
    config: StreamConfig,
    broken: Option<Broken>,
    /// Nobody reads what we write any more.
    is_unread: bool,
    /// At most as long as configured.
    lent: Lent,
    wcs: [Wc; COMPLETIONS_AT_ONCE],
    turns_to_poll: u32,
    is_armed: bool,
    /// A poller looks while it sleeps.
    is_covered: bool,
    /// `None` where words are not believed without the wake-up that comes with them.
    probe: Option<Arc<StreamProbe>>,
    /// Sleeps of an end whose peer has not promised to wake it. A peer that writes hears the wish first, so that only
    /// what crosses with it comes unnoticed.
    nap: Nap,
    now: Nanos,
    /// How much had come when anything came last, and when that was.
    moved_at: (u64, Nanos),
    counters: Counters,
}

impl RingStream {
    /// What happened so far.
    pub fn counters(&self) -> Counters {
        Counters { wakes_sent: self.outlet.waker.sent, wakes_taken: self.inlet.wakes_taken, ..self.counters }
    }

    /// Bytes of the ring that this end reads from now.
    pub fn ring_bytes(&self) -> usize {
        self.inlet.ring.len_bytes() as usize
    }

    /// Bytes written to and read from this end.
    pub fn totals(&self) -> (u64, u64) {
        (self.outlet.written, self.inlet.read - self.lent.rest().len() as u64)
    }
}
