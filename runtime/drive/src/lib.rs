//! Runs endpoints, which own no thread, clock or socket.
//!
//! Whoever runs endpoints follows one rule: *progress until idle, arm, progress once more, then sleep*
//! ([`arm_then_look`]; the thread loop, the tokio driver and the blocking client call it). The last look makes lost
//! wake-ups impossible: it finds what came before arming, and what comes after arming wakes.
//!
//! How long a thread polls before it sleeps is the [`Waiting`](farcall_link::Waiting) strategy, which belongs to the
//! driver alone. BPEV (RR-Compound, algorithm 2) polls for about a round trip (`spin.rs`). While threads compete for
//! the processors ([`contention`] is the one place that reads the kernel's signs of it), strategies that sleep do not
//! poll, unless the user has set a time, because a thread that polls takes the processor from its peer: it sleeps at
//! once, wakes its peer once for each message, and requests short time slices of the scheduler.
//!
//! While an owner sleeps, [`Pollers`] that the user has started may poll for it. An endpoint with a *news probe* (some
//! words of memory, and what its owner knows of them) is armed as *covered*: its peer pays for no wake-up, and the
//! poller writes the owner's event descriptor when the words change. When nothing moves, or cores are short, a poller
//! releases all endpoints: each owner wakes once, arms its own events, and the poller sleeps. A word for each endpoint
//! says which thread has which duty (`farcall_shm::cover_word`).
//!
//!
//! * [`arm_then_look`]: the rule against lost wake-ups.
//! * [`Driver`]: a loop in the calling thread.
//! * [`IdleTurns`]: how long to poll before sleeping, by the plan's [`Waiting`](farcall_link::Waiting).
//! * [`contention`]: whether threads compete for the processors; then those that wait do not poll.
//! * [`Waiter`]: both of them for the owner of one endpoint, with pollers.
//! * [`Pollers`]: threads that poll for threads that sleep (BPEV).
//! * [`Stop`]: ends a loop from another thread or a signal handler's thread.
//! * [`Listener`]: accepts bootstrap connections over TCP, refuses garbage, and hands handshakes to server threads;
//!   each connection stays open, and its hang-up says that the peer went.
//! * [`AcceptRest`], [`deepen_backlog`]: what all accept loops have in common.
//! * [`Seldom`]: a warning that is logged once, however often its cause occurs.
//! * [`Sleeper`]: what a thread sleeps on if its work comes through memory of its own process.
//! * [`WakeQueue`]: items for a thread that polls and sometimes sleeps.
//! * [`on_termination`], [`pin_to_core`], [`KeptMemory`], [`bound_kept_memory`]: signals, cores, memory.
//! * `TokioDriver` (feature `tokio`): endpoints as futures.

mod accepting;
pub mod contention;
mod cores;
mod driver;
#[cfg(test)]
mod ends_once_armed;
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
