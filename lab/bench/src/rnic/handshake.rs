//! Messages that the two ends exchange over their control socket.

use crate::peer::{Control, PeerError};
pub(super) use crate::peer::{receive, send};
use farcall_link::RemoteRegion;
use farcall_link::bootstrap::QpInfo;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Data that one end needs about the other to connect to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndpointInfo {
    /// Memory of this end; it begins with the slots for incoming messages.
    pub(super) memory: RemoteRegion,
    /// Distance between two slots for incoming messages in bytes; both ends must use the same.
    pub(super) stride_bytes: usize,
    /// The queue pairs of each group.
    pub(super) qps: Vec<Vec<QpInfo>>,
}

/// Message of an end that is connected and has posted its receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ready {
    /// `true` if the sender's memory may be polled for the last byte of a WRITE.
    pub(super) places_in_order: bool,
    /// Messages of one queue pair for which it has receives, regardless of the traffic on the others.
    pub(super) receives_each: u32,
}

/// Request of the initiator to end the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stop;

/// Counts of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TargetCounts {
    /// Number of messages that consumed a receive.
    pub(super) received: u64,
    /// First 8 bytes of its memory, which atomics modify.
    pub(super) first_word: u64,
}

/// Sends `mine` and receives the value of the other end.
pub(super) fn exchange<T: Serialize + DeserializeOwned>(control: &Control, mine: &T) -> Result<T, PeerError> {
    send(control, mine)?;
    receive(control)
}
