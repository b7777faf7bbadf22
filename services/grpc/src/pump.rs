//! Sends a body over a call in parts.

use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use tonic::Status;

use crate::calls::{InitialHeaders, LocalEnd, Submission};
use crate::connection::CallRef;
use crate::frame::metadata::{METADATA_BYTES_MAX, weight};

/// Result of polling a body.
enum Next {
    Frame(Option<Result<http_body::Frame<Bytes>, Status>>),
    /// No frame is ready, and a part is available to be sent.
    NotReady,
}

/// Begins this side of a call and sends `body` after the headers. Data that is ready immediately is sent in one part
/// with it. `end` returns the ending of a body without trailers.
///
/// # Errors
/// Returns an error if the call has ended, or the error of the body.
pub(crate) async fn send<B>(
    call: &CallRef,
    headers: InitialHeaders,
    body: B,
    end: impl FnOnce() -> LocalEnd,
) -> Result<(), Status>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = pin!(body);
    let mut part = Submission { headers: Some(headers), ..Submission::default() };
    loop {
        let has_any = part.headers.is_some() || !part.data.is_empty();
        let next = std::future::poll_fn(|context| match body.as_mut().poll_frame(context) {
            Poll::Ready(frame) => {
                let failed = |error: B::Error| Status::from_error(error.into());
                Poll::Ready(Next::Frame(frame.map(|frame| frame.map_err(failed))))
            }
            Poll::Pending if has_any => Poll::Ready(Next::NotReady),
            Poll::Pending => Poll::Pending,
        });
        let frame = match next.await {
            Next::NotReady => {
                call.submit(std::mem::take(&mut part)).await?;
                continue;
            }
            Next::Frame(None) => {
                part.ending = Some(end());
                return call.submit(part).await;
            }
            Next::Frame(Some(frame)) => frame?,
        };
        match frame.into_data() {
            Ok(data) => {
                if !part.data.is_empty() {
                    call.submit(std::mem::take(&mut part)).await?;
                }
                part.data = data;
            }
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_else(|_| HeaderMap::new());
                if weight(&trailers) > METADATA_BYTES_MAX {
                    return Err(Status::internal("the answer has more trailers than allowed"));
                }
                part.ending = Some(LocalEnd::Trailers(trailers));
                return call.submit(part).await;
            }
        }
    }
}
