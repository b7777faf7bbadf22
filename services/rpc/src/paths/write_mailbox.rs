//! Requests by WRITE into a mailbox of slots, which the server polls.

use farcall_link::{PostRefused, Ticket};

use super::RequestPath;
use crate::caller::ClientConnection;
use crate::responder::ServerConnection;
use crate::wire::{FirstWord, RequestHeader};

/// Each client has a mailbox in the server's memory, with one slot for each message of its window.
#[derive(Debug)]
pub struct WriteMailbox;

impl RequestPath for WriteMailbox {
    const AXIS: farcall_link::RequestPath = farcall_link::RequestPath::WriteMailbox;
    const WAKES: bool = false;

    /// Posts one WRITE of exactly the message.
    #[inline]
    fn post(end: &mut ClientConnection, message: FirstWord) -> Result<Ticket, PostRefused> {
        end.write_request(message)
    }

    #[inline]
    fn take(end: &mut ServerConnection, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String> {
        end.take_written(message)
    }
}
