//! The request paths and response paths of a [`Plan`](farcall_link::Plan), one file each, with the client's and the
//! server's half.
//!
//! [`Caller`](crate::Caller) and [`Responder`](crate::Responder) are generic over both, so per-message code has no
//! branch on configuration; [`for_plan!`] is the one place that goes from a plan to types, once a connection at the
//! client and once a batch at the server.

mod datagram_reply;
mod datagram_request;
mod dense_mailbox;
mod fetch;
mod fetch_then_reply;
mod notice_then_fetch;
mod send_reply;
mod send_request;
mod server_reply;
mod write_mailbox;

use std::marker::PhantomData;

use farcall_link::{Plan, PostRefused, Ticket, Transport};
use farcall_verbs::Nanos;

use crate::caller::{CallerState, ClientEnd, Message};
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::responder::{ServerEnd, ThreadPair};
use crate::tune::Tuner;
use crate::wire::{FirstWord, Mode, RequestHeader, ResponseHeader, Seq};
pub(crate) use datagram_reply::Arrivals;
pub use datagram_reply::DatagramReply;
pub(crate) use datagram_request::Arrived;
pub use datagram_request::DatagramRequest;
pub use dense_mailbox::DenseMailbox;
pub use fetch::Fetch;
pub use fetch_then_reply::FetchThenReply;
pub(crate) use notice_then_fetch::NOTICE_SLOT_BYTES;
pub use notice_then_fetch::NoticeThenFetch;
pub use send_reply::SendReply;
pub use send_request::SendRequest;
pub use server_reply::ServerReply;
pub use write_mailbox::WriteMailbox;

/// How requests reach the server.
pub trait RequestPath: Send + 'static {
    /// The axis' value.
    const AXIS: farcall_link::RequestPath;
    /// Whether a request wakes a server that sleeps.
    const WAKES: bool;
    /// Whether every request has to name its session, so that none is of compact form.
    const NAMES_SESSION: bool = false;

    /// Client: ends the message that was composed in its slot, and hands it to the server.
    fn post(end: &mut ClientEnd, message: FirstWord) -> Result<Ticket, PostRefused>;

    /// Client, over a transport that loses messages: asks for the responses that have not come.
    fn ask(caller: &mut CallerState, now: Nanos)
    where
        Self: Sized,
    {
        caller.ask_for_responses::<Self>(now);
    }

    /// Server: copies the next message to `message` if it is whole; else `None`. An error is a breach of the protocol.
    fn take(end: &mut ServerEnd, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String>;
}

/// How results come back.
pub trait ResponsePath: Send + 'static {
    /// The axis' value.
    const AXIS: farcall_link::ResponsePath;
    /// Whether results are fetched by READ, so that R and F mean something.
    const FETCHES: bool;
    /// Whether results, or notices of them, come as SENDs: completions tell of them, and wake a client that sleeps.
    const SENDS: bool = false;

    /// Client: the state of a new caller.
    fn new(config: &CallerConfig) -> Self;

    /// Client: the mode flag of a method's next request.
    fn mode(&mut self, method: u16) -> Mode;

    /// Client: the mode flag of a question for answers that come later. `is_in_vain`: more than R were in vain.
    #[inline]
    fn mode_of_question(&mut self, _is_in_vain: bool) -> Mode {
        self.mode(0)
    }

    /// Client: what a result teaches about its method, and about R and F.
    #[inline]
    fn learn(&mut self, _: &Message, _: &ResponseHeader, _: &mut Tuner, _: &Counters) {}

    /// Client: takes the oldest message's response, one that is not fetched, if it is there. Returns whether it did.
    #[inline]
    fn receive(&mut self, caller: &mut CallerState) -> bool
    where
        Self: Sized,
    {
        caller.receive_written(self)
    }

    /// Server: whether slot `seq` and a send queue have room for a response.
    #[inline]
    fn can_respond(end: &ServerEnd, _: &ThreadPair, seq: Seq) -> bool {
        end.can_answer(seq)
    }

    /// Server: hands over the response in slot `seq`. `mode` is the request's flag; `push`: the client sleeps and has
    /// asked to be woken, or it asks once more.
    fn respond(
        end: &mut ServerEnd,
        thread_pair: &mut ThreadPair,
        seq: Seq,
        mode: Mode,
        push: bool,
        counters: &Counters,
    );
}

/// A request path and a response path. [`ServerReply`], [`SendReply`], [`Fetch`] and [`FetchThenReply`] alone stand for
/// requests by WRITE and results in this way; [`BySend`] of one of them for requests by SEND, [`ByByte`] for requests
/// that a byte tells of; [`OverUc`] for UC, [`OverUd`] for UD.
pub trait Path: Send + 'static {
    /// The transport of the queue pairs.
    const TRANSPORT: Transport;
    /// How requests reach the server.
    type Request: RequestPath;
    /// How results come back.
    type Response: ResponsePath;
    /// Whether the client has to end a silence: the server may sleep, or messages may be lost.
    const MINDS_SILENCE: bool = !Self::Request::WAKES || !Self::TRANSPORT.is_reliable();

    /// A plan with these paths and this transport.
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

/// Requests by SEND, results as `P` says.
#[derive(Debug)]
pub struct BySend<P>(PhantomData<P>);

impl<P: ResponsePath> Path for BySend<P> {
    const TRANSPORT: Transport = Transport::Rc;
    type Request = SendRequest;
    type Response = P;
}

/// Requests by WRITE and told of by a byte, results as `P` says.
#[derive(Debug)]
pub struct ByByte<P>(PhantomData<P>);

impl<P: ResponsePath> Path for ByByte<P> {
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

/// Requests as datagrams, results as `P` says.
#[derive(Debug)]
pub struct OverUd<P>(PhantomData<P>);

impl<P: ResponsePath> Path for OverUd<P> {
    const TRANSPORT: Transport = Transport::Ud;
    type Request = DatagramRequest;
    type Response = P;
}

/// Evaluates `$body` with `$path` as the type of a plan's paths.
macro_rules! for_plan {
    ($plan:expr, |$path:ident| $body:expr) => {
        $crate::paths::for_plan!(@table $plan, $path, $body,
            (Rc, WriteMailbox, Write) => ServerReply,
            (Rc, WriteMailbox, Fetch) => Fetch,
            (Rc, WriteMailbox, FetchThenReply) => FetchThenReply,
            (Rc, WriteMailbox, Send) => SendReply,
            (Rc, DenseMailbox, Write) => ByByte<$crate::paths::ServerReply>,
            (Rc, Send, Write) => BySend<$crate::paths::ServerReply>,
            (Rc, Send, Send) => BySend<$crate::paths::SendReply>,
            (Rc, Send, NoticeThenFetch) => BySend<$crate::paths::NoticeThenFetch>,
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
