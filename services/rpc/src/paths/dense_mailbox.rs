//! Requests by WRITE into a mailbox, told of by a second WRITE of one byte.
//!
//! A server thread has one byte for each client, side by side (`responder/dense_bytes.rs`): 64 mailboxes without a
//! message cost it one cache line, where each costs a line of its own under [`WriteMailbox`]. The client pays with a
//! second WRITE (RDMA communication patterns, section 8, on L5).
//!
//! The byte is the low one of the message's number. It is a hint: what counts is the message, which is taken and checked
//! as any. So the byte may come first, late, or be wrong; a client that hears nothing wakes the server, which then looks
//! at every mailbox.

use farcall_link::{Piece, PostRefused, Remote, Ticket};

use super::{RequestPath, WriteMailbox};
use crate::caller::ClientEnd;
use crate::responder::ServerEnd;
use crate::wire::{FirstWord, RequestHeader};

/// Each client has a mailbox as under [`WriteMailbox`], and a byte among those of all.
#[derive(Debug)]
pub struct DenseMailbox;

impl RequestPath for DenseMailbox {
    const AXIS: farcall_link::RequestPath = farcall_link::RequestPath::DenseMailbox;
    const WAKES: bool = false;

    /// The message, then its number's low byte, from where the message begins: the slot keeps both until they have left.
    #[inline]
    fn post(end: &mut ClientEnd, message: FirstWord) -> Result<Ticket, PostRefused> {
        let written = WriteMailbox::post(end, message)?;
        let Some(byte) = &end.welcome.mailbox_byte else { return Ok(written) };
        let piece = Piece { region: end.local_id, offset: end.requests.offset(message.seq), len_bytes: 1 };
        let told = end.connection.write(piece, Remote { grant: byte, offset: 0 })?;
        Ok(written.max(told))
    }

    #[inline]
    fn take(end: &mut ServerEnd, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String> {
        WriteMailbox::take(end, message)
    }
}
