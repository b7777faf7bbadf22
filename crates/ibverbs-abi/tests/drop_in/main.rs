//! The library in the place of the system's.

mod batches;
mod containers;
mod faults;
mod files;
mod programs;
mod pyverbs;
mod roles;
mod stats;
mod support;
mod symbols;
mod trace;
mod ucx;
