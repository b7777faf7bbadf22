//! State of a datagram queue pair that its receiver uses.

use std::sync::Arc;

use farcall_stats::Block;

use super::{BlockedSenders, Counters, ReceiverStatus};
use crate::shm_transport::core::ShmCore;

/// Part of a [`super::DatagramCore`] that knows no rings and no receives.
pub(crate) struct ReceiverContext {
    pub(crate) shm: Arc<ShmCore>,
    pub(crate) qpn: u32,
    pub(crate) pd: u32,
    pub(super) blocked_senders: BlockedSenders,
    pub(crate) status: ReceiverStatus,
    pub(crate) stats: Block<Counters>,
}
