//! Two queue pairs over a simulated network.

mod failures;
mod operations;
mod support;
