//! Reasons of rejections: numbers that programs see as the status of an event.

/// A REJ: the listener's side has as many connections of this peer, or of all, as it takes.
pub const NO_RESOURCES: u16 = 3;
/// A REJ of the peer's connection manager: its program did not answer in time.
pub const TIMEOUT: u16 = 4;
/// A REJ of a REP: who asked has no such connection any more.
pub const INVALID_COMMUNICATION_ID: u16 = 6;
/// A REJ: no listener has the address.
pub const INVALID_SERVICE_ID: u16 = 8;
/// A REJ of the program, or of its end.
pub const CONSUMER_DEFINED: u16 = 28;

/// A SIDR REP: the queue pair is in it.
pub const SIDR_SUCCESS: u8 = 0;
/// A SIDR REP: no listener has the address.
pub const SIDR_UNSUPPORTED: u8 = 1;
/// A SIDR REP of the program.
pub const SIDR_REJECT: u8 = 2;
