//! Unary calls whose messages are encoded and decoded in place. Generated direct clients use them.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http::uri::PathAndQuery;
use http_body::Body;
use prost::Message;
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Request, Response, Status};

use super::channel::{Channel, Inner};
use super::response::check_metadata;
use crate::body::{IncomingBody, deadline_exceeded};
use crate::calls::{Answer, CompleteResponse, InitialHeaders, LocalEnd, ResponseWait, Submission};
use crate::connection::CallRef;
use crate::deadline::Deadline;
use crate::message::{self, MESSAGE_BYTES_MAX, PREFIX_BYTES};

/// Cancels the call on drop, unless its response has been received.
struct Open(Option<CallRef>);

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(call) = &self.0 {
            call.reset(Code::Cancelled, "the client gave the call up");
        }
    }
}

impl Channel {
    /// Makes a unary call without tonic's codec: a short request is encoded in the send buffer, and its response is
    /// decoded in the receive buffer. The server sees no difference. The message and the metadata of the request are
    /// sent; its extensions are not.
    ///
    /// # Errors
    /// Returns the error status of the method, or that of a tonic client for a lost connection or a deadline that has
    /// passed. A response that is compressed or longer than 4 MiB is rejected.
    pub async fn unary<M: Message, R: Message + Default>(
        &self,
        path: &PathAndQuery,
        request: Request<M>,
    ) -> Result<Response<R>, Status> {
        let (metadata, _extensions, message) = request.into_parts();
        let metadata = metadata.into_headers();
        check_metadata(&metadata)?;
        let mut deadline = Deadline::of(&metadata);
        let call = begin(self.inner(), &mut deadline).await?;
        let (connection, id) = (Arc::clone(&call.connection), call.id);
        let mut open = Open(Some(call));
        let is_sent =
            connection.compose(|calls, out| calls.compose_request(id, path, &metadata, &message, out));
        if !is_sent {
            let mut data = Vec::with_capacity(PREFIX_BYTES + message.encoded_len());
            message::put(&message, &mut data);
            let headers = Some(InitialHeaders::Call(path.clone(), metadata));
            let part = Submission { headers, data: Bytes::from(data), ending: Some(LocalEnd::End) };
            CallRef { connection: Arc::clone(&connection), id }.submit(part).await?;
        }
        let response = poll_fn(|context| {
            let response = connection.with(|calls| calls.poll_complete(id, context, read_complete));
            if response.is_pending() && deadline.poll(context).is_ready() {
                return Poll::Ready(Err(deadline_exceeded()));
            }
            response
        });
        match response.await? {
            ResponseWait::Complete(answer) => {
                open.0 = None;
                answer
            }
            ResponseWait::Begun(answer) => {
                let Answer { http_status, metadata, rest } = *answer;
                // From here on dropping the body cancels the call.
                let body = match (rest, open.0.take()) {
                    (Some((data, trailers)), _) => IncomingBody::complete(data, trailers),
                    (None, Some(call)) => IncomingBody::response(call, deadline),
                    (None, None) => IncomingBody::default(),
                };
                let (data, trailers) = collect(body).await?;
                read(http_status, metadata, &data, trailers)
            }
        }
    }
}

/// Opens a call over the existing connection, or over a new one.
async fn begin(inner: &Arc<Inner>, deadline: &mut Deadline) -> Result<CallRef, Status> {
    if let Some(call) = inner.try_begin() {
        return Ok(call);
    }
    let mut beginning = pin!(Box::pin(Arc::clone(inner).begin()));
    poll_fn(|context| match beginning.as_mut().poll(context) {
        Poll::Pending => deadline.poll(context).map(|()| Err(deadline_exceeded())),
        begun => begun,
    })
    .await
}

/// Collects a response that arrives in parts.
async fn collect(mut body: IncomingBody) -> Result<(Vec<u8>, Option<HeaderMap>), Status> {
    let (mut data, mut trailers) = (Vec::new(), None);
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        match frame?.into_data() {
            Ok(bytes) if data.len() + bytes.len() > PREFIX_BYTES + MESSAGE_BYTES_MAX => {
                return Err(Status::out_of_range(format!(
                    "the answer is longer than {MESSAGE_BYTES_MAX} bytes"
                )));
            }
            Ok(bytes) => data.extend_from_slice(bytes.chunk()),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok((data, Some(trailers.unwrap_or_default())))
}

fn read_complete<R: Message + Default>(response: CompleteResponse<'_>) -> Result<Response<R>, Status> {
    read(response.http_status, response.metadata, response.data, response.trailers)
}

/// Decodes a response. `trailers` is `None` if the call succeeded.
fn read<R: Message + Default>(
    http_status: u16,
    mut metadata: HeaderMap,
    data: &[u8],
    trailers: Option<HeaderMap>,
) -> Result<Response<R>, Status> {
    if let Some(trailers) = trailers {
        let said = Status::from_header_map(&trailers).or_else(|| Status::from_header_map(&metadata));
        match said {
            Some(status) if status.code() == Code::Ok => {}
            Some(status) => return Err(status),
            None => {
                let why = format!("the answer ends without a status; its HTTP status is {http_status}");
                return Err(Status::unknown(why));
            }
        }
        metadata.extend(trailers);
    }
    let message = message::read(data)?;
    Ok(Response::from_parts(MetadataMap::from_headers(metadata), message, Extensions::default()))
}
