//! Short messages: a request or a response that fits in one frame is encoded in the send buffer and decoded in the
//! receive buffer. This path allocates no memory.

use std::task::{Context, Poll};

use http::HeaderMap;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::Status;

use super::call::RemoteEnd;
use super::{Answer, CallId, Calls, Outbound, Role};
use crate::frame::{Kind, Writer, metadata};
use crate::message::{self, PREFIX_BYTES};

/// Maximum length in bytes of a message, including its prefix, that is encoded in place.
const SHORT_BYTES_MAX: usize = 8 << 10;

/// A response that has arrived completely.
pub(crate) struct CompleteResponse<'a> {
    pub http_status: u16,
    pub metadata: HeaderMap,
    pub data: &'a [u8],
    /// `None` if the call succeeded and the trailers contain nothing else.
    pub trailers: Option<HeaderMap>,
}

/// Result of a wait for a response.
pub(crate) enum ResponseWait<T> {
    /// The complete response arrived: the result of decoding it.
    Complete(T),
    /// The beginning of the response arrived.
    Begun(Box<Answer>),
}

impl Calls {
    /// Returns whether a message can be encoded after the pending output, ahead of the queue.
    fn fits_short(&mut self, id: CallId, message: &impl Message, out: &Outbound) -> bool {
        let len = PREFIX_BYTES + message.encoded_len();
        if len > SHORT_BYTES_MAX || out.is_enough() || self.has_queued() {
            return false;
        }
        self.call(id).is_some_and(|call| {
            let outbox = &call.outbox;
            let is_silent = !call.was_opened && !outbox.is_full && !outbox.is_ended && outbox.reset.is_none();
            is_silent && outbox.window_left as usize >= len
        })
    }

    /// Records that all of this side was composed.
    fn on_all_composed(&mut self, id: CallId) {
        let call = &mut self.table[usize::from(id.number)];
        call.was_opened = true;
        call.outbox.is_ended = true;
        self.release_if_ended(id.number);
    }

    /// Composes the complete request of an open call. Returns `false`, without effect, if the message is too long or
    /// must wait; it is then submitted in parts.
    pub fn compose_request(
        &mut self,
        id: CallId,
        path: &PathAndQuery,
        map: &HeaderMap,
        message: &impl Message,
        out: &mut Outbound,
    ) -> bool {
        if !self.fits_short(id, message, out) {
            return false;
        }
        let Role::Client { numbers, .. } = &mut self.role else { return false };
        let mut writer = Writer::begin(&mut out.head, Kind::Call, id.number);
        writer.path(numbers.name(path));
        writer.block(|out| metadata::write(map, out));
        writer.put_with(|out| message::put(message, out));
        writer.end();
        writer.finish(0);
        self.on_all_composed(id);
        true
    }

    /// Composes the complete response of a call that succeeded. Returns the same as [`Calls::compose_request`].
    pub fn compose_answer(
        &mut self,
        id: CallId,
        map: &HeaderMap,
        message: &impl Message,
        out: &mut Outbound,
    ) -> bool {
        if !self.fits_short(id, message, out) {
            return false;
        }
        let mut writer = Writer::begin(&mut out.head, Kind::Response, id.number);
        writer.u16(200);
        writer.block(|out| metadata::write(map, out));
        writer.block(|out| out.extend_from_slice(&metadata::SUCCESS));
        writer.put_with(|out| message::put(message, out));
        writer.end();
        writer.finish(0);
        self.on_all_composed(id);
        true
    }

    /// Decodes the request of a call that is answered directly. Returns `None` if the client has cancelled the call.
    pub fn read_request<T>(&mut self, id: CallId, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let inbox = &mut self.call(id).filter(|call| !call.was_reset())?.inbox;
        let result = read(&inbox.bytes);
        inbox.discard_bytes();
        Some(result)
    }

    /// Waits for the response. If it has arrived completely, decodes it and ends the call.
    pub fn poll_complete<T>(
        &mut self,
        id: CallId,
        context: &Context<'_>,
        read: impl FnOnce(CompleteResponse<'_>) -> T,
    ) -> Poll<Result<ResponseWait<T>, Status>> {
        let Some(call) = self.call(id) else { return Poll::Ready(Err(self.lost_status())) };
        let inbox = &mut call.inbox;
        let is_complete = matches!(&inbox.ending, Some(ending) if !matches!(ending, RemoteEnd::Reset(_)));
        let Some((http_status, metadata)) = inbox.answer.take_if(|_| is_complete) else {
            return self.poll_answer(id, context).map_ok(|answer| ResponseWait::Begun(Box::new(answer)));
        };
        let trailers = match inbox.ending.take() {
            Some(RemoteEnd::Success) => None,
            Some(ending) => Some(ending.into_trailers()?.unwrap_or_default()),
            None => None,
        };
        let result = read(CompleteResponse { http_status, metadata, data: &inbox.bytes, trailers });
        self.drop_reader(id);
        Poll::Ready(Ok(ResponseWait::Complete(result)))
    }
}
