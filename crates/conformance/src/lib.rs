//! One conformance suite of verbs semantics, written from the InfiniBand specification and rdma-core's man pages, for
//! every provider.
//!
//! A [`Case`] is a stable name, its source and a function of two [`Peer`]s. Each peer is one end ([`Side`]): a device
//! in this process ([`Local`]) or one behind a line to an agent process ([`Remote`]), so the same cases run in
//! process, across processes, users and containers. A [`World`] makes the ends and lets time pass: a short sleep on
//! real devices, virtual time in a simulated one. [`run`] runs cases and says of each whether it passed, failed with
//! what was seen, needs what the device does not have, or is a listed [`Deviation`].
//!
//! `docs/CONFORMANCE.md` tells how to run it and what each provider deviates in.

mod case;
mod cases;
mod deviation;
mod finding;
mod glob;
mod op;
mod peer;
mod report;
mod run;
mod setup;
mod side;
mod watchdog;
mod world;

pub use case::{Case, Feature, Need};
pub use cases::all;
pub use deviation::{Deviation, of_provider};
pub use finding::{Finding, Verdict};
pub use glob::matches;
pub use peer::Peer;
pub use report::{CaseReport, Outcome, Report};
pub use run::run;
pub use side::{
    About, Answer, Call, Cq, Event, Handle, Local, Memory, Mr, Path, Piece, Qp, QpMake, Reason, RecvRequest,
    Refusal, Remote, SendRequest, Side, Sleep, Target, serve,
};
pub use world::{Host, Pace, Processes, Simulated, World};
