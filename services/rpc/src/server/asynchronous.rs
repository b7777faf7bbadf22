//! Services whose handlers are futures, run as tasks.

use farcall_link::Nic;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use farcall_verbs::Nanos;
use tokio::runtime::Handle;

use super::{Server, ServerBuilder, ServerError};
use crate::error::HandlerError;
use crate::responder::{Call, Handler, Reply};

/// A call as passed to a task.
#[derive(Clone, Debug)]
pub struct OwnedCall {
    /// The method.
    pub method: u16,
    /// The request.
    pub payload: Vec<u8>,
    /// The call's number, unique in its session.
    pub call_id: u64,
    /// The caller's trace; 0 if it has none.
    pub trace_id: u64,
    /// When the caller's deadline is, by the clock of the server thread.
    pub deadline: Option<Nanos>,
    /// The connection over which the call arrived.
    pub connection: u32,
}

impl From<&Call<'_>> for OwnedCall {
    fn from(call: &Call<'_>) -> Self {
        Self {
            method: call.method(),
            payload: call.payload().to_vec(),
            call_id: call.call_id(),
            trace_id: call.trace_id(),
            deadline: call.deadline(),
            connection: call.connection(),
        }
    }
}

/// A service whose answers are futures: see [`ServerBuilder::start_async`]. Implemented by closures.
pub trait AsyncHandler: Send + Sync + 'static {
    /// Answers one call. The future is dropped when no caller waits for the answer any more. If it panics, the client
    /// gets [`crate::wire::Status::ANSWER_DROPPED`].
    fn handle(&self, call: OwnedCall) -> impl Future<Output = Result<Vec<u8>, HandlerError>> + Send;
}

impl<F, R> AsyncHandler for F
where
    F: Fn(OwnedCall) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Vec<u8>, HandlerError>> + Send,
{
    fn handle(&self, call: OwnedCall) -> impl Future<Output = Result<Vec<u8>, HandlerError>> + Send {
        self(call)
    }
}

/// Spawns a task for each call.
struct ByTasks<S> {
    service: Arc<S>,
    runtime: Handle,
}

impl<S: AsyncHandler> Handler for ByTasks<S> {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let (service, call) = (Arc::clone(&self.service), OwnedCall::from(call));
        answer_by_task(&self.runtime, reply, async move { service.handle(call).await })
    }
}

/// Spawns a future that answers the current call. It is dropped when no caller waits for the answer any more.
///
/// # Errors
/// Returns the errors of [`Reply::defer`].
pub(crate) fn answer_by_task<F>(
    runtime: &Handle,
    reply: &mut Reply<'_>,
    answer: F,
) -> Result<(), HandlerError>
where
    F: Future<Output = Result<Vec<u8>, HandlerError>> + Send + 'static,
{
    let token = reply.defer()?;
    runtime.spawn(async move {
        let outcome = {
            let (mut answer, mut cancelled) = (pin!(answer), pin!(token.cancelled()));
            poll_fn(|context| {
                if let Poll::Ready(outcome) = answer.as_mut().poll(context) {
                    return Poll::Ready(Some(outcome));
                }
                cancelled.as_mut().poll(context).map(|()| None)
            })
            .await
        };
        match outcome {
            Some(Ok(result)) => token.answer(&result),
            Some(Err(error)) => token.refuse(&error),
            None => {}
        }
    });
    Ok(())
}

impl ServerBuilder {
    /// Starts a server whose calls are answered by tasks of the current tokio runtime, so that a waiting call does not
    /// block others. All threads share `service`. Each call costs a task; methods that never wait run faster with
    /// [`ServerBuilder::start`].
    ///
    /// # Errors
    /// Returns the errors of [`ServerBuilder::start`].
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn start_async<S: AsyncHandler>(self, nic: &Nic, service: S) -> Result<Server, ServerError> {
        let (service, runtime) = (Arc::new(service), Handle::current());
        self.start(nic, move |_thread| ByTasks { service: Arc::clone(&service), runtime: runtime.clone() })
    }
}
