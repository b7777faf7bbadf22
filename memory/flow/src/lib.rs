//! Merging, chaining and admission of requests to remote memory: the fifth axis of the design space, without I/O.
//!
//! Threads that read and write remote memory bring more requests than a device likes. RDMAbox (section IV) puts them
//! together where they stack up, and only there:
//!
//! * [`Arrivals`]: threads leave requests without waiting for one another. Who comes first gets the [`Turn`] and takes
//!   what has come; later ones return at once. A lone request is taken at once, by who brought it.
//! * [`MergeQueue`]: what has come waits here, in order. Requests adjacent in remote memory become one [`Work`]
//!   request, as many as [`Combining`] and [`Limits`] allow; several of them go behind one [`Doorbell`].
//! * [`Admission`]: a [`Window`] of bytes in flight, or a policy of the user's. What is held back keeps merging.
//! * [`Coverage`]: which bytes are under way. What overlaps them waits, so that no merging, chaining or choice of queue
//!   pair can change what is read.
//! * [`Pieces`]: the pool of registered memory that short requests are copied through.
//!
//! # One queue, not two
//!
//! The paper has a merge queue for READs and one for WRITEs, and leaves it to the block layer above that none of them
//! overlap. Here a read that overlaps a write before it must see it. With two queues and two threads that drain them it
//! could be posted first. So all requests come through one [`Arrivals`] and wait in one order; READs and WRITEs are
//! told apart where they are merged, and go behind the same doorbell.
//!
//! # Lock-free, or a short lock?
//!
//! Requests arrive through a lock-free list ([`Arrivals`], checked by loom), since a thread that is preempted while it
//! leaves a request must not stop the others. The queue behind it belongs to whoever has the turn; he needs no lock,
//! and needs the turn for planning alone: he gives it back before he copies and posts, so that several may post over
//! several queue pairs.
//!
//! What posts, completes and calls back is `farcall-remio`.

mod arrivals;
mod coverage;
mod merge;
mod merge_queue;
mod pieces;
mod span;
mod sync;
mod window;

pub use arrivals::{Arrivals, Turn};
pub use coverage::Coverage;
pub use merge::{Combining, Work, WorkLimits};
pub use merge_queue::{Counts, Doorbell, Limits, MergeQueue};
pub use pieces::{Piece, Pieces};
pub use span::{Direction, Memory, Request, Span};
pub use window::{Admission, Window};
