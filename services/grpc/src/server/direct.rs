//! Unary methods that are answered without tonic's codec: short messages are decoded in the receive buffer and encoded
//! in the send buffer.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use tokio_util::sync::ReusableBoxFuture;
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Request, Response, Status};

use super::answer::{ResponderGuard, until_ended};
use crate::calls::{Accepted, DirectPaths, InitialHeaders, LocalEnd, Submission};
use crate::connection::{CallRef, Connection};
use crate::deadline::Deadline;
use crate::frame::metadata::{self, METADATA_BYTES_MAX, weight};
use crate::message::{self, PREFIX_BYTES};

/// Future that answers one call. Its memory is reused for the next call if it completed without waiting.
type Answering = ReusableBoxFuture<'static, ()>;

/// A type-erased method: decodes the request of a call and begins to answer it, unless the call was cancelled.
type Method = dyn Fn(Arc<Connection>, Accepted, &mut Option<Answering>) -> bool + Send + Sync;

/// Unary methods that a [`crate::Server`] answers directly. Generated code creates it.
///
/// The server passes them requests that arrived in one frame (up to 64 KiB including metadata) and are not compressed.
/// All other calls are passed to its service, which must implement the same methods. A request that is answered here
/// has no extensions: neither the address of its peer nor those of layers and interceptors, which see only calls that
/// are passed to the service.
#[derive(Clone, Default)]
pub struct DirectMethods {
    paths: Arc<DirectPaths>,
    methods: Vec<Arc<Method>>,
}

impl std::fmt::Debug for DirectMethods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectMethods").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl DirectMethods {
    /// Creates an empty set of methods.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a method: its path, in the form `/package.Service/Method`, and the function that answers it.
    #[must_use]
    pub fn unary<M, R, F>(
        mut self,
        path: &'static str,
        method: impl Fn(Request<M>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        M: Message + Default + 'static,
        R: Message + 'static,
        F: Future<Output = Result<Response<R>, Status>> + Send + 'static,
    {
        let mut paths = HashMap::clone(&self.paths);
        paths.insert(PathAndQuery::from_static(path), self.methods.len());
        self.paths = Arc::new(paths);
        self.methods.push(Arc::new(move |connection, accepted, answering| {
            begin(&method, connection, accepted, answering)
        }));
        self
    }

    /// Combines the methods of both sets.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        let mut paths = HashMap::clone(&self.paths);
        paths.extend(others.paths.iter().map(|(path, at)| (path.clone(), self.methods.len() + at)));
        self.paths = Arc::new(paths);
        self.methods.extend(others.methods);
        self
    }

    pub(super) fn paths(&self) -> Arc<DirectPaths> {
        Arc::clone(&self.paths)
    }

    /// Returns the state that one connection needs to answer calls.
    pub(super) fn for_connection(&self) -> Answers {
        Answers { idle_futures: self.methods.iter().map(|_| None).collect(), methods: self.methods.clone() }
    }
}

/// The methods, with their state at one connection.
pub(super) struct Answers {
    methods: Vec<Arc<Method>>,
    /// Memory of futures that completed without waiting, by method.
    idle_futures: Vec<Option<Answering>>,
}

impl Answers {
    /// Answers a call: polls the method once in place, and spawns a task for it if it waits.
    pub fn start(
        &mut self,
        at: usize,
        connection: &Arc<Connection>,
        accepted: Accepted,
        context: &mut Context<'_>,
    ) {
        let (method, slot) = (&self.methods[at], &mut self.idle_futures[at]);
        // A panic in a method ends only its call, not the connection: dropping the [`ResponderGuard`] resets the call.
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let has_begun = method(Arc::clone(connection), accepted, slot);
            let answering = slot.as_mut().filter(|_| has_begun);
            answering.map_or(Poll::Ready(()), |answering| answering.poll(context))
        }));
        match (polled, slot.take()) {
            (Ok(Poll::Pending), Some(mut answering)) => {
                tokio::spawn(async move { std::future::poll_fn(|context| answering.poll(context)).await });
            }
            (Ok(Poll::Ready(())), Some(answering)) => *slot = Some(answering),
            _ => {}
        }
    }
}

/// Decodes the request and puts the future that answers it into `answering`. Returns `false` if the client has
/// cancelled the call.
fn begin<M, R, F>(
    method: &impl Fn(Request<M>) -> F,
    connection: Arc<Connection>,
    accepted: Accepted,
    answering: &mut Option<Answering>,
) -> bool
where
    M: Message + Default,
    R: Message + 'static,
    F: Future<Output = Result<Response<R>, Status>> + Send + 'static,
{
    let Accepted { id, metadata, .. } = accepted;
    let work = ResponderGuard(CallRef { connection, id });
    let Some(read) = work.0.connection.with(|calls| calls.read_request(id, message::read)) else {
        return false;
    };
    let deadline = Deadline::of(&metadata);
    let metadata = MetadataMap::from_headers(metadata);
    let request = read.map(|message| method(Request::from_parts(metadata, Extensions::default(), message)));
    let future = answer(work, deadline, request);
    match answering {
        Some(idle_future) => idle_future.set(future),
        None => *answering = Some(ReusableBoxFuture::new(future)),
    }
    true
}

async fn answer<R: Message>(
    work: ResponderGuard,
    deadline: Deadline,
    method: Result<impl Future<Output = Result<Response<R>, Status>>, Status>,
) {
    let call = &work.0;
    let answered = match method {
        Ok(method) => match until_ended(call, deadline, method).await {
            Ok(Some(response)) => send(call, response).await,
            Ok(None) => Ok(()),
            Err(why) => Err(why),
        },
        Err(why) => Err(why),
    };
    if let Err(why) = answered {
        call.connection.with(|calls| calls.fail(call.id, &why));
    }
}

async fn send<R: Message>(call: &CallRef, response: Response<R>) -> Result<(), Status> {
    let (metadata, message, _extensions) = response.into_parts();
    let metadata = metadata.into_headers();
    if weight(&metadata) > METADATA_BYTES_MAX {
        return Err(Status::new(Code::Internal, "the answer has more metadata than allowed"));
    }
    let id = call.id;
    if call.connection.compose(|calls, out| calls.compose_answer(id, &metadata, &message, out)) {
        return Ok(());
    }
    let mut data = Vec::with_capacity(PREFIX_BYTES + message.encoded_len());
    message::put(&message, &mut data);
    let (headers, ending) =
        (InitialHeaders::Response(200, metadata), LocalEnd::Trailers(metadata::success()));
    call.submit(Submission { headers: Some(headers), data: Bytes::from(data), ending: Some(ending) }).await
}
