//! Drivers for endpoints, which own no thread, clock or socket.
//!
//! Every driver follows one rule: *progress until idle, arm, progress once more, then sleep* ([`arm_then_poll`]; the
//! thread loop, the tokio driver and the blocking client call it). The last progress call makes lost wake-ups
//! impossible: it finds events that occurred before arming, and events after arming wake the thread.
//!
//! The time for which a thread polls before it sleeps depends on the [`WaitStrategy`](farcall_link::WaitStrategy),
//! which only the driver knows. BPEV (RR-Compound, algorithm 2) polls for about a round trip (`spin.rs`).
//! [`contention`] is the only module that reads the kernel's signs of competition for the processors. Under
//! contention, strategies that sleep do not poll, unless the user has set a time, because a thread that polls takes
//! the processor from its peer. The thread sleeps at once, wakes its peer once for each message, and requests short
//! time slices from the scheduler.
//!
//! While the thread of an endpoint sleeps, [`Pollers`] that the user has started may poll for it. An endpoint with a
//! *wake probe* (some words of memory, and the values that the thread has already seen) is armed for *delegated*
//! polling: its peer need not wake it, and the poller writes the thread's event descriptor when the words change. When
//! nothing arrives, or cores are scarce, a poller releases all endpoints: each thread wakes once and arms its own
//! events, and the poller sleeps. A control word per endpoint states which thread polls
//! (`farcall_shm::delegation_word`).
//!
//! * [`arm_then_poll`]: the rule against lost wake-ups.
//! * [`Driver`]: a loop in the calling thread.
//! * [`IdlePolicy`]: polling time before a sleep, by the [`WaitStrategy`](farcall_link::WaitStrategy) of the plan.
//! * [`contention`]: detection of threads that compete for the processors.
//! * [`Waiter`]: polling, arming and pollers, for the thread that drives one endpoint.
//! * [`Pollers`]: threads that poll for threads that sleep (BPEV).
//! * [`Stop`]: ends a loop from another thread or a signal handler's thread.
//! * [`Listener`]: accepts bootstrap connections over TCP, refuses invalid input, and passes handshakes to server
//!   threads. Each connection stays open, and its hang-up indicates that the peer has exited or closed.
//! * [`AcceptBackoff`], [`deepen_backlog`]: shared parts of all accept loops.
//! * [`LogThrottle`]: a warning that is logged once, however often its cause occurs.
//! * [`Parker`]: sleep and wake-up of a thread whose work arrives through memory of its own process.
//! * [`WakeQueue`]: items for a thread that polls and sometimes sleeps.
//! * [`on_termination`], [`pin_to_core`], [`HeapTrimmer`], [`limit_retained_memory`]: signals, cores, memory.
//! * `TokioDriver` (feature `tokio`): endpoints as futures.

mod accept_backoff;
pub mod contention;
mod cores;
mod driver;
#[cfg(test)]
mod ends_once_armed;
mod heap_trimmer;
mod idle_policy;
mod listener;
mod log_throttle;
mod parker;
mod pollers;
mod signals;
mod sleep;
mod spin;
mod stop;
#[cfg(feature = "tokio")]
mod tokio_driver;
mod waiter;
mod wake_queue;

pub use accept_backoff::{AcceptBackoff, BACKLOG, deepen_backlog};
pub use cores::pin_to_core;
pub use driver::Driver;
pub use heap_trimmer::{HeapTrimmer, limit_retained_memory};
pub use idle_policy::IdlePolicy;
pub use listener::{AuthorizeUser, BootstrapEvent, BootstrapId, BootstrapSender, ListenConfig, Listener};
pub use log_throttle::LogThrottle;
pub use parker::Parker;
pub use pollers::Pollers;
pub use signals::on_termination;
pub use sleep::{arm_then_poll, sleep_on};
pub use stop::Stop;
#[cfg(feature = "tokio")]
pub use tokio_driver::TokioDriver;
pub use waiter::Waiter;
pub use wake_queue::WakeQueue;
