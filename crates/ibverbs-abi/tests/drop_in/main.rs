//! The library in the place of the system's.

mod files;
mod programs;
mod support;
mod symbols;
mod ucx;
