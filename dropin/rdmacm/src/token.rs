//! Numbers of the connection manager's objects.

/// Number of an object in this process: an endpoint, an accepted socket or an event queue.
pub type Token = u64;

/// Token of the descriptor that wakes the thread.
pub const WAKE: Token = 0;
/// Tokens of the descriptors for messages of other hosts: of queue pair 1, and of the process that forwards them.
pub const ARRIVED: Token = Token::MAX;
pub const FORWARDED: Token = Token::MAX - 1;
/// Token of the timer for the next claim of queue pair 1.
pub const ELECTION: Token = Token::MAX - 2;
