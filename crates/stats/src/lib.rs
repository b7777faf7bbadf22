//! Counters with one writer, in shared memory, readable from outside and after the process died.
//!
//! A process has one file in a private directory; every endpoint has a *block* in it: named counters and a small flight
//! recorder. Writing costs a load and a store on the endpoint's own cache line. If the file cannot be made (read-only
//! system, no space), blocks live in private memory and nobody but the process reads them.
//!
//! The file is for people and tools; nothing else in Farcall depends on it.

mod block;
mod counter;
mod directory;
mod format;
mod page;
mod read;

pub use block::{Block, Counters};
pub use counter::Counter;
pub use directory::{StatsError, directory};
pub use page::{Held, hold_for_fork};
pub use read::{BlockReport, FlightRecord, Report, parse, read_pid};
