//! Reasons of rejections: numbers that programs receive as the status of an event.

/// A REJ: the listener's host has reached its maximum number of connections, of this peer or of all peers.
pub const NO_RESOURCES: u16 = 3;
/// A REJ of the peer's connection manager: its program did not reply in time.
pub const TIMEOUT: u16 = 4;
/// A REJ of a REP: the requester no longer has the connection.
pub const INVALID_COMMUNICATION_ID: u16 = 6;
/// A REJ: the address has no listener.
pub const INVALID_SERVICE_ID: u16 = 8;
/// A REJ by the program, or because it exited.
pub const CONSUMER_DEFINED: u16 = 28;

/// A SIDR REP that contains the queue pair.
pub const SIDR_SUCCESS: u8 = 0;
/// A SIDR REP: the address has no listener.
pub const SIDR_UNSUPPORTED: u8 = 1;
/// A SIDR REP: the program rejected the request.
pub const SIDR_REJECT: u8 = 2;
