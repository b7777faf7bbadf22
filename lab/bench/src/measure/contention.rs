//! Detection of other programs that compete with a measurement for the processors.

use farcall_drive::contention::excess_threads;
use std::time::Duration;

/// Number of samples of the number of runnable threads, and interval between them. With several samples, a program
/// that happens to run at one of them is not decisive.
const SAMPLES: u32 = 20;
const SAMPLE_PERIOD: Duration = Duration::from_millis(5);

/// Samples the machine for a tenth of a second while nothing is measured. Returns a warning if more threads are
/// runnable than the machine has cores.
pub fn contention_warning() -> Option<String> {
    excess_threads(SAMPLES, SAMPLE_PERIOD).and_then(warning_of_excess)
}

/// Returns the warning for an average of `excess` runnable threads more than cores.
fn warning_of_excess(excess: f64) -> Option<String> {
    (excess > 0.0).then(|| {
        format!(
            "while nothing was measured, {excess:.1} more threads were runnable than this machine has cores: the figures \
             show how the scheduler divides the processors; measure again on a quiet machine"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_if_runnable_threads_exceed_cores() {
        assert_eq!(warning_of_excess(-1.0), None);
        assert_eq!(warning_of_excess(0.0), None);
        assert!(warning_of_excess(18.25).unwrap().contains("18.2 more threads were runnable"));
    }
}
