//! The six calls of RF-RPC's interface (table 2): `client_send`, `client_recv`, `server_send`, `server_recv`,
//! `malloc_buf` and `free_buf`, in the paper's words and on registered buffers.
//!
//! They are what one ports a program with that speaks in sends and receives. New programs are better served by
//! [`crate::Client`] and [`crate::Handler`]. None of them waits: each does what can be done at once.

use farcall_link::bootstrap::{Hello, Refusal, Welcome};
use farcall_link::{Buffer, BufferPool, Nic, PoolError};
use farcall_verbs::{Access, Clock, Endpoint, Error, Nanos};

use crate::caller::{CallId, CallOptions, Caller, Path};
use crate::config::{CallerConfig, ResponderConfig};
use crate::error::{CallError, ConnectError};
pub use crate::responder::Held;
use crate::responder::{Call, ConnectionId, Handler, HandlerError, Reply, Responder};

/// How many registered buffers a port has.
const BUFFERS: u32 = 64;

fn pool(nic: &Nic, len_bytes: usize) -> Result<BufferPool, Error> {
    BufferPool::new(&*nic.pd, BUFFERS, len_bytes, Access::LOCAL_WRITE)
}

/// A client's port to one server thread.
pub struct ClientPort<P> {
    caller: Caller<P>,
    buffers: BufferPool,
    scratch: Vec<u8>,
}

impl<P: Path> ClientPort<P> {
    /// A port with buffers of `buffer_bytes`.
    ///
    /// # Errors
    /// If memory or queues cannot be had.
    pub fn new(nic: Nic, config: CallerConfig, buffer_bytes: usize) -> Result<Self, Error> {
        let buffers = pool(&nic, buffer_bytes)?;
        Ok(Self { caller: Caller::new(nic, config)?, buffers, scratch: Vec::new() })
    }

    /// See [`Caller::hello`].
    ///
    /// # Errors
    /// As there.
    pub fn hello(&mut self) -> Result<Hello, ConnectError> {
        self.caller.hello()
    }

    /// See [`Caller::welcome`].
    ///
    /// # Errors
    /// As there.
    pub fn welcome(&mut self, welcome: Welcome, now: Nanos) -> Result<(), ConnectError> {
        self.caller.welcome(welcome, now)
    }

    /// Takes a registered buffer.
    ///
    /// # Errors
    /// If all are in use, or shorter.
    pub fn malloc_buf(&self, len_bytes: usize) -> Result<Buffer, PoolError> {
        self.buffers.take(len_bytes)
    }

    /// Gives a buffer back; dropping it does the same.
    pub fn free_buf(&self, buffer: Buffer) {
        drop(buffer);
    }

    /// Sends the first `len_bytes` of a buffer, which is free at once.
    ///
    /// # Errors
    /// As [`Caller::submit`].
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn client_send(
        &mut self,
        method: u16,
        buffer: &Buffer,
        len_bytes: usize,
        now: Nanos,
    ) -> Result<CallId, CallError> {
        self.scratch.clear();
        buffer.append_to(len_bytes, &mut self.scratch);
        self.caller.submit(method, &self.scratch, CallOptions::default(), now)
    }

    /// Receives the next result into a buffer: which call's, and how long it is. `None` if there is none yet. A result
    /// longer than the buffer is [`CallError::ResultTooLarge`].
    pub fn client_recv(
        &mut self,
        buffer: &mut Buffer,
        now: Nanos,
    ) -> Option<(CallId, Result<usize, CallError>)> {
        self.caller.progress(now);
        let done = self.caller.next_completion()?;
        let received = done.result.and_then(|result| {
            if result.len() > buffer.capacity() {
                let max_bytes = buffer.capacity();
                return Err(CallError::ResultTooLarge { len_bytes: result.len(), max_bytes });
            }
            buffer.put(0, result);
            Ok(result.len())
        });
        Some((done.call, received))
    }
}

/// The service of a port: its owner answers by hand.
struct ByHand;

impl Handler for ByHand {
    fn handle(&mut self, call: &Call<'_>, _reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        Err(HandlerError::unknown_method(call.method()))
    }
}

/// A server's port to its clients.
pub struct ServerPort<C> {
    responder: Responder<ByHand, C>,
    buffers: BufferPool,
    scratch: Vec<u8>,
}

impl<C: Clock> ServerPort<C> {
    /// A port with buffers of `buffer_bytes`, which are also the longest request.
    ///
    /// # Errors
    /// If memory or queues cannot be had.
    pub fn new(
        nic: Nic,
        config: ResponderConfig,
        incarnation: u64,
        clock: C,
        buffer_bytes: usize,
    ) -> Result<Self, Error> {
        let buffers = pool(&nic, buffer_bytes)?;
        let request_bytes_max = config.request_bytes_max.min(u32::try_from(buffer_bytes).unwrap_or(u32::MAX));
        let config = ResponderConfig { request_bytes_max, ..config };
        let responder = Responder::new(nic, config, incarnation, ByHand, clock)?;
        Ok(Self { responder, buffers, scratch: Vec::new() })
    }

    /// See [`Responder::accept`].
    ///
    /// # Errors
    /// As there.
    pub fn accept(&mut self, hello: &Hello, now: Nanos) -> Result<(ConnectionId, Welcome), Refusal> {
        self.responder.accept(hello, now)
    }

    /// Takes a registered buffer.
    ///
    /// # Errors
    /// If all are in use, or shorter.
    pub fn malloc_buf(&self, len_bytes: usize) -> Result<Buffer, PoolError> {
        self.buffers.take(len_bytes)
    }

    /// Gives a buffer back; dropping it does the same.
    pub fn free_buf(&self, buffer: Buffer) {
        drop(buffer);
    }

    /// Receives a request of any client into a buffer: whose it is, and how long. Its client is not listened to before
    /// [`ServerPort::server_send`] has answered. `None` if there is none. A request that does not fit is cut to the buffer;
    /// the length tells.
    pub fn server_recv(&mut self, buffer: &mut Buffer, now: Nanos) -> Option<(Held, usize)> {
        self.scratch.clear();
        let held = self.responder.take_call(&mut self.scratch, now)?;
        buffer.put(0, &self.scratch[..self.scratch.len().min(buffer.capacity())]);
        Some((held, self.scratch.len()))
    }

    /// Answers with the first `len_bytes` of a buffer, which is free at once. Where the client fetches, this only writes
    /// local memory. False if the client is gone.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn server_send(&mut self, to: ConnectionId, buffer: &Buffer, len_bytes: usize) -> bool {
        self.scratch.clear();
        buffer.append_to(len_bytes, &mut self.scratch);
        self.responder.answer_call(to, &self.scratch)
    }
}
