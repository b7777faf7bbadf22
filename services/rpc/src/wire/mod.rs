//! Formats on the wire: slots, headers, tails, immediate data.
//!
//! A message is `[header][payload][padding to 8][tail]` at the start of a slot. The first word of the header contains
//! the message's number and length. The tail is a keyed function of the connection and the sequence number, so stale
//! payload cannot be mistaken for it. A message is complete when both match; WRITEs that are placed in order store the
//! tail last.

pub mod batch;
pub mod collected;
mod header;
mod imm;
mod layout;
mod seq;
mod status;
mod tail;

pub use collected::{Collected, CollectedResult};
pub(crate) use collected::{collected_bytes, push_collected, take_collected};
pub use header::{
    COMPACT_HEADER_BYTES, FirstWord, Form, HeaderError, Mode, REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES,
    RequestFlags, RequestHeader, ResponseFlags, ResponseHeader, TIME_UNIT_NS, VERSION,
};
pub use imm::Imm;
pub use layout::{Slots, TAIL_BYTES, message_bytes, padded};
pub use seq::{CallBase, Seq};
pub use status::Status;
pub use tail::TailKey;
