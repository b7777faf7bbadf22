//! Tests that kill processes at random moments. A program of its own, because the tests load both processors and count
//! resources of the entire process; each runs in a process of its own (`is_alone`), one at a time.

#[path = "../support/mod.rs"]
mod support;

mod kill_random;
mod kill_random_unreliable;
