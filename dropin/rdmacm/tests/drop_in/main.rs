//! The library as a replacement of the system's, together with Farcall's libibverbs.

mod containers;
mod ends;
mod hosts;
mod libfabric;
mod meeting;
mod moved;
mod programs;
mod refusals;
mod strangers;
#[allow(dead_code, reason = "the tests of libibverbs use all of it")]
#[path = "../../../ibverbs/tests/drop_in/support.rs"]
mod support;
mod symbols;
mod trace;
