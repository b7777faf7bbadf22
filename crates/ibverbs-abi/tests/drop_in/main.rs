//! The library in the place of the system's.

mod containers;
mod files;
mod programs;
mod pyverbs;
mod roles;
mod support;
mod symbols;
mod trace;
mod ucx;
