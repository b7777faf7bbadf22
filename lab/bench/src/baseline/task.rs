//! Task of the other end of a limit.

use serde::{Deserialize, Serialize};

/// Bytes transferred in each direction of a round trip.
pub const PAYLOAD_LEN_BYTES: usize = 64;

/// Wait strategy of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// Reads repeatedly.
    Spin,
    /// Sleeps in `epoll_wait`.
    Epoll,
}

/// Method by which the other end replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// In a shared cache line. Descriptor: the memory.
    SharedLine,
    /// On a connected stream socket. Descriptor: the socket.
    Echo(Waiting),
    /// From one eventfd to another. Two descriptors.
    Eventfd,
}
