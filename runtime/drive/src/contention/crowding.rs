//! Decision by the number of runnable threads whether threads compete for the processors.

/// Number of consecutive samples with more runnable threads than processors that count as contention: another thread
/// often runs for a moment only.
const CROWDED_SAMPLES: u32 = 2;
/// Number of consecutive samples without such an excess after which polling is tried again.
const CALM_SAMPLES: u32 = 10;
/// Upper bound of that number. It doubles each time that a trial fails: while threads sleep at once, the thread that
/// is missing for an excess may be the peer, which would poll, too.
const CALM_SAMPLES_MAX: u32 = 640;

/// The state of the decision.
pub(super) struct Crowding {
    is_contended: bool,
    /// Consecutive samples that contradict `is_contended`.
    contrary: u32,
    /// Samples since polling was tried again.
    trial: u32,
    calm_needed: u32,
}

impl Crowding {
    pub fn new() -> Self {
        Self { is_contended: false, contrary: 0, trial: CROWDED_SAMPLES, calm_needed: CALM_SAMPLES }
    }

    /// Takes in a sample of the number of runnable threads, including the caller, and of processors. Returns whether
    /// threads compete. With a single processor they always do: polling is never an advantage.
    pub fn sample(&mut self, threads: usize, cores: usize) -> bool {
        let is_crowded = threads > cores;
        self.contrary = if is_crowded == self.is_contended { 0 } else { self.contrary + 1 };
        if self.is_contended {
            // A processor is free for the peer, or a peer that polls in any case was among the runnable threads.
            if threads < cores || self.contrary >= self.calm_needed {
                (self.is_contended, self.contrary, self.trial) = (false, 0, 0);
            }
        } else {
            if self.contrary >= CROWDED_SAMPLES {
                let has_failed = self.trial < CROWDED_SAMPLES;
                self.calm_needed =
                    if has_failed { (2 * self.calm_needed).min(CALM_SAMPLES_MAX) } else { CALM_SAMPLES };
                (self.is_contended, self.contrary) = (true, 0);
            }
            self.trial = self.trial.saturating_add(1);
        }
        self.is_contended || cores <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(crowding: &mut Crowding, samples: u32, threads: usize) -> bool {
        (0..samples).fold(false, |_, _| crowding.sample(threads, 2))
    }

    #[test]
    fn ignores_a_thread_that_runs_for_a_moment() {
        let mut crowding = Crowding::new();
        for _ in 0..100 {
            assert!(!after(&mut crowding, 1, 3) && !after(&mut crowding, 1, 2));
        }
        assert!(after(&mut crowding, CROWDED_SAMPLES, 3));
        assert!(Crowding::new().sample(1, 1), "one processor");
    }

    #[test]
    fn polls_again_where_the_peer_polls_in_any_case() {
        let mut crowding = Crowding::new();
        assert!(after(&mut crowding, CROWDED_SAMPLES, 3));
        assert!(after(&mut crowding, CALM_SAMPLES - 1, 2));
        assert!(!after(&mut crowding, 1, 2));
        // The next excess is another one.
        assert!(!after(&mut crowding, CROWDED_SAMPLES, 2));
        assert!(after(&mut crowding, CROWDED_SAMPLES, 3));
        assert!(!after(&mut crowding, CALM_SAMPLES, 2));
    }

    #[test]
    fn polls_again_at_once_where_a_processor_is_free() {
        let mut crowding = Crowding::new();
        assert!(after(&mut crowding, CROWDED_SAMPLES, 3) && !after(&mut crowding, 1, 1));
    }

    /// Another thread computes, and the sleeping peer polls whenever this thread does.
    #[test]
    fn tries_ever_more_rarely_beside_a_thread_that_computes() {
        let mut crowding = Crowding::new();
        let (mut is_contended, mut polls) = (false, 0);
        for _ in 0..20 * CALM_SAMPLES_MAX {
            polls += u32::from(!is_contended);
            is_contended = crowding.sample(if is_contended { 2 } else { 3 }, 2);
        }
        assert!((40..80).contains(&polls), "{polls}");
    }
}
