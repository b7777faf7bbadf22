//! The library as a replacement of the system's.

mod batches;
mod compile;
mod containers;
mod faults;
mod files;
mod man_pages;
mod programs;
mod pyverbs;
mod refusals;
mod roff;
mod roles;
mod stats;
mod support;
mod symbols;
mod trace;
mod ucx;
