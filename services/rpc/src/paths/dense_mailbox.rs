//! Requests by WRITE into a mailbox, announced by a second WRITE of one byte.
//!
//! A server thread has an array with one byte for each client (`responder/doorbell_bytes.rs`). 64 mailboxes without a
//! message cost it one cache line, whereas under [`super::WriteMailbox`] each costs a line of its own. The client pays with a
//! second WRITE (RDMA communication patterns, section 8, on L5).
//!
//! The byte is the low byte of the message's number. It is only a hint: the message itself is read and checked as
//! under [`super::WriteMailbox`]. The byte may therefore arrive before the message, arrive late, or be wrong. A client that
//! receives no response wakes the server, which then polls every mailbox.

use farcall_link::{PostRefused, Ticket};

use super::RequestPath;
use crate::caller::ClientConnection;
use crate::responder::ServerConnection;
use crate::wire::{FirstWord, RequestHeader};

/// Each client has a mailbox as under [`super::WriteMailbox`], and one byte in the array of all clients.
#[derive(Debug)]
pub struct DenseMailbox;

impl RequestPath for DenseMailbox {
    const AXIS: farcall_link::RequestPath = farcall_link::RequestPath::DenseMailbox;
    const WAKES: bool = false;

    /// Writes the message, and then the low byte of its number, from the start of the message. The slot is retained
    /// until both WRITEs have completed.
    #[inline]
    fn post(end: &mut ClientConnection, message: FirstWord) -> Result<Ticket, PostRefused> {
        let written = end.write_request(message)?;
        end.announce_request(message.seq, written)
    }

    #[inline]
    fn take(end: &mut ServerConnection, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String> {
        end.take_written(message)
    }
}
