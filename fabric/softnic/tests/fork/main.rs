//! Tests of processes that fork. A program of its own, because forked children inherit the threads' locks: no unrelated
//! test may run in a process that forks.

#[path = "../support/mod.rs"]
mod support;

mod fork;
mod moved_memory;
