//! Faults between two ends.

mod failures;
mod lateness;
mod losses;
mod repeatable;
mod support;
