//! Remote calls.
//!
//! A client that was told nothing chooses its preset by itself ([`tune::choose`]), and says which and why
//! ([`Client::decision`]). Under all of the first ones the request travels by RDMA WRITE. The client fetches the result
//! by RDMA READ (presets `rf-rpc` and `fetch`; the former asks the server to write the results of slow methods), or the
//! server writes every result back (preset `server-reply`, `l5` with a byte that tells of each request, or `uc-rpc`
//! over an unreliable connection). Presets `write-send`, `send-write` and `send-send` use SENDs for results, requests,
//! or both; `herd` sends results as datagrams, `ud-rpc` requests, too; under `rdma-memcached` the server tells of each
//! result by SEND, and the client READs it. A call runs at most once; every error says whether it was executed.
//!
//! - [`Server`] runs a [`Handler`] on each of its threads; a closure is a handler.
//! - [`Client`] calls and waits; it can have several calls outstanding.
//! - A [`Dispatcher`] makes the calls of many threads over few connections, one to each [`ServerThread`].
//! - [`ClientOptions::batch`] makes it send several calls in one message: more calls a second, later results.
//! - [`CallError`] says what became of a call.

#[cfg(feature = "service")]
pub use farcall_rpc::service;
#[cfg(feature = "tokio")]
pub use farcall_rpc::{Addresses, AsyncClient, AsyncHandler, AsyncServers, OwnedCall, Retry, Spread};
pub use farcall_rpc::{
    Broken, Call, CallError, CallId, CallOptions, Client, ClientOptions, Completion, ConnectError, Counters,
    Deferred, Dispatcher, DrainHandle, Executed, Handler, HandlerError, NothingOutstanding, PerCall, Reply,
    Requester, Server, ServerBuilder, ServerError, ServerThread, UnknownBecause, Verbs,
};

/// How the server ended a call: in [`CallError::Server`].
pub use farcall_rpc::wire::Status;

/// What a connection can do, measured before, and what is chosen by that.
pub mod tune {
    pub use farcall_rpc::tune::{
        Decision, InvalidProfile, LinkProfile, Peer, Posting, ProfileError, ProfileFile, ReadCost, Scope,
        choose,
    };
}

/// How a thread waits: for [`ServerBuilder::waiting`] and [`ClientOptions::wait_by`].
pub use farcall_link::Waiting;

/// Which batches: for [`ClientOptions::batch`].
pub use farcall_link::{BatchConfig, BatchSizing};
