//! The clients of applications: calls and windows of outstanding calls, waiting, reconnection.
//!
//! `blocking` is the blocking client; `asynchronous` is the client for tokio. Both hold a `session`, as do the
//! connections of a `dispatcher`, which makes the calls of many threads.
//! `shared` is the common part where several callers use one session. `preset_fallback` selects the verbs of a client
//! without a configured preset.

#[cfg(feature = "tokio")]
mod addresses;
#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod bootstrap;
mod dispatcher;
mod erased;
mod options;
mod preset_fallback;
#[cfg(feature = "tokio")]
mod servers;
mod session;
mod shared;

#[cfg(feature = "tokio")]
pub use addresses::Addresses;
#[cfg(feature = "tokio")]
pub use asynchronous::AsyncClient;
pub use blocking::{BatchClient, Client, ClientOf, NothingOutstanding, StaticClient};
pub use dispatcher::{Dispatcher, Requester, ServerThread};
pub use erased::{AnyCaller, any_caller};
pub use options::{CallOptions, ClientOptions, Verbs};
#[cfg(feature = "tokio")]
pub use servers::{AsyncServers, LoadBalancing, Retry};

/// Driver iterations between two decisions on waiting.
const TURNS: u32 = 16;
