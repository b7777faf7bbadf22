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
        let piece = end.seal(message);
        end.connection.send(piece)
    }

    /// A received SEND is complete: if it is not the next message, or is truncated, it never will be.
    #[inline]
    fn take(end: &mut ServerConnection, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String> {
        let Some(at) = end.inbox.front() else { return Ok(None) };
        let seq = end.session.expect;
        let first = FirstWord::decode(end.session.mailbox.load_acquire(at)).filter(|first| first.seq == seq);
        let header = match first {
            Some(first) => end.take_at(at, first, message)?,
            None => None,
        };
        end.dedicated_qp.iter_mut().for_each(|qp| end.inbox.repost(&mut qp.connection));
        header
            .map(Some)
            .ok_or_else(|| format!("message {}: what was sent is another one, or not whole", seq.0))
    }
}
