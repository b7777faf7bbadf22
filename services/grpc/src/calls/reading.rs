//! Tasks that wait for received data.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tonic::Status;

use super::call::RemoteEnd;
use super::{CallId, Calls};

/// The beginning of a response, and the rest, if it has arrived.
pub(crate) struct Answer {
    pub http_status: u16,
    pub metadata: HeaderMap,
    pub rest: Option<(Bytes, Option<HeaderMap>)>,
}

impl Calls {
    pub(super) fn lost_status(&self) -> Status {
        self.broken.clone().unwrap_or_else(|| Status::cancelled("the call has ended"))
    }

    /// Waits for the response to begin. If the complete response has arrived, the call has ended.
    pub fn poll_answer(&mut self, id: CallId, context: &Context<'_>) -> Poll<Result<Answer, Status>> {
        let Some(call) = self.call(id) else { return Poll::Ready(Err(self.lost_status())) };
        let inbox = &mut call.inbox;
        if let Some((http_status, metadata)) = inbox.answer.take() {
            let trailers = match inbox.ending.take_if(|ending| !matches!(ending, RemoteEnd::Reset(_))) {
                None => return Poll::Ready(Ok(Answer { http_status, metadata, rest: None })),
                Some(ending) => ending.into_trailers()?,
            };
            let rest = Some((Bytes::from(std::mem::take(&mut inbox.bytes)), trailers));
            self.drop_reader(id);
            return Poll::Ready(Ok(Answer { http_status, metadata, rest }));
        }
        if let Some(RemoteEnd::Reset(status)) = inbox.ending.take() {
            self.drop_reader(id);
            return Poll::Ready(Err(status));
        }
        inbox.wait(context);
        Poll::Pending
    }

    /// Waits for the next bytes, the trailers or the end.
    pub fn poll_frame(
        &mut self,
        id: CallId,
        context: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(call) = self.call(id) else { return Poll::Ready(Some(Err(self.lost_status()))) };
        let inbox = &mut call.inbox;
        if !inbox.has_reader {
            return Poll::Ready(Some(Err(self.lost_status())));
        }
        if !inbox.bytes.is_empty() {
            let bytes = Bytes::from(std::mem::take(&mut inbox.bytes));
            self.on_read(id.number, bytes.len() as u32);
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let frame = match inbox.ending.take() {
            None if !inbox.is_ended => {
                inbox.wait(context);
                return Poll::Pending;
            }
            Some(ending) => ending.into_trailers().transpose().map(|trailers| trailers.map(Frame::trailers)),
            None => None,
        };
        self.drop_reader(id);
        Poll::Ready(frame)
    }

    /// Called when the reader of this call has gone. Releases the number if both sides have ended.
    pub fn drop_reader(&mut self, id: CallId) {
        let Some(call) = self.call(id) else { return };
        call.inbox.has_reader = false;
        let unread = call.inbox.discard_bytes();
        self.on_read(id.number, unread);
        self.release_if_ended(id.number);
    }
}
