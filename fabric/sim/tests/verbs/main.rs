//! Two queue pairs over a simulated network.

mod congestion;
mod failures;
mod operations;
mod support;
