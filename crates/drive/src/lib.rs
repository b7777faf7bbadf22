//! What runs endpoints: they own no thread, clock or socket, so somebody must.
//!
//! * [`Driver`]: a loop in the calling thread. Its rule against lost wake-ups stands in one place: progress until idle,
//!   arm, progress once more, sleep.
//! * [`Pacer`]: how long to poll before sleeping, by the plan's [`Waiting`](farcall_link::Waiting).
//! * [`Stop`]: ends a loop from another thread or a signal handler's thread.
//! * [`tokio_driver`] (feature `tokio`): the same rule as a future.

mod driver;
mod pacer;
mod sleep;
mod stop;
#[cfg(feature = "tokio")]
pub mod tokio_driver;

pub use driver::Driver;
pub use pacer::{Pace, Pacer};
pub use sleep::sleep_on;
pub use stop::Stop;
