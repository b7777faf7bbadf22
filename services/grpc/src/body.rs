//! Bodies received over a connection: responses at a client, requests at a server.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tonic::{Code, Status};

use crate::connection::CallRef;
use crate::deadline::Deadline;

/// A body received over a connection. A client that drops it before its end cancels the call.
#[derive(Default)]
pub struct IncomingBody {
    source: Source,
    deadline: Deadline,
}

#[derive(Default)]
enum Source {
    #[default]
    Empty,
    /// The complete body.
    Complete { data: Bytes, trailers: Option<HeaderMap> },
    /// A response, received in parts.
    Response(CallRef),
    /// A request, received in parts.
    Request(CallRef),
}

impl IncomingBody {
    pub(crate) fn complete(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { source: Source::Complete { data, trailers }, deadline: Deadline::default() }
    }

    pub(crate) fn response(call: CallRef, deadline: Deadline) -> Self {
        Self { source: Source::Response(call), deadline }
    }

    pub(crate) fn request(call: CallRef) -> Self {
        Self { source: Source::Request(call), deadline: Deadline::default() }
    }
}

impl std::fmt::Debug for IncomingBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IncomingBody").finish_non_exhaustive()
    }
}

/// Returns the status of a call whose deadline has passed, at the client.
pub(crate) fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("the deadline of the call has passed; the call may have run")
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let polled = match &mut this.source {
            Source::Empty => return Poll::Ready(None),
            Source::Complete { data, .. } if !data.is_empty() => {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(data)))));
            }
            Source::Complete { trailers, .. } => {
                let trailers = trailers.take();
                this.source = Source::Empty;
                return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
            }
            Source::Response(call) | Source::Request(call) => call.poll_frame(context),
        };
        match polled {
            Poll::Pending if this.deadline.poll(context).is_ready() => {
                this.cancel();
                Poll::Ready(Some(Err(deadline_exceeded())))
            }
            Poll::Ready(Some(Ok(frame))) if frame.is_data() => Poll::Ready(Some(Ok(frame))),
            Poll::Ready(last) => {
                this.source = Source::Empty;
                Poll::Ready(last)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Empty => true,
            Source::Complete { data, trailers } => data.is_empty() && trailers.is_none(),
            _ => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Empty => SizeHint::with_exact(0),
            Source::Complete { data, .. } => SizeHint::with_exact(data.len() as u64),
            _ => SizeHint::default(),
        }
    }
}

impl IncomingBody {
    fn cancel(&mut self) {
        match std::mem::take(&mut self.source) {
            Source::Response(call) => call.reset(Code::Cancelled, "the client gave the call up"),
            Source::Request(call) => call.connection.with(|calls| calls.drop_reader(call.id)),
            _ => {}
        }
    }
}

impl Drop for IncomingBody {
    fn drop(&mut self) {
        self.cancel();
    }
}
