//! The failures that real fabrics give, made on purpose: a provider around a provider.
//!
//! `FARCALL_FAULTS="seed=7,rnr=1e-3,delay=50us,kill_qp=1e-6"` makes programs meet them. What is decided depends on the
//! seed, on the order in which queue pairs are made, and on how many requests each has posted; not on addresses, time
//! or other queue pairs. So the same seed gives the same faults at the same requests.
//!
//! Semantics stay those of verbs: completions of a queue pair keep their order, a failed request is followed by
//! flushes, events come when the completions do, and none is lost. Nothing here runs unless faults are asked for.
//! Times are the machine's: virtual time has faults of its own (`farcall-sim`).
//!
//! | file | what it holds |
//! |---|---|
//! | `spec` | the text of what is asked for |
//! | `plan` | what is decided, by seed, and counted |
//! | `provider` | devices, contexts, domains that make the objects below |
//! | `qp`, `decision` | what is decided about a request, and done |
//! | `cq`, `pair` | completions that come late, or otherwise |
//! | `channel`, `due`, `watcher`, `timer`, `events`, `event_queue` | events when they are due |

mod channel;
mod cq;
mod decision;
mod due;
mod event_queue;
mod events;
mod pair;
mod plan;
mod provider;
mod qp;
mod spec;
mod timer;
mod watcher;

pub use plan::{Fault, Faults, Observer};
pub use spec::{Chance, Delay, Spec, SpecError, VARIABLE};
