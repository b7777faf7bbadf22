//! What the two ends tell each other over their control socket.

use crate::peer::{Control, PeerError};
pub(super) use crate::peer::{receive, send};
use farcall_link::RemoteRegion;
use farcall_link::bootstrap::QpInfo;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// What one end must know of the other to connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Card {
    /// This end's memory, with the places for incoming messages at its start.
    pub(super) memory: RemoteRegion,
    /// Bytes from one place for an incoming message to the next; both ends must agree.
    pub(super) stride_bytes: usize,
    /// The queue pairs of each lane.
    pub(super) qps: Vec<Vec<QpInfo>>,
}

/// This end is connected and has posted its receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ready {
    /// Whether its memory may be polled for the last byte of a WRITE.
    pub(super) places_in_order: bool,
    /// Messages of one queue pair that it has receives for, whatever comes over the others.
    pub(super) receives_each: u32,
}

/// The initiator asks for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stop;

/// What the target saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Messages that consumed a receive.
    pub(super) received: u64,
    /// The first 8 bytes of its memory: what atomics left there.
    pub(super) first_word: u64,
}

/// Sends `mine` and receives the other end's.
pub(super) fn exchange<T: Serialize + DeserializeOwned>(control: &Control, mine: &T) -> Result<T, PeerError> {
    send(control, mine)?;
    receive(control)
}
