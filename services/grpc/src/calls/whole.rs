//! Short messages: a request or an answer that is one frame is made where it is sent, and read where it came. Nothing of
//! it is allocated here.

use std::task::{Context, Poll};

use http::HeaderMap;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::Status;

use super::call::Ending;
use super::{Answer, CallId, Calls, Outbound, Role};
use crate::frame::{Kind, Writer, metadata};
use crate::message::{self, PREFIX_BYTES};

/// The longest message, with its prefix, that is made in place.
const SHORT_BYTES_MAX: usize = 8 << 10;

/// An answer that has come.
pub(crate) struct Whole<'a> {
    pub http_status: u16,
    pub metadata: HeaderMap,
    pub data: &'a [u8],
    /// `None` if the call succeeded and nothing else was said.
    pub trailers: Option<HeaderMap>,
}

/// What a wait for an answer brought.
pub(crate) enum Came<T> {
    /// All of it at once, and what became of it.
    Whole(T),
    /// Its beginning.
    Part(Box<Answer>),
}

impl Calls {
    /// Whether a message can be made behind what waits to be sent, and out of turn.
    fn takes_short(&mut self, id: CallId, message: &impl Message, out: &Outbound) -> bool {
        let len = PREFIX_BYTES + message.encoded_len();
        if len > SHORT_BYTES_MAX || out.is_enough() || self.has_turns() {
            return false;
        }
        self.call(id).is_some_and(|call| {
            let outbox = &call.outbox;
            let is_silent = !call.was_opened && !outbox.is_full && !outbox.is_ended && outbox.reset.is_none();
            is_silent && outbox.window_left as usize >= len
        })
    }

    /// This side of the call has said everything.
    fn said_all(&mut self, id: CallId) {
        let call = &mut self.table[usize::from(id.number)];
        call.was_opened = true;
        call.outbox.is_ended = true;
        self.release_if_over(id.number);
    }

    /// Makes the whole request of a call that was opened. Returns whether it did: what is long, or has to wait, is
    /// submitted in parts.
    pub fn compose_request(
        &mut self,
        id: CallId,
        path: &PathAndQuery,
        map: &HeaderMap,
        message: &impl Message,
        out: &mut Outbound,
    ) -> bool {
        if !self.takes_short(id, message, out) {
            return false;
        }
        let Role::Client { numbers, .. } = &mut self.role else { return false };
        let mut writer = Writer::begin(&mut out.head, Kind::Call, id.number);
        writer.path(numbers.name(path));
        writer.block(|out| metadata::write(map, out));
        writer.put_with(|out| message::put(message, out));
        writer.end();
        writer.finish(0);
        self.said_all(id);
        true
    }

    /// Makes the whole answer of a call that succeeded. Returns as [`Calls::compose_request`].
    pub fn compose_answer(
        &mut self,
        id: CallId,
        map: &HeaderMap,
        message: &impl Message,
        out: &mut Outbound,
    ) -> bool {
        if !self.takes_short(id, message, out) {
            return false;
        }
        let mut writer = Writer::begin(&mut out.head, Kind::Response, id.number);
        writer.u16(200);
        writer.block(|out| metadata::write(map, out));
        writer.block(|out| out.extend_from_slice(&metadata::SUCCESS));
        writer.put_with(|out| message::put(message, out));
        writer.end();
        writer.finish(0);
        self.said_all(id);
        true
    }

    /// Reads the request of a call that is answered directly; `None` if the client has given it up.
    pub fn read_request<T>(&mut self, id: CallId, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let inbox = &mut self.call(id).filter(|call| !call.has_come_to_nothing())?.inbox;
        let result = read(&inbox.bytes);
        inbox.forget_bytes();
        Some(result)
    }

    /// Waits for the answer, and reads it if all of it has come: the call is over then.
    pub fn poll_whole<T>(
        &mut self,
        id: CallId,
        context: &Context<'_>,
        read: impl FnOnce(Whole<'_>) -> T,
    ) -> Poll<Result<Came<T>, Status>> {
        let Some(call) = self.call(id) else { return Poll::Ready(Err(self.gone())) };
        let inbox = &mut call.inbox;
        let is_whole = matches!(&inbox.ending, Some(ending) if !matches!(ending, Ending::Reset(_)));
        let Some((http_status, metadata)) = inbox.answer.take_if(|_| is_whole) else {
            return self.poll_answer(id, context).map_ok(|answer| Came::Part(Box::new(answer)));
        };
        let trailers = match inbox.ending.take() {
            Some(Ending::Success) => None,
            Some(ending) => Some(ending.into_trailers()?.unwrap_or_default()),
            None => None,
        };
        let result = read(Whole { http_status, metadata, data: &inbox.bytes, trailers });
        self.leave_unread(id);
        Poll::Ready(Ok(Came::Whole(result)))
    }
}
