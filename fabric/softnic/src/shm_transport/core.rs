//! State of the process that its queue pairs and shared receive queues use.

use farcall_shm::Mutex;

use super::segments::Segments;
use super::suspended_access::SuspendedAccesses;
use crate::process::Process;

/// Part of [`super::ShmTransport`] that knows no queue pairs.
pub(crate) struct ShmCore {
    pub(crate) process: Process,
    pub(crate) pair_memory: Segments,
    pub(crate) suspended: SuspendedAccesses,
    /// Serializes the accesses that the service thread executes for peers.
    pub(crate) access_turn: Mutex<()>,
}
