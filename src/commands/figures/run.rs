//! `farcall figures run`.

use super::{RESULTS_FILE, cannot_write};
use crate::commands::bench_args::RepetitionArgs;
use crate::commands::nic_args::NicArgs;
use crate::commands::remote_args::RemoteArgs;
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

/// Measure experiments on this host, or between two hosts, and write their results to a file.
///
/// The curves of an experiment are interleaved; figures are medians over the repetitions. The file is rewritten after
/// each experiment, so it contains all results before Ctrl-C, a failure or a kill. It also lists the experiments that
/// cannot be measured yet, with the reason and the numbers of the paper.
///
/// To measure between two hosts, start one half on each (--listen, --connect). Experiments that need one host (bare
/// limits, the servers of paper D) are omitted then, and the results name them. The server half may also be one of bench
/// rpc or bench kv.
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
    /// Papers (A to E), experiments (A.5) or figures with several panels (B.3) [default: all].
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// File of the results.
    #[arg(long, value_name = "FILE", default_value = RESULTS_FILE)]
    output: PathBuf,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    repeat: RepetitionArgs,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Seed of all random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Run {
    /// Measures, writes the results, and prints a report.
    ///
    /// # Errors
    /// If a name is unknown, the provider cannot be used, or the file cannot be written.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if let Some(exit) = self.remote.serve(console, &self.nic)? {
            return Ok(exit);
        }
        let experiments = self.experiments()?;
        let (selected, env) = (self.nic.open()?, self.remote.env(&self.repeat, self.seed)?);
        let stop = StopFlag::install()?;
        let line = spinner();
        let mut written = Ok(());
        let plan = RunPlan { experiments: &experiments, chosen: &selected, env: &env };
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
            console.print(&Wide(&report), &results.to_json())?;
        } else {
            console.print(&report, &results.to_json())?;
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
            Failure::because("cannot run these experiments", error)
                .remedy("list the experiments: farcall figures list")
                .exit(Exit::Usage)
        };
        if !self.remote.is_client_half() {
            return select(&self.names).map_err(|error| unknown(&error));
        }
        select_between_hosts(&self.names).map_err(|error| match &error {
            NotBetweenHosts::Unknown(error) => unknown(error),
            NotBetweenHosts::OfOneHost { rest, .. } => {
                let others = if rest.is_empty() { "A B E" } else { rest };
                Failure::because("cannot measure these experiments between two hosts", &error)
                    .remedy(format!(
                        "name other experiments: farcall figures run {others} --connect HOST:PORT"
                    ))
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
