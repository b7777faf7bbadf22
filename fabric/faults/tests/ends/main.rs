//! Faults between two endpoints.

mod failures;
mod lateness;
mod losses;
mod repeatable;
mod support;
