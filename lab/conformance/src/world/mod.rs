//! Locations of the two ends of a case, and their time.

mod host;
mod simulated;

use std::time::Duration;

pub use host::Host;
pub use simulated::Simulated;

use crate::executor::Executor;

/// Durations in a world.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time after which an expected event counts as lost.
    pub deadline: Duration,
    /// Time during which an unexpected event must not occur.
    pub quiet: Duration,
    /// ACK timeout code and number of retries of cases that wait for the end of retries: 4.096 µs · 2^code.
    pub quick_retry: (u8, u8),
    /// Number of attempts of a case with unreliable queue pairs, which may lose packets that the network loses.
    pub unreliable_tries: u32,
}

/// A location for the two ends of cases.
pub trait World {
    /// Returns a description.
    fn name(&self) -> String;

    /// Returns the provider's name.
    fn provider(&self) -> &'static str;

    /// Returns executors of the calls of the two ends, without any objects.
    ///
    /// # Errors
    /// Returns the reason if there are none.
    fn executors(&self) -> Result<[Box<dyn Executor>; 2], String>;

    /// Lets a short time pass.
    fn idle(&self);

    /// Returns the current time.
    fn now(&self) -> Duration;

    /// Returns the durations.
    fn pace(&self) -> Pace;
}
