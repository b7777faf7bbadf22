//! What the other end of a bare limit does.

use serde::{Deserialize, Serialize};

/// Bytes that travel each way in the round trips.
pub const PAYLOAD_LEN_BYTES: usize = 64;

/// How an end waits for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// Reads again and again.
    Spin,
    /// Sleeps in `epoll_wait`.
    Epoll,
}

/// How the other end answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// In a shared cache line. One descriptor: the memory.
    SharedLine,
    /// On a connected stream socket. One descriptor: the socket.
    Echo(Waiting),
    /// One eventfd with another. Two descriptors.
    Eventfd,
}
