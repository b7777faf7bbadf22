//! What runs endpoints: they own no thread, clock or socket, so somebody must.
//!
//! * [`arm_then_look`]: the rule against lost wake-ups, in the one place where it stands.
//! * [`Driver`]: a loop in the calling thread.
//! * [`IdleTurns`]: how long to poll before sleeping, by the plan's [`Waiting`](farcall_link::Waiting).
//! * [`contention`]: whether threads compete for the processors; then those that wait do not poll.
//! * [`Waiter`]: both of them for the owner of one endpoint, with pollers.
//! * [`Pollers`]: threads that look on behalf of those that sleep (BPEV).
//! * [`Stop`]: ends a loop from another thread or a signal handler's thread.
//! * [`Listener`]: accepts bootstrap connections over TCP, refuses garbage, and hands handshakes to server threads;
//!   each connection stays open, and its hang-up says that the peer went.
//! * [`AcceptRest`], [`deepen_backlog`]: what all accept loops have in common.
//! * [`Seldom`]: a warning that is told once, however often its cause comes.
//! * [`Sleeper`]: what a thread sleeps on whose work comes through memory of its own process.
//! * [`WakeQueue`]: what is handed to a thread that polls and sometimes sleeps.
//! * [`on_termination`], [`pin_to_core`], [`KeptMemory`], [`bound_kept_memory`]: signals, cores, memory.
//! * `TokioDriver` (feature `tokio`): endpoints as futures.

mod accepting;
pub mod contention;
mod cores;
mod driver;
mod idle_turns;
mod kept_memory;
mod listener;
mod pollers;
mod seldom;
mod signals;
mod sleep;
mod sleeper;
mod spin;
mod stop;
#[cfg(feature = "tokio")]
mod tokio_driver;
mod waiter;
mod wake_queue;

pub use accepting::{AcceptRest, BACKLOG, deepen_backlog};
pub use cores::pin_to_core;
pub use driver::Driver;
pub use idle_turns::IdleTurns;
pub use kept_memory::{KeptMemory, bound_kept_memory};
pub use listener::{BootstrapEvent, BootstrapId, BootstrapSender, JudgeUser, ListenConfig, Listener};
pub use pollers::Pollers;
pub use seldom::Seldom;
pub use signals::on_termination;
pub use sleep::{arm_then_look, sleep_on};
pub use sleeper::Sleeper;
pub use stop::Stop;
#[cfg(feature = "tokio")]
pub use tokio_driver::TokioDriver;
pub use waiter::Waiter;
pub use wake_queue::WakeQueue;
