//! The server's side of a typed service: dispatching calls to methods.
use farcall_link::Nic;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::codec::{FINGERPRINT_BYTES, decode, encode};
use super::description::Description;
use super::pages::Streams;
use super::{CLOSE_STREAM, DESCRIBE, NEXT_PAGE};
use crate::error::HandlerError;
use crate::responder::{Call, Handler, Reply};
use crate::server::{Server, ServerBuilder, ServerError};
use crate::wire::Status;

/// A typed service. The attribute implements it; all clones share one service.
pub trait Service: Clone + Send + Sync + 'static {
    /// Description of the service.
    const DESCRIPTION: Description;
    /// Whether any of its methods is an `async fn`.
    const IS_ASYNC: bool;

    /// Runs the called method.
    ///
    /// # Errors
    /// Returns the error that the client receives instead of a result.
    fn dispatch(&self, incoming: Incoming<'_, '_>) -> Result<(), HandlerError>;
}

/// A service as a handler of calls: one for each server thread.
pub struct Typed<S> {
    service: S,
    buffers: ReusableBuffers,
}

/// Runtime of methods that are an `async fn`.
#[cfg(feature = "tokio")]
type Runtime = Option<tokio::runtime::Handle>;
#[cfg(not(feature = "tokio"))]
type Runtime = Option<NoRuntime>;

/// There is no runtime without tokio.
#[cfg(not(feature = "tokio"))]
#[derive(Clone, Debug)]
enum NoRuntime {}

fn current_runtime() -> Runtime {
    #[cfg(feature = "tokio")]
    return tokio::runtime::Handle::try_current().ok();
    #[cfg(not(feature = "tokio"))]
    None
}

/// State that a thread retains between calls.
#[derive(Default)]
struct ReusableBuffers {
    /// Buffer for encoding results.
    result: Vec<u8>,
    streams: Streams,
    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    runtime: Runtime,
}

impl<S: Service> Typed<S> {
    /// Creates a handler for one server thread. Methods that are an `async fn` run on the current tokio runtime.
    pub fn new(service: S) -> Self {
        Self::with(service, current_runtime())
    }

    fn with(service: S, runtime: Runtime) -> Self {
        Self { service, buffers: ReusableBuffers { runtime, ..ReusableBuffers::default() } }
    }
}

impl<S: Service> Handler for Typed<S> {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let incoming = Incoming { call, reply, buffers: &mut self.buffers };
        match call.method() {
            DESCRIBE => incoming.append(|buffers| encode(&S::DESCRIPTION, &mut buffers.result)),
            NEXT_PAGE => incoming.next_page(),
            CLOSE_STREAM => incoming.close_stream(),
            _ => self.service.dispatch(incoming),
        }
    }

    fn closed(&mut self, connection: u32) {
        self.buffers.streams.closed(connection);
    }
}

impl ServerBuilder {
    /// Starts a server of a typed service, which all threads share. Methods that are not an `async fn`, and iterators
    /// of streams, run on these threads and delay the other calls of their thread.
    ///
    /// # Errors
    /// Returns the errors of [`ServerBuilder::start`], or an error if methods are an `async fn` and there is no tokio
    /// runtime.
    pub fn serve<S: Service>(self, nic: &Nic, service: S) -> Result<Server, ServerError> {
        let runtime = current_runtime();
        if S::IS_ASYNC && runtime.is_none() {
            let name = S::DESCRIPTION.name;
            let why =
                format!("{name} has async methods: start it in a tokio runtime, with the feature `tokio`");
            return Err(ServerError::System(std::io::Error::other(why)));
        }
        self.start(nic, move |_thread| Typed::with(service.clone(), runtime.clone()))
    }
}

/// A call that is being dispatched to its method.
pub struct Incoming<'a, 'r> {
    call: &'a Call<'a>,
    reply: &'a mut Reply<'r>,
    buffers: &'a mut ReusableBuffers,
}

fn refused(status: Status, message: String) -> HandlerError {
    HandlerError { status, message }
}

impl Incoming<'_, '_> {
    /// Returns the number of the method.
    pub fn method(&self) -> u16 {
        self.call.method()
    }

    /// Decodes the arguments.
    ///
    /// # Errors
    /// Returns an error if the client's method is a different one, or the arguments cannot be decoded. The method does
    /// not run then.
    #[inline]
    pub fn arguments<T: DeserializeOwned>(&self, fingerprint: u32) -> Result<T, HandlerError> {
        let Some((theirs, arguments)) = self.call.payload().split_first_chunk::<FINGERPRINT_BYTES>() else {
            return Err(refused(Status::BAD_ARGUMENTS, "a request without a fingerprint".into()));
        };
        if u32::from_le_bytes(*theirs) != fingerprint {
            let message = format!("method {}: connect again to see what differs", self.method());
            return Err(refused(Status::OTHER_METHOD, message));
        }
        decode(arguments)
            .map_err(|why| refused(Status::BAD_ARGUMENTS, format!("method {}: {why}", self.method())))
    }

    /// Answers the call.
    ///
    /// # Errors
    /// Returns an error if the result cannot be encoded.
    #[inline]
    pub fn answer<T: Serialize, E: Serialize>(self, result: &Result<T, E>) -> Result<(), HandlerError> {
        self.append(|buffers| encode(result, &mut buffers.result))
    }

    #[inline]
    fn append(
        self,
        encode: impl FnOnce(&mut ReusableBuffers) -> Result<(), String>,
    ) -> Result<(), HandlerError> {
        self.buffers.result.clear();
        encode(self.buffers).map_err(|why| refused(Status::BAD_RESULT, why))?;
        self.reply.extend_from_slice(&self.buffers.result);
        Ok(())
    }

    /// Runs the method as a task, which answers the call. If the client cancels the call, the task ends.
    ///
    /// # Errors
    /// Returns an error if too many calls are deferred.
    #[cfg(feature = "tokio")]
    pub fn spawn<T, E, F>(self, method: F) -> Result<(), HandlerError>
    where
        T: Serialize,
        E: Serialize,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let Some(runtime) = &self.buffers.runtime else {
            return Err(refused(Status::NOT_DEFERRED, "the server has no tokio runtime".into()));
        };
        crate::server::answer_by_task(runtime, self.reply, async move {
            let result = method.await;
            let mut bytes = Vec::new();
            encode(&result, &mut bytes).map_err(|why| refused(Status::BAD_RESULT, why))?;
            Ok(bytes)
        })
    }

    /// Answers the call with the first page of a stream.
    ///
    /// # Errors
    /// Returns an error if the client has too many streams, or an item cannot be encoded.
    pub fn stream<I, E>(self, method: impl FnOnce() -> Result<I, E>) -> Result<(), HandlerError>
    where
        I: Iterator + Send + 'static,
        I::Item: Serialize,
        E: Serialize,
    {
        let connection = self.call.connection();
        self.buffers.streams.may_begin(connection)?;
        let begun = method();
        self.append(|buffers| match begun {
            Ok(items) => {
                encode(&Ok::<(), E>(()), &mut buffers.result)?;
                buffers.streams.begin(connection, items, &mut buffers.result)
            }
            Err(error) => encode(&Err::<(), E>(error), &mut buffers.result),
        })
    }

    fn stream_number(&self) -> Result<u32, HandlerError> {
        let number = self.call.payload().try_into().map(u32::from_le_bytes);
        number.map_err(|_| refused(Status::BAD_ARGUMENTS, "no number of a stream".into()))
    }

    fn next_page(self) -> Result<(), HandlerError> {
        let (connection, number) = (self.call.connection(), self.stream_number()?);
        let Self { reply, buffers, .. } = self;
        buffers.result.clear();
        buffers.streams.next(connection, number, &mut buffers.result).map_err(|why| match why {
            Some(why) => refused(Status::BAD_RESULT, why),
            None => refused(Status::STREAM_GONE, format!("stream {number}")),
        })?;
        reply.extend_from_slice(&buffers.result);
        Ok(())
    }

    fn close_stream(self) -> Result<(), HandlerError> {
        self.buffers.streams.end(self.call.connection(), self.stream_number()?);
        Ok(())
    }

    /// Refuses the call because there is no such method.
    ///
    /// # Errors
    /// Always returns an error.
    pub fn unknown(self) -> Result<(), HandlerError> {
        Err(HandlerError::unknown_method(self.method()))
    }
}
