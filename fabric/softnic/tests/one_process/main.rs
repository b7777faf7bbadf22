//! Tests with both ends in one process. A program with one file per subject: the tests share the process's device, as
//! the threads of a program do. Tests that use many descriptors run in a process of their own (`is_alone`).

#[path = "../support/mod.rs"]
mod support;

mod atomics;
mod crowd;
mod errors;
mod events;
mod imports;
mod operations;
mod private_memory;
mod registered_anew;
mod srq;
mod srq_events;
mod srq_unpolled;
mod states;
mod uc;
mod ud;
mod ud_slow;
mod ud_states;
