//! A conformance suite of verbs semantics for every provider, written from the InfiniBand specification and
//! rdma-core's man pages.
//!
//! A [`Case`] is a stable name, its source and a function of two [`End`]s, the initiator and the target. The calls of
//! an end are executed by an [`Executor`]: a device in this process ([`Local`]), or one behind a socket to an agent
//! process ([`Remote`]). The same cases therefore run in one process, and between processes, users and containers. A
//! [`World`] creates the executors and lets time pass: a short sleep on real devices, virtual time in the simulator.
//! [`run`] runs cases and reports for each whether it passed, failed with the observed behaviour, needs an operation
//! that the device does not support, or is a listed [`Deviation`].
//!
//! `docs/CONFORMANCE.md` describes how to run it, and the deviations of each provider.

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
pub use world::{Host, Pace, Simulated, World};
