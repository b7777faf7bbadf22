//! One conformance suite of verbs semantics, written from the InfiniBand specification and rdma-core's man pages, for
//! every provider.
//!
//! A [`Case`] is a stable name, its source and a function of two [`End`]s, the initiator and the target. The calls of
//! an end go to an [`Executor`]: a device in this process ([`Local`]) or one behind a socket to an agent process
//! ([`Remote`]). So the same cases run in one process, between processes, users and containers. A [`World`] makes the
//! executors and lets time pass: a short sleep on real devices, virtual time in the simulator. [`run`] runs cases and
//! says of each whether it passed, failed with what was seen, needs what the device does not have, or is a listed
//! [`Deviation`].
//!
//! `docs/CONFORMANCE.md` tells how to run it and what each provider deviates in.

mod case;
mod cases;
mod deviation;
mod end;
mod executor;
mod finding;
mod glob;
mod op;
mod report;
mod run;
mod setup;
mod watchdog;
mod world;

pub use case::{Case, Feature, Need};
pub use cases::all;
pub use deviation::{Deviation, of_provider};
pub use end::End;
pub use executor::{
    About, Answer, Call, Cq, Executor, Handle, Local, Memory, Mr, Qp, QpInit, Reason, RecvRequest, Refusal,
    Remote, SendRequest, Sleep, Target, serve,
};
pub use finding::{Finding, Verdict};
pub use glob::matches;
pub use report::{CaseReport, Outcome, Report};
pub use run::run;
pub use world::{Host, Pace, Processes, Simulated, World};
