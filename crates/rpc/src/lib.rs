//! Remote-fetching RPC over RDMA verbs.
#![cfg_attr(not(test), warn(missing_docs))]

mod caller;
mod config;
mod counters;
mod error;
mod responder;
pub mod tune;
pub mod wire;

pub use caller::{CallId, CallOptions, Caller, Completion, FetchThenReply, Path, ServerReply};
pub use config::{CallerConfig, ResponderConfig};
pub use counters::{Counter, Counters};
pub use error::{Broken, CallError, ConnectError, Executed, UnknownBecause};
pub use responder::{Call, ConnectionId, Handler, HandlerError, Reply, Responder, ResponderEvent};
