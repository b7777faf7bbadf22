//! The load generator: a closed loop over any number of connections, each with a window of outstanding operations,
//! that checks every value it reads.

mod bypass;
mod ledger;
mod memcached;
mod result;
mod rpc;
mod runner;
mod target;

pub use bypass::BypassTarget;
pub use ledger::Ledger;
pub use memcached::MemcachedTarget;
pub use result::{LoadError, LoadResult};
pub use rpc::{AUTO, RpcTarget, Traffic, client_options, in_batches, settle, tuning_condition};
pub use runner::{Connection, Load, LoadPlan};
pub use target::{Outcome, Request, Target, TargetError};
