//! The experiments, one file each. All repetitions are interleaved: a slow second of the machine hits every rival alike.

pub mod limits;
mod stage;

pub use stage::{Progress, Stage};
