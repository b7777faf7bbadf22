//! Remote calls.
//!
//! A client without a configured preset chooses one automatically ([`tune::choose`]) and reports the choice and its
//! reason ([`Client::decision`]). With the presets of the next sentence, requests are RDMA WRITEs. The client fetches
//! the result by RDMA READ (presets `rf-rpc` and `fetch`; the former requests that the server writes the results of
//! slow methods), or the server writes every result (presets `server-reply`, `l5` with a byte that announces each
//! request, and `uc-rpc` over an unreliable connection). Presets `write-send`, `send-write` and `send-send` use SENDs
//! for results, requests, or both; `herd` sends results as datagrams, `ud-rpc` also requests; with `rdma-memcached`
//! the server announces each result by SEND, and the client READs it. A call runs at most once; every error states
//! whether it was executed.
//!
//! - [`Server`] runs a [`Handler`] on each of its threads; a closure is a handler.
//! - [`Client`] makes calls and waits for them; it can have several calls outstanding.
//! - A [`Dispatcher`] issues the calls of many threads over few connections, one to each [`ServerThread`].
//! - [`ClientOptions::batch`] sends several calls in one message, which increases throughput and latency.
//! - [`CallError`] states whether a failed call was executed.

#[cfg(feature = "service")]
pub use farcall_rpc::service;
#[cfg(feature = "tokio")]
pub use farcall_rpc::{Addresses, AsyncClient, AsyncHandler, AsyncServers, LoadBalancing, OwnedCall, Retry};
pub use farcall_rpc::{
    Broken, Call, CallError, CallId, CallOptions, Client, ClientOptions, Completion, ConnectError, Counters,
    Deferred, Dispatcher, DrainHandle, Executed, Handler, HandlerError, NothingOutstanding, Reply, Requester,
    Server, ServerBuilder, ServerError, ServerThread, UnknownBecause, Verbs,
};

/// Status with which the server ended a call, in [`CallError::Server`].
pub use farcall_rpc::wire::Status;

/// Measured properties of a connection, and the choice of a preset by them.
pub mod tune {
    pub use farcall_rpc::tune::{
        Decision, InvalidProfile, LinkProfile, Peer, Posting, ProfileError, ProfileFile, ReadCost, Scope,
        choose,
    };
}

/// Wait strategy of a thread, for [`ServerBuilder::waiting`] and [`ClientOptions::wait_by`].
pub use farcall_link::WaitStrategy;

/// Configuration of batches, for [`ClientOptions::batch`].
pub use farcall_link::{BatchConfig, BatchSizing};
