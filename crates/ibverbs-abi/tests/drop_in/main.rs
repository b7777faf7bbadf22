//! The library in the place of the system's.

mod programs;
mod support;
mod symbols;
