//! Requests by SEND into receives that the server has posted.

use farcall_link::{PostRefused, Ticket};

use super::RequestPath;
use crate::caller::ClientConnection;
use crate::responder::ServerConnection;
use crate::wire::{FirstWord, RequestHeader};

/// Each client's mailbox is posted as receives. A completion announces a message, and wakes a sleeping server.
#[derive(Debug)]
pub struct SendRequest;

impl RequestPath for SendRequest {
    const AXIS: farcall_link::RequestPath = farcall_link::RequestPath::Send;
    const WAKES: bool = true;

    #[inline]
    fn post(end: &mut ClientConnection, message: FirstWord) -> Result<Ticket, PostRefused> {
        end.send_request(message)
    }

    #[inline]
    fn take(end: &mut ServerConnection, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String> {
        end.take_sent(message)
    }
}
