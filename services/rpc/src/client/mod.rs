//! The clients that users hold: calls and windows of outstanding calls, waiting, reconnection.
//!
//! `blocking` is the interface of the one that waits, `waiting` how it does; `asynchronous` runs under tokio. Both hold
//! a `session`, and so do the connections of a `dispatcher`, which makes the calls of many threads; what they have in
//! common where several callers use one session is in `shared`. `automatic` is what a client does that may choose its
//! verbs.

#[cfg(feature = "tokio")]
mod addresses;
#[cfg(feature = "tokio")]
mod asynchronous;
mod automatic;
mod blocking;
mod bootstrap;
mod dispatcher;
mod erased;
mod options;
#[cfg(feature = "tokio")]
mod servers;
mod session;
mod shared;
mod waiting;

#[cfg(feature = "tokio")]
pub use addresses::Addresses;
#[cfg(feature = "tokio")]
pub use asynchronous::AsyncClient;
pub use blocking::{BatchClient, Client, ClientOf, NothingOutstanding, StaticClient};
pub use dispatcher::{Dispatcher, Requester, ServerThread};
pub use erased::{AnyCaller, any_caller};
pub use options::{ClientOptions, PerCall, Verbs};
#[cfg(feature = "tokio")]
pub use servers::{AsyncServers, Retry, Spread};

/// Turns of the endpoint between two decisions on waiting.
const TURNS: u32 = 16;
