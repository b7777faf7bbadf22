//! Limits on the number of objects. A device has the number of each kind that `query_device` reports, for the entire
//! process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farcall_verbs::{Error, Result};

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Domain,
    AddressHandle,
    CompletionQueue,
    ReceiveQueue,
    QueuePair,
}

impl ObjectKind {
    const COUNT: usize = 5;

    const fn name(self) -> &'static str {
        match self {
            Self::Domain => "protection domains",
            Self::AddressHandle => "address handles",
            Self::CompletionQueue => "completion queues",
            Self::ReceiveQueue => "shared receive queues",
            Self::QueuePair => "queue pairs",
        }
    }
}

/// Number of existing objects of each kind.
#[derive(Default)]
pub(crate) struct ObjectCounts([AtomicU32; ObjectKind::COUNT]);

/// Reservation for one object; dropping it releases the reservation.
pub(crate) struct ObjectReservation {
    counts: Arc<ObjectCounts>,
    kind: ObjectKind,
}

impl ObjectReservation {
    /// Reserves one of `limit` objects.
    ///
    /// # Errors
    /// Returns an error if `limit` objects exist.
    pub(crate) fn new(
        counts: &Arc<ObjectCounts>,
        kind: ObjectKind,
        operation: &'static str,
        limit: u32,
    ) -> Result<Self> {
        let next = |live: u32| (live < limit).then_some(live + 1);
        match counts.0[kind as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(_) => Ok(Self { counts: counts.clone(), kind }),
            Err(_) => Err(Error::Exhausted {
                operation,
                what: kind.name(),
                limit: limit.into(),
                remedy: "use fewer, or destroy some; query_device returns the limit",
            }),
        }
    }
}

impl Drop for ObjectReservation {
    fn drop(&mut self) {
        self.counts.0[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}
