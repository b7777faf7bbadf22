//! What runs endpoints: they own no thread, clock or socket, so somebody must.
//!
//! * [`Driver`]: a loop in the calling thread. Its rule against lost wake-ups stands in one place: progress until idle,
//!   arm, progress once more, sleep.
//! * [`Pacer`]: how long to poll before sleeping, by the plan's [`Waiting`](farcall_link::Waiting).
//! * [`Stop`]: ends a loop from another thread or a signal handler's thread.
//! * [`Listener`]: accepts bootstrap connections over TCP, refuses garbage, and hands handshakes to server threads; the
//!   connection stays as a lifeline whose hang-up says that the peer went.
//! * [`Inbox`]: what is handed to a thread that polls and sometimes sleeps.
//! * [`on_termination`], [`pin_to_core`]: signals and cores.
//! * `tokio_driver` (feature `tokio`): the same rule as a future.

mod cores;
mod driver;
mod inbox;
mod listener;
mod pacer;
mod signals;
mod sleep;
mod stop;
#[cfg(feature = "tokio")]
pub mod tokio_driver;

pub use cores::pin_to_core;
pub use driver::Driver;
pub use inbox::Inbox;
pub use listener::{LineEvent, LineId, LineSender, ListenConfig, Listener};
pub use pacer::{Pace, Pacer};
pub use signals::on_termination;
pub use sleep::sleep_on;
pub use stop::Stop;
