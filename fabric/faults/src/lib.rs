//! Fault injection: a provider that wraps another provider and injects the failures of real networks.
//!
//! `FARCALL_FAULTS="seed=7,rnr=1e-3,delay=50us,kill_qp=1e-6"` enables it in programs. The decisions depend on the seed,
//! on the order in which queue pairs are created, and on the number of requests that each has posted. They do not
//! depend on addresses, time or other queue pairs. The same seed therefore gives the same faults at the same requests.
//!
//! The semantics remain those of verbs: completions of a queue pair keep their order, a failed request is followed by
//! flushes, events are raised when the completions become visible, and none is lost. Without a request for faults none
//! of this code runs. Times are those of the machine's clock; the simulator with its virtual time has faults of its own
//! (`farcall-sim`).
//!
//! | file | contents |
//! |---|---|
//! | `spec` | the textual specification of the faults |
//! | `plan` | decisions by seed, and their counters |
//! | `provider` | devices, contexts, domains that create the objects below |
//! | `qp`, `fault_planner` | decisions about requests, and their execution |
//! | `cq`, `qp_state` | completions that are delayed or changed |
//! | `channel`, `due_events`, `watcher`, `timer`, `events`, `event_queue` | events at the time when they are due |

mod channel;
mod cq;
mod due_events;
mod event_queue;
mod events;
mod fault_planner;
mod plan;
mod provider;
mod qp;
mod qp_state;
mod spec;
mod timer;
mod watcher;

pub use plan::{Fault, Faults, Observer};
pub use spec::{Chance, Delay, Spec, SpecError, VARIABLE};
