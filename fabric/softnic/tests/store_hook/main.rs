//! Tests that kill or stop a process before its n-th store to shared memory, for every n. A program of its own, because
//! the tests load both processors and count resources of the entire process; each runs in a process of its own
//! (`is_alone`), one at a time.

#[path = "../../../../tests/support/store_step.rs"]
mod store_step;
#[path = "../support/mod.rs"]
mod support;

mod store_hook;
mod store_hook_private;
mod store_hook_srq;
mod store_hook_unreliable;
