//! A call of a client, until its response begins.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use http::{HeaderMap, Response, StatusCode};
use tonic::body::Body;
use tonic::{Code, Status};

use super::channel::Inner;
use crate::body::{IncomingBody, deadline_exceeded};
use crate::calls::{Answer, InitialHeaders, LocalEnd, path_of};
use crate::connection::CallRef;
use crate::deadline::Deadline;
use crate::frame::metadata::{METADATA_BYTES_MAX, weight};
use crate::pump;

type Beginning = Pin<Box<dyn Future<Output = Result<CallRef, Status>> + Send>>;
type Sending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Future of the response of a call. Dropping it before the response begins cancels the call.
pub struct ResponseFuture {
    stage: Stage,
    deadline: Deadline,
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// The request to send.
struct Unsent {
    path: PathAndQuery,
    metadata: HeaderMap,
    body: Body,
}

enum Stage {
    /// Waits for a connection or a permit.
    Beginning(Arc<Inner>, Option<Beginning>, Box<Unsent>),
    Waiting(CallRef),
    /// The request cannot be sent.
    Refused(Status),
    Done,
}

impl ResponseFuture {
    pub(super) fn new(inner: Arc<Inner>, request: http::Request<Body>) -> Self {
        let (parts, body) = request.into_parts();
        let deadline = Deadline::of(&parts.headers);
        let stage = match check_metadata(&parts.headers).and_then(|()| path_of(&parts.uri)) {
            Ok(path) => {
                let unsent = Box::new(Unsent { path, metadata: parts.headers, body });
                Stage::Beginning(inner, None, unsent)
            }
            Err(why) => Stage::Refused(why),
        };
        Self { stage, deadline }
    }
}

/// Returns an error if the metadata cannot be sent.
pub(super) fn check_metadata(metadata: &HeaderMap) -> Result<(), Status> {
    let len = weight(metadata);
    if len <= METADATA_BYTES_MAX {
        return Ok(());
    }
    let why = format!(
        "the call's metadata, with 32 bytes for each entry, exceeds {METADATA_BYTES_MAX} bytes: {len}"
    );
    Err(Status::resource_exhausted(why))
}

/// Guard of the task that sends the request. If the stream of requests panics or its runtime ends, the call ends.
struct Sender(CallRef);

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.connection.with(|calls| calls.on_sender_stopped(self.0.id));
    }
}

/// Sends the request: the parts that are ready immediately, the rest from a spawned task.
fn send(call: CallRef, unsent: Unsent, context: &mut Context<'_>) {
    let mut sending: Sending = Box::pin(async move {
        let sender = Sender(call);
        let headers = InitialHeaders::Call(unsent.path, unsent.metadata);
        if let Err(why) = pump::send(&sender.0, headers, unsent.body, || LocalEnd::End).await {
            // Has no effect if the call has already ended.
            sender.0.connection.with(|calls| calls.fail(sender.0.id, &why));
        }
    });
    if sending.as_mut().poll(context).is_pending() {
        tokio::spawn(sending);
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response<IncomingBody>, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match std::mem::replace(&mut this.stage, Stage::Done) {
                Stage::Beginning(inner, mut beginning, unsent) => {
                    let at_once = if beginning.is_none() { inner.try_begin() } else { None };
                    let begun = match at_once {
                        Some(call) => Poll::Ready(Ok(call)),
                        None => beginning
                            .get_or_insert_with(|| Box::pin(Arc::clone(&inner).begin()))
                            .as_mut()
                            .poll(context),
                    };
                    match begun {
                        Poll::Ready(call) => {
                            let call = call?;
                            let sender = CallRef { connection: Arc::clone(&call.connection), id: call.id };
                            this.stage = Stage::Waiting(call);
                            send(sender, *unsent, context);
                        }
                        Poll::Pending if this.deadline.poll(context).is_ready() => {
                            return Poll::Ready(Err(deadline_exceeded()));
                        }
                        Poll::Pending => {
                            this.stage = Stage::Beginning(inner, beginning, unsent);
                            return Poll::Pending;
                        }
                    }
                }
                Stage::Waiting(call) => match call.poll_answer(context) {
                    Poll::Ready(answer) => return Poll::Ready(this.answered(call, answer?)),
                    Poll::Pending if this.deadline.poll(context).is_ready() => {
                        call.reset(Code::DeadlineExceeded, "the client's deadline has passed");
                        return Poll::Ready(Err(deadline_exceeded()));
                    }
                    Poll::Pending => {
                        this.stage = Stage::Waiting(call);
                        return Poll::Pending;
                    }
                },
                Stage::Refused(why) => return Poll::Ready(Err(why)),
                Stage::Done => {
                    return Poll::Ready(Err(Status::internal("the call was polled after its answer")));
                }
            }
        }
    }
}

impl ResponseFuture {
    fn answered(&mut self, call: CallRef, answer: Answer) -> Result<Response<IncomingBody>, Status> {
        let body = match answer.rest {
            Some((data, trailers)) => IncomingBody::complete(data, trailers),
            None => IncomingBody::response(call, std::mem::take(&mut self.deadline)),
        };
        let mut response = Response::new(body);
        let status = StatusCode::from_u16(answer.http_status);
        *response.status_mut() = status.map_err(|_| Status::internal("an impossible HTTP status"))?;
        *response.headers_mut() = answer.metadata;
        Ok(response)
    }
}

impl Drop for ResponseFuture {
    fn drop(&mut self) {
        if let Stage::Waiting(call) = &self.stage {
            call.reset(Code::Cancelled, "the client gave the call up");
        }
    }
}
