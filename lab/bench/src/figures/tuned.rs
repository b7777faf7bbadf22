//! Rates at the window with the highest rate, as HERD tunes it for each point (section 3.1).

use super::sample::Sample;
use super::servers::Servers;
use crate::rnic::{Direction, RnicError, RnicTask};
use std::fmt::{self, Write};

/// Candidate numbers of outstanding requests on each connection.
const WINDOWS: [u32; 6] = [2, 4, 8, 16, 32, 64];

/// A rate whose window is chosen in its first measurement.
pub(super) struct TunedRate {
    task: RnicTask,
    direction: Direction,
    is_chosen: bool,
}

impl fmt::Display for TunedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, direction, is_chosen } = self;
        write!(f, "{task}, {} B, {direction}", task.len_bytes)?;
        match is_chosen {
            true => write!(f, ", window {}", task.tuning.window),
            false => f.write_str(", choosing the window"),
        }
    }
}

impl TunedRate {
    pub(super) fn new(task: RnicTask, direction: Direction) -> Self {
        Self { task, direction, is_chosen: false }
    }

    /// Measures at the chosen window. A measurement that was used to choose the window is not a result, because the
    /// best of several is biased.
    ///
    /// # Errors
    /// Returns the errors of [`Servers::rate`]. Returns [`RnicError::Illegal`] if the device supports no window.
    pub(super) fn measure(&mut self, servers: &Servers<'_>) -> Result<Sample, RnicError> {
        if !self.is_chosen {
            self.task = self.best(servers)?;
            self.is_chosen = true;
        }
        servers.rate(self.task, self.direction)
    }

    fn best(&self, servers: &Servers<'_>) -> Result<RnicTask, RnicError> {
        let mut best = (self.task, f64::NEG_INFINITY);
        for window in WINDOWS {
            let task = RnicTask { tuning: self.task.tuning.with_window(window), ..self.task };
            match servers.rate(task, self.direction) {
                Ok(sample) if sample.common.per_second > best.1 => best = (task, sample.common.per_second),
                Ok(_) => {}
                // A device that cannot hold this many requests cannot hold more.
                Err(RnicError::Illegal(_)) if best.1.is_finite() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(best.0)
    }
}

/// Returns the chosen windows: a sentence for each curve.
pub(super) fn windows<'a>(rates: impl Iterator<Item = (&'static str, &'a TunedRate)>) -> Vec<String> {
    let mut sentences: Vec<(&str, String)> = Vec::new();
    for (series, rate) in rates.filter(|(_, rate)| rate.is_chosen) {
        let place = sentences.iter().position(|(begun, _)| *begun == series).unwrap_or_else(|| {
            sentences.push((series, format!("{series}: windows chosen among {WINDOWS:?}:")));
            sentences.len() - 1
        });
        // Writing to a string cannot fail.
        let _ = write!(sentences[place].1, " {} at {} B,", rate.task.tuning.window, rate.task.len_bytes);
    }
    sentences.into_iter().map(|(_, sentence)| sentence.trim_end_matches(',').to_owned() + ".").collect()
}
