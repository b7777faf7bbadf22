//! The load generator: a loop over any number of connections, each with a window of outstanding operations. It runs
//! closed-loop or to a schedule, and checks every value that it reads.

mod bypass;
mod ledger;
mod memcached;
mod presets;
mod redis;
mod result;
mod rpc;
mod runner;
mod target;

pub use bypass::BypassTarget;
pub use ledger::Ledger;
pub use memcached::MemcachedTarget;
pub(crate) use presets::presets;
pub use redis::RedisTarget;
pub use result::{LoadError, LoadResult};
pub use rpc::{AUTO, RpcTarget, Traffic, client_options, in_batches, settle, tuning_condition};
pub use runner::{Connection, Load, LoadPlan};
pub use target::{Outcome, Request, Target, TargetError};
