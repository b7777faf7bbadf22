//! The request paths and response paths of a [`Plan`](farcall_link::Plan), one file each, with the client's and the
//! server's part.
//!
//! [`Caller`](crate::Caller) and [`Responder`](crate::Responder) are generic over both, so per-message code has no
//! branch on configuration. [`for_plan!`] is the only conversion from a plan to types. It is evaluated once per
//! connection at the client and once per batch at the server.

mod datagram_reply;
mod datagram_request;
mod dense_mailbox;
mod fetch;
mod fetch_then_reply;
mod notify_then_fetch;
mod send_reply;
mod send_request;
mod server_reply;
mod write_mailbox;

use std::marker::PhantomData;

use farcall_link::{Plan, PostRefused, Ticket, Transport};
use farcall_verbs::Nanos;

use crate::caller::{CallerState, ClientConnection, Message};
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::responder::{ServerConnection, SharedUdQp};
use crate::tune::Tuner;
use crate::wire::{FirstWord, Mode, RequestHeader, ResponseHeader, Seq};
pub use datagram_reply::DatagramReply;
pub use datagram_request::DatagramRequest;
pub use dense_mailbox::DenseMailbox;
pub use fetch::Fetch;
pub use fetch_then_reply::FetchThenReply;
pub(crate) use notify_then_fetch::NOTICE_SLOT_BYTES;
pub use notify_then_fetch::NotifyThenFetch;
pub use send_reply::SendReply;
pub use send_request::SendRequest;
pub use server_reply::ServerReply;
pub use write_mailbox::WriteMailbox;

/// How requests reach the server.
pub trait RequestPath: Send + 'static {
    /// Value of the plan's axis.
    const AXIS: farcall_link::RequestPath;
    /// Whether a request wakes a sleeping server.
    const WAKES: bool;
    /// Whether every request must name its session, so that none is of compact form.
    const NAMES_SESSION: bool = false;

    /// Client: completes the message that was composed in its slot, and posts it.
    fn post(end: &mut ClientConnection, message: FirstWord) -> Result<Ticket, PostRefused>;

    /// Client, over a transport that loses messages: requests the missing responses.
    fn request_missing(caller: &mut CallerState, now: Nanos)
    where
        Self: Sized,
    {
        caller.request_responses::<Self>(now);
    }

    /// Server: copies the next message to `message` if it is complete; otherwise returns `None`. An error is a
    /// violation of the protocol.
    fn take(end: &mut ServerConnection, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String>;
}

/// How results reach the client.
pub trait ResponsePath: Send + 'static {
    /// Value of the plan's axis.
    const AXIS: farcall_link::ResponsePath;
    /// Whether results are fetched by READ, so that R and F apply.
    const FETCHES: bool;
    /// Whether results, or notices of them, arrive as SENDs, whose completions announce them and wake a sleeping
    /// client.
    const SENDS: bool = false;

    /// Client: creates the path's state for a new caller.
    fn new(config: &CallerConfig) -> Self;

    /// Client: returns the mode flag of a method's next request.
    fn mode(&mut self, method: u16) -> Mode;

    /// Client: returns the mode flag of a collect request. `is_slow`: more than R requests found no answer.
    #[inline]
    fn collect_mode(&mut self, _is_slow: bool) -> Mode {
        self.mode(0)
    }

    /// Client: updates the state of the method, and of R and F, from a result.
    #[inline]
    fn learn(&mut self, _: &Message, _: &ResponseHeader, _: &mut Tuner, _: &Counters) {}

    /// Client: delivers the oldest message's response if it has arrived other than by a fetch. Returns whether
    /// it did.
    #[inline]
    fn receive(&mut self, caller: &mut CallerState) -> bool
    where
        Self: Sized,
    {
        caller.receive_written(self)
    }

    /// Server: returns whether slot `seq` and a send queue have room for a response.
    #[inline]
    fn can_respond(end: &ServerConnection, _: &SharedUdQp, seq: Seq) -> bool {
        end.can_answer(seq)
    }

    /// Server: sends or stores the response in slot `seq`. `mode` is the request's flag. `push` is `true` if the
    /// client sleeps and has requested a wake-up, or repeats its request.
    fn respond(
        end: &mut ServerConnection,
        shared_ud_qp: &mut SharedUdQp,
        seq: Seq,
        mode: Mode,
        push: bool,
        counters: &Counters,
    );
}

/// A request path and a response path. [`ServerReply`], [`SendReply`], [`Fetch`] and [`FetchThenReply`] alone mean
/// requests by WRITE with that response path. [`BySend`] of one of them means requests by SEND, [`WithDoorbellByte`]
/// requests announced by a byte. [`OverUc`] means UC, [`OverUd`] UD.
pub trait Path: Send + 'static {
    /// The transport of the queue pairs.
    const TRANSPORT: Transport;
    /// How requests reach the server.
    type Request: RequestPath;
    /// How results reach the client.
    type Response: ResponsePath;
    /// Whether the client has a timer for silence: the server may sleep, or messages may be lost.
    const MINDS_SILENCE: bool = !Self::Request::WAKES || !Self::TRANSPORT.is_reliable();

    /// Returns `plan` with these paths and this transport.
    #[must_use]
    fn plan(plan: Plan) -> Plan {
        let (request, response) = (Self::Request::AXIS, Self::Response::AXIS);
        Plan { request, response, transport: Self::TRANSPORT, ..plan }
    }
}

impl<P: ResponsePath> Path for P {
    const TRANSPORT: Transport = Transport::Rc;
    type Request = WriteMailbox;
    type Response = P;
}

/// Requests by SEND, results by `P`.
#[derive(Debug)]
pub struct BySend<P>(PhantomData<P>);

impl<P: ResponsePath> Path for BySend<P> {
    const TRANSPORT: Transport = Transport::Rc;
    type Request = SendRequest;
    type Response = P;
}

/// Requests by WRITE, announced by a byte; results by `P`.
#[derive(Debug)]
pub struct WithDoorbellByte<P>(PhantomData<P>);

impl<P: ResponsePath> Path for WithDoorbellByte<P> {
    const TRANSPORT: Transport = Transport::Rc;
    type Request = DenseMailbox;
    type Response = P;
}

/// The same paths over UC.
#[derive(Debug)]
pub struct OverUc<P>(PhantomData<P>);

impl<P: Path> Path for OverUc<P> {
    const TRANSPORT: Transport = Transport::Uc;
    type Request = P::Request;
    type Response = P::Response;
}

/// Requests as datagrams, results by `P`.
#[derive(Debug)]
pub struct OverUd<P>(PhantomData<P>);

impl<P: ResponsePath> Path for OverUd<P> {
    const TRANSPORT: Transport = Transport::Ud;
    type Request = DatagramRequest;
    type Response = P;
}

/// Evaluates `$body` with `$path` as the type of the plan's paths.
macro_rules! for_plan {
    ($plan:expr, |$path:ident| $body:expr) => {
        $crate::paths::for_plan!(@table $plan, $path, $body,
            (Rc, WriteMailbox, Write) => ServerReply,
            (Rc, WriteMailbox, Fetch) => Fetch,
            (Rc, WriteMailbox, FetchThenReply) => FetchThenReply,
            (Rc, WriteMailbox, Send) => SendReply,
            (Rc, DenseMailbox, Write) => WithDoorbellByte<$crate::paths::ServerReply>,
            (Rc, Send, Write) => BySend<$crate::paths::ServerReply>,
            (Rc, Send, Send) => BySend<$crate::paths::SendReply>,
            (Rc, Send, NotifyThenFetch) => BySend<$crate::paths::NotifyThenFetch>,
            (Uc, WriteMailbox, Write) => OverUc<$crate::paths::ServerReply>,
            (Uc, WriteMailbox, Datagram) => OverUc<$crate::paths::DatagramReply>,
            (Ud, Datagram, Datagram) => OverUd<$crate::paths::DatagramReply>,
        )
    };
    (@table $plan:expr, $path:ident, $body:expr,
        $(($transport:ident, $request:ident, $response:ident) => $Path:ident $(<$Results:ty>)?,)*
    ) => {
        match ($plan.transport, $plan.request, $plan.response) {
            $((
                farcall_link::Transport::$transport,
                farcall_link::RequestPath::$request,
                farcall_link::ResponsePath::$response,
            ) => {
                type $path = $crate::paths::$Path $(<$Results>)?;
                Some($body)
            })*
            _ => None,
        }
    };
}
pub(crate) use for_plan;
