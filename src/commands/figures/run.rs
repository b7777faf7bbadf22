//! `farcall figures run`.

use super::{RESULTS_FILE, cannot_write};
use crate::commands::halves::HalvesArgs;
use crate::commands::measuring::StageArgs;
use crate::commands::nic_args::NicArgs;
use crate::console::{Console, spinner};
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use crate::whole_file;
use clap::Args;
use farcall_bench::figures::{
    Experiment, NotBetweenHosts, Results, RunPlan, run, select, select_between_hosts,
};
use farcall_bench::report::{Report as TextReport, Wide};
use std::path::PathBuf;

/// Measure experiments between two processes of this host, or of two hosts, and write their results to a file.
///
/// The curves of an experiment are interleaved; figures are medians over the repetitions. The file is written anew after
/// each experiment: what was measured before Ctrl-C, a failure or a kill is in it. What cannot be measured here yet is in
/// it, too, with its reason and the paper's numbers.
///
/// Between two hosts each does its half: --listen, --connect. What is of one host (bare limits; the servers of paper D)
/// is left out there, and the results say so. Any server half will do, also one of rpc bench or kv bench.
#[derive(Debug, Args)]
#[command(
    mut_arg("repetitions", |arg| arg.default_value("3")),
    mut_arg("duration_ms", |arg| arg.default_value("200")),
    after_help = "Examples:\n  farcall figures run                      everything, about half an hour\n  \
                  farcall figures run A.5 B.3 --repetitions 5\n  \
                  farcall figures run E --provider ibv --output rnic.json\n  \
                  farcall figures report --input rnic.json\n  \
                  farcall figures run --listen 0.0.0.0:11400 --provider ibv         on the server's host, and on the client's:\n  \
                  farcall figures run A B E --connect server:11400 --provider ibv"
)]
pub struct Run {
    /// Papers (A to E), experiments (A.5) or figures with several panels (B.3); by default all.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Where to write the results.
    #[arg(long, value_name = "FILE", default_value = RESULTS_FILE)]
    output: PathBuf,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    stage: StageArgs,
    #[command(flatten)]
    halves: HalvesArgs,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Run {
    /// Measures, writes the results, and prints a report.
    ///
    /// # Errors
    /// If a name is unknown, the provider cannot be used, or the file cannot be written.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if let Some(exit) = self.halves.serve(console, &self.nic)? {
            return Ok(exit);
        }
        let experiments = self.experiments()?;
        let (chosen, stage) = (self.nic.choose()?, self.halves.stage(&self.stage, self.seed)?);
        let stop = StopFlag::install()?;
        let line = spinner();
        let mut written = Ok(());
        let plan = RunPlan { experiments: &experiments, chosen: &chosen, stage: &stage };
        let progress = &mut |what: &str| {
            line.set_message(what.to_owned());
            !stop.is_raised()
        };
        let results = run(&plan, progress, |results| {
            let text = format!("{:#}\n", results.to_json());
            written = whole_file::write(&self.output, text.as_bytes());
        });
        line.finish_and_clear();
        let report = TextReport::from(&results);
        if console.is_wide {
            console.say(&Wide(&report), &results.to_json())?;
        } else {
            console.say(&report, &results.to_json())?;
        }
        written.map_err(|error| cannot_write(&self.output, &error))?;
        if !console.is_json() {
            println!("results: {}; as a page: farcall figures report --input {0}", self.output.display());
        }
        Ok(exit_of(&stop, &results))
    }
}

impl Run {
    fn experiments(&self) -> Result<Vec<&'static Experiment>, Failure> {
        let unknown = |error: &(dyn std::error::Error + 'static)| {
            Failure::because("cannot run this", error).remedy("see: farcall figures list").exit(Exit::Usage)
        };
        if !self.halves.is_client_half() {
            return select(&self.names).map_err(|error| unknown(&error));
        }
        select_between_hosts(&self.names).map_err(|error| match &error {
            NotBetweenHosts::Unknown(error) => unknown(error),
            NotBetweenHosts::OfOneHost { rest, .. } => {
                let others = if rest.is_empty() { "A B E" } else { rest };
                Failure::because("cannot measure this between two hosts", &error)
                    .remedy(format!("name others: farcall figures run {others} --connect HOST:PORT"))
                    .exit(Exit::Usage)
            }
        })
    }
}

fn exit_of(stop: &StopFlag, results: &Results) -> Exit {
    match (stop.is_raised(), results.is_sound()) {
        (true, _) => Exit::Interrupted,
        (false, true) => Exit::Success,
        (false, false) => Exit::Failure,
    }
}
