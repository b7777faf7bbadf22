//! Latency of page faults from a swap area: random accesses to memory of which a part is resident.

use super::confinement::Confinement;
use super::{Backing, NotHere, script, supported};
use crate::experiments::{ExperimentEnv, ExperimentError, Progress};
use crate::python::python_with;
use farcall::select::Selection;
use serde::Deserialize;
use std::path::Path;

const SCRIPT: &str = include_str!("swap_faults.py");
/// Memory of Python in addition to the accessed memory, in bytes.
const PYTHON_BYTES: u64 = 12 << 20;

/// Plan of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapFaultsPlan {
    /// Size of the memory in bytes.
    pub size_bytes: u64,
    /// Percentage of the memory that is resident.
    pub resident_percent: u8,
    /// Accesses per round.
    pub touches: u32,
    /// Number of rounds, in each of which every area is measured.
    pub rounds: u32,
    /// Seed of the order of pages.
    pub seed: u64,
}

/// Results of one program.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Round {
    faults: u64,
    p50_us: f64,
    p99_us: f64,
}

/// Faults of one kind of area.
#[derive(Debug, Clone, PartialEq)]
pub struct AreaFaults {
    /// Name of the area.
    pub area: &'static str,
    /// Results, or the reason why the machine has no such area.
    pub found: Result<SwapFaults, String>,
}

/// Results over all rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwapFaults {
    /// Number of accesses that loaded a page.
    pub faults: u64,
    /// Median of the rounds' medians, in microseconds.
    pub p50_us: f64,
    /// Median of the rounds' 99th percentiles, in microseconds.
    pub p99_us: f64,
}

/// Order of the areas in each round.
const AREAS: [Backing; 4] = [Backing::Bare, Backing::Remote, Backing::Disk, Backing::Zram];

/// Measures the areas in turn, each with a program of its own. `tell` is called before each measurement with its
/// description; if it returns false, no further measurement begins.
///
/// # Errors
/// Returns an error if a page is wrong, or if a program fails.
pub fn run(
    plan: &SwapFaultsPlan,
    nic: &Selection,
    env: &ExperimentEnv,
    tell: Progress<'_>,
) -> Result<Vec<AreaFaults>, ExperimentError> {
    let python = python_with("mmap", "python3")?;
    let mut found = AREAS.map(|_| Ok(Vec::new()));
    for round in 0..plan.rounds {
        for (area, found) in AREAS.iter().zip(&mut found) {
            let Ok(rounds) = found else { continue };
            if !tell(&format!("{}, round {} of {}", area.name(), round + 1, plan.rounds)) {
                return Err("it was ended before all was measured".into());
            }
            match supported(one(plan, round, *area, Path::new(&python), nic, env))? {
                Ok(round) => rounds.push(round),
                Err(NotHere(why)) => *found = Err(why),
            }
        }
    }
    let of = |(area, found): (Backing, Result<Vec<Round>, String>)| AreaFaults {
        area: area.name(),
        found: found.map(|rounds| sum(&rounds)),
    };
    Ok(AREAS.into_iter().zip(found).map(of).collect())
}

fn one(
    plan: &SwapFaultsPlan,
    round: u32,
    area: Backing,
    python: &Path,
    nic: &Selection,
    env: &ExperimentEnv,
) -> Result<Round, ExperimentError> {
    let (peak_bytes, resident) = (plan.size_bytes + PYTHON_BYTES, u64::from(plan.resident_percent));
    let resident_bytes = plan.size_bytes / 100 * resident + PYTHON_BYTES;
    let confinement = Confinement::open(area, resident_bytes, peak_bytes, nic, env)?;
    let seed = plan.seed.wrapping_add(round.into());
    let args = [plan.size_bytes.to_string(), plan.touches.to_string(), seed.to_string()];
    script::run(&confinement, python, SCRIPT, &args, &[env.server_core, env.client_core])
}

fn sum(rounds: &[Round]) -> SwapFaults {
    let median = |of: fn(&Round) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_unstable_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    };
    SwapFaults {
        faults: rounds.iter().map(|round| round.faults).sum(),
        p50_us: median(|round| round.p50_us),
        p99_us: median(|round| round.p99_us),
    }
}

#[cfg(test)]
mod tests {
    use super::super::script::tests::python;
    use super::*;

    #[test]
    fn counts_no_faults_for_resident_pages() {
        let Some(python) = python() else { return };
        let core = crate::measure::Cores::allowed().unwrap().as_slice()[0];
        let args = [(4 << 20).to_string(), "500".to_owned(), "7".to_owned()];
        let round = script::run::<Round>(&Confinement::none(), python, SCRIPT, &args, &[core]).unwrap();
        assert!(round.faults < 50, "{round:?}");
    }

    #[test]
    fn rounds_are_summed_by_their_medians() {
        let round = |faults, p50_us, p99_us| Round { faults, p50_us, p99_us };
        let found = sum(&[round(10, 3.0, 9.0), round(20, 1.0, 8.0), round(30, 2.0, 7.0)]);
        assert_eq!(found, SwapFaults { faults: 60, p50_us: 2.0, p99_us: 8.0 });
    }
}
