//! Answering of a call by a tower service.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use tonic::{Code, Status};
use tower_service::Service;

use crate::body::IncomingBody;
use crate::calls::{Accepted, InitialHeaders, LocalEnd};
use crate::connection::{CallRef, Connection};
use crate::deadline::Deadline;
use crate::frame::metadata::{METADATA_BYTES_MAX, weight};
use crate::pump;

/// Guard of the task that answers a call: records its end when dropped.
pub(super) struct ResponderGuard(pub CallRef);

impl Drop for ResponderGuard {
    fn drop(&mut self) {
        self.0.connection.with(|calls| calls.on_sender_stopped(self.0.id));
    }
}

/// Answers a call: polls the service once in place, and spawns a task for it if it waits.
pub(super) fn start<S, B>(
    connection: Arc<Connection>,
    accepted: Accepted,
    service: S,
    context: &mut Context<'_>,
) where
    S: Service<http::Request<IncomingBody>, Response = http::Response<B>> + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut answering: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(answer(connection, accepted, service));
    // A panic in a method ends only its call, not the connection: dropping the [`ResponderGuard`] resets the call.
    let polled = std::panic::catch_unwind(AssertUnwindSafe(|| answering.as_mut().poll(context)));
    if let Ok(Poll::Pending) = polled {
        tokio::spawn(answering);
    }
}

async fn answer<S, B>(connection: Arc<Connection>, accepted: Accepted, mut service: S)
where
    S: Service<http::Request<IncomingBody>, Response = http::Response<B>>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Accepted { id, uri, metadata, request, .. } = accepted;
    let reference = || CallRef { connection: Arc::clone(&connection), id };
    let call = ResponderGuard(reference());
    let deadline = Deadline::of(&metadata);
    let body = match request {
        Some(data) => IncomingBody::complete(data, None),
        None => IncomingBody::request(reference()),
    };
    let mut request = http::Request::new(body);
    *request.uri_mut() = uri;
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = metadata;
    request.extensions_mut().insert(crate::PeerAddress(connection.peer));
    #[cfg(feature = "http2")]
    request.extensions_mut().insert(crate::http2::connect_info(connection.peer));
    let ended = until_ended(&call.0, deadline, work(&call.0, &mut service, request)).await;
    if let Err(why) = ended {
        call.0.connection.with(|calls| calls.fail(id, &why));
    }
}

/// Runs `work` until it completes. Returns `None` if the call ends before.
///
/// # Errors
/// Returns the error of `work`, or an error if the call's deadline has passed.
pub(super) async fn until_ended<T>(
    call: &CallRef,
    mut deadline: Deadline,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<Option<T>, Status> {
    let mut work = std::pin::pin!(work);
    poll_fn(|context| {
        if let Poll::Ready(worked) = work.as_mut().poll(context) {
            return Poll::Ready(worked.map(Some));
        }
        if call.poll_ended(context).is_ready() {
            return Poll::Ready(Ok(None));
        }
        let late = || Err(Status::deadline_exceeded("the call's deadline has passed"));
        deadline.poll(context).map(|()| late())
    })
    .await
}

async fn work<S, B>(
    call: &CallRef,
    service: &mut S,
    request: http::Request<IncomingBody>,
) -> Result<(), Status>
where
    S: Service<http::Request<IncomingBody>, Response = http::Response<B>>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let failed = |error: S::Error| Status::from_error(error.into());
    poll_fn(|context| service.poll_ready(context)).await.map_err(failed)?;
    let response = service.call(request).await.map_err(failed)?;
    let (parts, body) = response.into_parts();
    if weight(&parts.headers) > METADATA_BYTES_MAX {
        return Err(Status::new(Code::Internal, "the answer has more metadata than allowed"));
    }
    let headers = InitialHeaders::Response(parts.status.as_u16(), parts.headers);
    pump::send(call, headers, body, || LocalEnd::Trailers(HeaderMap::new())).await
}
