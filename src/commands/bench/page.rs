//! `farcall bench page`: page faults of a swapped program.

use crate::commands::memory::size;
use crate::commands::nic_args::NicArgs;
use crate::console::{Console, spinner};
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use clap::Args;
use farcall_bench::experiments::ExperimentEnv;
use farcall_bench::paged::swap_faults::{self, AreaFaults, SwapFaultsPlan};
use serde_json::{Value, json};
use std::time::Duration;

/// Measure page faults of a swapped program, compared with a swap file and zram.
///
/// A Python program writes to memory of which only a part may be resident, then touches pages at random. The time of
/// each touch that waits for a page is measured, and every page is checked. The swap area is in turn a pager that stores
/// the pages itself (the empty path, without memory nodes), one memory node on this machine, a swap file below /var/tmp,
/// and zram. The program touches one page at a time; the kernel may read adjacent pages ahead. Has the requirements of
/// farcall page.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall bench page\n  farcall bench page --size 512M --resident-percent 50 --json"
)]
pub struct PageBench {
    /// Size of the memory that is touched.
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::bytes)]
    size: u64,
    /// Part of this memory that may be resident.
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u8).range(10..=90))]
    resident_percent: u8,
    /// Number of touches in each round.
    #[arg(long, value_name = "COUNT", default_value_t = 20_000,
          value_parser = clap::value_parser!(u32).range(100..=1 << 24))]
    touches: u32,
    /// Number of rounds. Each round measures every swap area once.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Seed of the order of pages.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    nic: NicArgs,
}

impl PageBench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If a page has wrong contents, or a program fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let selected = self.nic.open()?;
        // The touches determine the duration of a round.
        let env = ExperimentEnv::new(self.repetitions, Duration::ZERO, self.seed)
            .map_err(|error| Failure::because("cannot prepare the measurement", &error))?;
        let plan = SwapFaultsPlan {
            size_bytes: self.size,
            resident_percent: self.resident_percent,
            touches: self.touches,
            rounds: self.repetitions,
            seed: self.seed,
        };
        let (stop, line) = (StopFlag::install()?, spinner());
        let found = swap_faults::run(&plan, &selected.selection, &env, &mut |what| {
            line.set_message(what.to_owned());
            !stop.is_raised()
        });
        line.finish_and_clear();
        if found.is_err() && stop.is_raised() {
            return Ok(Exit::Interrupted);
        }
        let found = found.map_err(|error| Failure::because("cannot measure swapped pages", &*error))?;
        console.print(&text(&found, &selected.explanation), &value(&found, &plan))?;
        let is_measured = found.iter().any(|area| area.found.is_ok());
        Ok(if is_measured { Exit::Success } else { Exit::Negative })
    }
}

fn text(found: &[AreaFaults], provider: &dyn std::fmt::Display) -> String {
    let empty = found.first().and_then(|area| area.found.as_ref().ok()).map(|faults| faults.p50_us);
    let mut text = String::from("swapped pages        faults   p50 µs   p99 µs   p50 / empty");
    for area in found {
        text += &match &area.found {
            Ok(faults) => {
                let ratio = empty.map_or(f64::NAN, |empty| faults.p50_us / empty);
                format!(
                    "\n{:18} {:8} {:8.1} {:8.1} {ratio:13.2}",
                    area.area, faults.faults, faults.p50_us, faults.p99_us
                )
            }
            Err(why) => format!("\n{:18} not available: {why}", area.area),
        };
    }
    text + &format!("\n{provider}")
}

fn value(found: &[AreaFaults], plan: &SwapFaultsPlan) -> Value {
    let area = |area: &AreaFaults| match &area.found {
        Ok(faults) => json!({ "area": area.area, "faults": faults.faults, "p50_us": faults.p50_us,
                              "p99_us": faults.p99_us }),
        Err(why) => json!({ "area": area.area, "not_here": why }),
    };
    json!({
        "size_bytes": plan.size_bytes, "resident_percent": plan.resident_percent, "touches": plan.touches,
        "rounds": plan.rounds, "seed": plan.seed, "areas": found.iter().map(area).collect::<Vec<_>>(),
    })
}
