//! Drivers for endpoints, which own no thread, clock or socket.
//!
//! Every driver follows one rule: *progress until idle, arm, progress once more, then sleep* ([`arm_then_look`]; the
//! thread loop, the tokio driver and the blocking client call it). The last progress call makes lost wake-ups
//! impossible: it finds events that occurred before arming, and events after arming wake the thread.
//!
//! The time for which a thread polls before it sleeps depends on the [`Waiting`](farcall_link::Waiting) strategy,
//! which only the driver knows. BPEV (RR-Compound, algorithm 2) polls for about a round trip (`spin.rs`).
//! [`contention`] is the only module that reads the kernel's signs of competition for the processors. Under
//! contention, strategies that sleep do not poll, unless the user has set a time, because a thread that polls takes
//! the processor from its peer. The thread sleeps at once, wakes its peer once for each message, and requests short
//! time slices from the scheduler.
//!
//! While the thread of an endpoint sleeps, [`Pollers`] that the user has started may poll for it. An endpoint with a
//! *news probe* (some words of memory, and the values that the thread has already seen) is armed as *covered*: its
//! peer need not wake it, and the poller writes the thread's event descriptor when the words change. When nothing
//! arrives, or cores are scarce, a poller releases all endpoints: each thread wakes once and arms its own events, and
//! the poller sleeps. A control word per endpoint states which thread polls (`farcall_shm::cover_word`).
//!
//! * [`arm_then_look`]: the rule against lost wake-ups.
//! * [`Driver`]: a loop in the calling thread.
//! * [`IdleTurns`]: polling time before a sleep, by the [`Waiting`](farcall_link::Waiting) strategy of the plan.
//! * [`contention`]: detection of threads that compete for the processors.
//! * [`Waiter`]: polling, arming and pollers, for the thread that drives one endpoint.
//! * [`Pollers`]: threads that poll for threads that sleep (BPEV).
//! * [`Stop`]: ends a loop from another thread or a signal handler's thread.
//! * [`Listener`]: accepts bootstrap connections over TCP, refuses invalid input, and passes handshakes to server
//!   threads. Each connection stays open, and its hang-up indicates that the peer has exited or closed.
//! * [`AcceptRest`], [`deepen_backlog`]: shared parts of all accept loops.
//! * [`Seldom`]: a warning that is logged once, however often its cause occurs.
//! * [`Sleeper`]: sleep and wake-up of a thread whose work arrives through memory of its own process.
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
