//! Merging and chaining of requests (RDMAbox, section IV-A), without I/O.
//!
//! * [`MergeQueue`]: holds requests in the order in which they were submitted. Requests that are adjacent in remote
//!   memory become one [`Work`] request, within [`Combining`] and [`Limits`]; several work requests become one
//!   [`Doorbell`].
//! * `InFlightRanges`: the ranges of remote memory that work requests in flight access. A request that overlaps one of
//!   them waits, unless both read. So no merging, chaining or choice of queue pair changes the bytes that a READ
//!   returns.
//!
//! # One queue, not two
//!
//! The paper has a merge queue for READs and one for WRITEs, and leaves it to the block layer above that none of them
//! overlap. Here a read that overlaps a write before it must return what was written. With two queues and two threads
//! that drain them the read could be posted first. Therefore all requests arrive through one
//! [`CombiningQueue`](crate::combining_queue::CombiningQueue) and wait in one order. READs and WRITEs are merged
//! separately, and are posted with the same doorbell.
//!
//! # Lock-free, or a short lock?
//!
//! Requests arrive through a lock-free queue ([`CombiningQueue`](crate::combining_queue::CombiningQueue), checked by
//! loom), since a thread that is preempted while it enqueues a request must not stop the others. Only the thread that
//! holds the combiner role ([`CombinerGuard`](crate::combining_queue::CombinerGuard)) accesses the merge queue. It
//! holds the role only while it plans, and releases it before it copies and posts. Several threads can therefore post
//! over several queue pairs at the same time.

mod in_flight_ranges;
mod merge;
mod merge_queue;
mod span;

pub use merge::{Combining, Work, WorkLimits};
pub use merge_queue::{Counts, Doorbell, Limits, MergeQueue};
pub use span::{Direction, Memory, Request, Span};
