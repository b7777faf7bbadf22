//! Counters with one writer, in shared memory, readable from outside and after the process died.
//!
//! A process has one segment of System V shared memory; every endpoint has a *block* in it: named counters and a small
//! flight recorder. Writing costs a load and a store on the endpoint's own cache line. If there is no such memory,
//! blocks live in private memory, nobody but the process reads them, and a warning says so once.
//!
//! The segment is for people and tools; nothing else in Farcall depends on it.

mod block;
mod connection;
mod counter;
mod error;
mod format;
mod page;
mod prometheus;
mod queue_pair;
mod read;
mod segment;
mod times;

pub use block::{Block, Counters};
pub use connection::{Connection, Why};
pub use counter::Counter;
pub use error::StatsError;
pub use page::{LockedPage, lock_for_fork, renew_in_child};
pub use prometheus::prometheus;
pub use queue_pair::PairWay;
pub use read::{BlockReport, FlightRecord, Report, parse, read_all, read_pid};
pub use segment::try_out;
pub use times::{Histogram, Times};
