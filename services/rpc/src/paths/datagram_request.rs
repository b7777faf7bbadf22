//! Requests by SEND of a datagram to the one queue pair of the server thread.
//!
//! A datagram may be lost, duplicated, or overtake another one. Its session tag identifies the session; its source and
//! its tail prove that the client of this session sent it. It is copied into its slot of the client's mailbox, where
//! it waits like a WRITE until it is the next message. The receive, which all clients share, is therefore free at
//! once. Only the next number is executed: a request that was executed before is answered again from the slot of its
//! response. A client therefore requests a missing response by repeating its oldest request.

use farcall_link::{PostRefused, Ticket};
use farcall_verbs::Nanos;

use super::RequestPath;
use crate::caller::{CallerState, ClientConnection};
use crate::responder::ServerConnection;
use crate::wire::{FirstWord, RequestHeader};

/// The client sends every request as a datagram.
#[derive(Debug)]
pub struct DatagramRequest;

impl RequestPath for DatagramRequest {
    const AXIS: farcall_link::RequestPath = farcall_link::RequestPath::Datagram;
    const WAKES: bool = true;
    /// A datagram must name its session, because all clients share the queue pair.
    const NAMES_SESSION: bool = true;

    #[inline]
    fn post(end: &mut ClientConnection, message: FirstWord) -> Result<Ticket, PostRefused> {
        end.send_request_datagram(message)
    }

    fn request_missing(caller: &mut CallerState, now: Nanos) {
        caller.request_by_oldest::<Self>(now);
    }

    #[inline]
    fn take(end: &mut ServerConnection, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String> {
        end.take_written(message)
    }
}
