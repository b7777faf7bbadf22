//! Machine learning in Python.

use super::confinement::Confinement;
use super::{Resident, script};
use crate::experiments::{ExperimentEnv, ExperimentError};
use farcall::select::Selection;
use serde::Deserialize;
use std::fmt;
use std::path::Path;

const SCRIPT: &str = include_str!("learning.py");
/// Size of the data in MiB.
const DATA_MIB: u64 = 96;

/// Learning algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    LogisticRegression,
    GradientBoosting,
    KMeans,
    TextRank,
}

names! {
    Algorithm {
        LogisticRegression => "logistic regression", GradientBoosting => "gradient boosting",
        KMeans => "k-means", TextRank => "TextRank",
    }
}

/// Configuration of one training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LearningTask {
    pub(crate) algorithm: Algorithm,
    pub(crate) resident: Resident,
}

impl fmt::Display for LearningTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.algorithm, self.resident)
    }
}

/// Output of the script.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Learnt {
    seconds: f64,
    digest: String,
    peak_bytes: u64,
}

/// Result of each algorithm with all of its memory resident.
#[derive(Default)]
pub(crate) struct Learning {
    references: Vec<(Algorithm, Learnt)>,
}

impl Learning {
    /// Returns the duration of a training in seconds.
    ///
    /// # Errors
    /// Returns [`NotHere`](super::NotHere) if the machine does not support the confinement. Returns an error if the
    /// script fails, or if its result differs from that with all of its memory resident.
    pub(crate) fn train(
        &mut self,
        task: LearningTask,
        python: &Path,
        nic: &Selection,
        env: &ExperimentEnv,
    ) -> Result<f64, ExperimentError> {
        let LearningTask { algorithm, resident } = task;
        let run = |confinement: &Confinement| {
            let args = [algorithm.name().to_owned(), DATA_MIB.to_string()];
            let cores = [env.server_core, env.client_core];
            script::run::<Learnt>(confinement, python, SCRIPT, &args, &cores)
        };
        let reference = match self.references.iter().find(|(whose, _)| *whose == algorithm) {
            Some((_, reference)) => reference.clone(),
            None => {
                let learnt = run(&Confinement::none())?;
                self.references.push((algorithm, learnt.clone()));
                if resident == Resident::ALL {
                    return Ok(learnt.seconds);
                }
                learnt
            }
        };
        let peak_bytes = reference.peak_bytes;
        let bytes = resident.bytes_of(peak_bytes);
        let learnt = run(&Confinement::open(resident.backing, bytes, peak_bytes, nic, env)?)?;
        if learnt.digest != reference.digest {
            let what =
                format!("{task}: learnt something else: {} instead of {}", learnt.digest, reference.digest);
            return Err(what.into());
        }
        Ok(learnt.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learnt_is_a_matter_of_the_data_alone() {
        let Ok(python) = crate::python::python_with("numpy", "numpy") else {
            println!("SKIPPED: there is no numpy");
            return;
        };
        let core = crate::measure::Cores::allowed().unwrap().as_slice()[0];
        let mut digests = Vec::new();
        for algorithm in Algorithm::ALL {
            let run = || {
                let args = [algorithm.name().to_owned(), "1".to_owned()];
                script::run::<Learnt>(&Confinement::none(), Path::new(&python), SCRIPT, &args, &[core])
                    .unwrap()
            };
            let (first, second) = (run(), run());
            assert!(first.seconds > 0.0 && first.peak_bytes > 1 << 20, "{first:?}");
            assert_eq!(first.digest, second.digest, "{algorithm}");
            digests.push(first.digest);
        }
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), Algorithm::ALL.len());
    }
}
