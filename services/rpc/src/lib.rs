//! Remote calls over RDMA verbs: RF-RPC, server-reply, and SENDs in either direction.
//!
//! The client writes the request by RDMA WRITE. The server executes the call and leaves the result in its own memory,
//! and the client fetches the result by RDMA READ (RF-RPC). For methods that take long, or always (server-reply), the
//! server writes the result to the client instead. For quick methods the server's NIC does only in-bound work, and its
//! CPU spends no time on sending.
//!
//! ```
//! use farcall_link::Nic;
//! use farcall_rpc::{Call, Client, ClientOptions, Reply, Server};
//! use farcall_softnic::SoftNic;
//!
//! // A server: one thread, on a free port of the loopback interface.
//! let echo = |call: &Call<'_>, reply: &mut Reply<'_>| {
//!     reply.extend_from_slice(call.payload());
//!     Ok(())
//! };
//! let nic = Nic::open(&SoftNic::new())?;
//! let server = Server::builder().start(&nic, move |_thread| echo)?;
//!
//! // A client, here or in another process.
//! let address = server.address().to_string();
//! let mut client = Client::connect(&nic, address, ClientOptions::default())?;
//! let mut reply = Vec::new();
//! client.call(1, b"hello", &mut reply)?;
//! assert_eq!(reply, b"hello");
//!
//! server.drain();
//! server.join();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layers
//! * [`Server`] and [`Client`]: threads, sockets, waiting, reconnection. Most programs need only these.
//!   [`StaticClient`] is a client whose response path is fixed at compile time.
//! * [`Responder`] and [`Caller`]: the endpoints of the server and of the client, without thread, clock or socket.
//! * [`tune`]: R and F, and the rules by which a client without a configured preset selects one.
//! * [`wire`]: headers, slots, tails.

#![forbid(unsafe_code)]

mod caller;
mod client;
mod config;
mod counters;
mod error;
mod inbox;
mod paths;
mod responder;
mod server;
#[cfg(feature = "service")]
pub mod service;
pub mod tune;
pub mod wire;

pub use caller::{BatchCaller, CallContext, CallId, Caller, CallerState, Completion};
#[cfg(feature = "tokio")]
pub use client::{Addresses, AsyncClient, AsyncServers, LoadBalancing, Retry};
pub use client::{
    AnyCaller, BatchClient, CallOptions, Client, ClientOf, ClientOptions, Dispatcher, NothingOutstanding,
    Requester, ServerThread, StaticClient, Verbs, any_caller,
};
pub use config::{CallerConfig, ResponderConfig};
pub use counters::Counters;
pub use error::{Broken, CallError, ConnectError, Executed, HandlerError, UnknownBecause};
pub use paths::{
    BySend, DatagramReply, DatagramRequest, DenseMailbox, Fetch, FetchThenReply, NotifyThenFetch, OverUc,
    OverUd, Path, RequestPath, ResponsePath, SendReply, SendRequest, ServerReply, WithDoorbellByte,
    WriteMailbox,
};
pub use responder::{Call, ConnectionId, Deferred, Handler, Reply, Responder, ResponderEvent};
#[cfg(feature = "tokio")]
pub use server::{AsyncHandler, OwnedCall};
pub use server::{DrainHandle, ResponderParts, Server, ServerBuilder, ServerError, ThreadEndpoint};
