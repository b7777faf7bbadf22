//! Counters with one writer, in shared memory, that other processes can read, also after the process has exited.
//!
//! A process has one segment of System V shared memory. Every endpoint has a *block* in it: named counters and a small
//! flight recorder. An update costs a load and a store on the endpoint's own cache line. If there is no System V shared
//! memory, blocks are in private memory that only the process itself can read, and one warning is logged.
//!
//! The segment serves operators and tools; no other part of Farcall depends on it.

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

pub use block::Block;
pub use connection::{Connection, PathReason};
pub use counter::{Counter, Counters};
pub use error::StatsError;
pub use page::{LockedPage, lock_for_fork, renew_in_child};
pub use prometheus::prometheus;
pub use queue_pair::QpTransport;
pub use read::{BlockReport, FlightRecord, Report, parse, read_all, read_pid};
pub use segment::probe;
pub use times::{Histogram, Times};
