//! Sends a body over a call, part by part.

use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use tonic::Status;

use crate::calls::{Going, Opening, Submission};
use crate::connection::CallRef;
use crate::frame::metadata::{METADATA_BYTES_MAX, weight};

/// What a body gave.
enum Next {
    Frame(Option<Result<http_body::Frame<Bytes>, Status>>),
    /// Nothing yet, while something else could be sent.
    NotYet,
}

/// Begins this side of a call and sends a body behind it. What is ready at once goes in one part; `end` says how a body
/// without trailers ends.
///
/// # Errors
/// If the call is over, or what the body says.
pub(crate) async fn send<B>(
    call: &CallRef,
    opening: Opening,
    body: B,
    end: impl FnOnce() -> Going,
) -> Result<(), Status>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = pin!(body);
    let mut part = Submission { opening: Some(opening), ..Submission::default() };
    loop {
        let has_any = part.opening.is_some() || !part.data.is_empty();
        let next = std::future::poll_fn(|context| match body.as_mut().poll_frame(context) {
            Poll::Ready(frame) => {
                let failed = |error: B::Error| Status::from_error(error.into());
                Poll::Ready(Next::Frame(frame.map(|frame| frame.map_err(failed))))
            }
            Poll::Pending if has_any => Poll::Ready(Next::NotYet),
            Poll::Pending => Poll::Pending,
        });
        let frame = match next.await {
            Next::NotYet => {
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
                part.ending = Some(Going::Trailers(trailers));
                return call.submit(part).await;
            }
        }
    }
}
