//! A server of remote calls in this process: one thread that serves any handler.
//!
//! ```no_run
//! use farcall::rpc::{Call, HandlerError, Reply};
//! use farcall::rpc_server::RpcServer;
//!
//! let echo = |call: &Call<'_>, reply: &mut Reply<'_>| -> Result<(), HandlerError> {
//!     reply.extend_from_slice(call.payload());
//!     Ok(())
//! };
//! let server = RpcServer::start("127.0.0.1:0".parse()?, echo)?;
//! println!("clients connect to {}", server.address());
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bootstrap;
pub mod echo;
mod thread;

pub(crate) use bootstrap::Bootstrap;
pub(crate) use thread::{DRAIN_PATIENCE, IDLE_POLLS, incarnation};

use farcall_drive::Stop;
use farcall_rpc::Handler;
use std::io;
use std::net::SocketAddr;
use std::thread::JoinHandle;

/// A server could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RpcServerError {
    /// The address cannot be bound.
    #[error("listening on {address} failed: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The thread could not be started.
    #[error(
        "cannot start the server thread: {0}; see the limits of processes and memory (ulimit -u, ulimit -v)"
    )]
    Thread(#[source] io::Error),
    /// The RNIC failed.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// The thread panicked outside of a handler.
    #[error("the server thread panicked; its message is on standard error; this is a defect")]
    Panicked,
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct RpcServer {
    stop: Stop,
    thread: Option<JoinHandle<Result<(), RpcServerError>>>,
    address: SocketAddr,
}

impl RpcServer {
    /// Listens for handshakes on `address` (port 0 lets the system choose) and serves `handler` in a thread of its own.
    ///
    /// # Errors
    /// When the address cannot be bound, or the thread or the RNIC is not to be had.
    pub fn start(
        address: SocketAddr,
        handler: impl Handler + Send + 'static,
    ) -> Result<Self, RpcServerError> {
        let listening =
            Bootstrap::listen(address).and_then(|bootstrap| Ok((bootstrap.address()?, bootstrap)));
        let (address, bootstrap) = listening.map_err(|source| RpcServerError::Listen { address, source })?;
        let stop = Stop::new().map_err(RpcServerError::Thread)?;
        let worker = thread::Worker::new(handler, bootstrap)?;
        let thread = std::thread::Builder::new().name("rpc-0".to_owned()).spawn({
            let stop = stop.clone();
            move || worker.run(stop)
        });
        Ok(Self { stop, thread: Some(thread.map_err(RpcServerError::Thread)?), address })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the thread still runs. A failure is reported by [`Self::stop`].
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Drains: finishes the calls that came, tells clients to go, and ends.
    ///
    /// # Errors
    /// The failure of the thread.
    pub fn stop(mut self) -> Result<(), RpcServerError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), RpcServerError> {
        self.stop.request();
        match self.thread.take() {
            None => Ok(()),
            Some(thread) => thread.join().unwrap_or(Err(RpcServerError::Panicked)),
        }
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        // Failures were there to be had from `stop`.
        let _ = self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_bench::rpc_connection::{RpcCallError, RpcConnection};
    use farcall_rpc::{CallError, FetchThenReply, Path, ServerReply};
    use farcall_softnic::SoftNic;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn check<P: Path>() {
        let server = RpcServer::start("127.0.0.1:0".parse().unwrap(), echo::Echo).unwrap();
        let mut connection =
            RpcConnection::<P>::connect(&SoftNic::new(), server.address(), 8, PATIENCE).unwrap();
        let mut call = |method, payload: &[u8]| connection.call(method, payload, PATIENCE, <[u8]>::to_vec);
        for len in [0, 1, 8, 64, 1000, 100_000] {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            assert_eq!(call(echo::ECHO, &payload).unwrap(), payload);
            assert_eq!(call(echo::HEAD, &payload).unwrap(), payload[..payload.len().min(8)]);
        }
        let refused = call(99, b"");
        assert!(matches!(refused, Err(RpcCallError::Call(CallError::Server { .. }))), "{refused:?}");
        assert_eq!(call(echo::ECHO, b"still there").unwrap(), b"still there");
        server.stop().unwrap();
        assert!(call(echo::ECHO, b"gone").is_err());
    }

    #[test]
    fn calls_are_answered_under_both_presets_until_the_server_stops() {
        check::<ServerReply>();
        check::<FetchThenReply>();
    }

    #[test]
    fn an_address_in_use_is_named() {
        let server = RpcServer::start("127.0.0.1:0".parse().unwrap(), echo::Echo).unwrap();
        let error = RpcServer::start(server.address(), echo::Echo).unwrap_err();
        assert!(error.to_string().contains(&server.address().to_string()));
    }
}
