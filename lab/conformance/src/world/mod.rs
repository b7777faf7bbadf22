//! Where the two ends of a case live, and how time passes there.

mod host;
mod simulated;

use std::time::Duration;

pub use host::{Host, Processes};
pub use simulated::Simulated;

use crate::executor::Executor;

/// How long things take in a world.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long anything may take before it is called lost.
    pub deadline: Duration,
    /// How long to look for what must not happen.
    pub quiet: Duration,
    /// ACK timeout code and retries of cases that wait for retries to end: 4.096 µs · 2^code.
    pub quick_retry: (u8, u8),
    /// How often a case of unreliable queue pairs is tried: they lose what the network loses, as they may.
    pub unreliable_tries: u32,
}

/// A place for cases.
pub trait World {
    /// What runs where, in words.
    fn name(&self) -> String;

    /// The provider's name.
    fn provider(&self) -> &'static str;

    /// What executes the calls of the two ends; no objects exist.
    ///
    /// # Errors
    /// If there are none; the text says why.
    fn executors(&self) -> Result<[Box<dyn Executor>; 2], String>;

    /// Lets a little time pass.
    fn idle(&self);

    /// The time.
    fn now(&self) -> Duration;

    /// How long things take.
    fn pace(&self) -> Pace;
}
