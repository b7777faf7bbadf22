//! `farcall figures`: the figures of the papers, measured on this machine.

mod auto;
mod list;
mod report;
mod run;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Subcommand;
use std::path::Path;

/// Default file that `run` writes and `report` reads.
const RESULTS_FILE: &str = "figures.json";

/// Measure the figures of the papers here, beside what they publish.
///
/// The papers: A is RF-RPC and its store Jakiro, B a study of communication patterns, C RDMAbox, E HERD.
#[derive(Debug, Subcommand)]
pub enum Figures {
    List(list::List),
    Run(run::Run),
    Auto(auto::Auto),
    Report(report::Report),
}

impl Figures {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Returns the failure of the subcommand.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self {
            Self::List(list) => list.run(console),
            Self::Run(run) => run.run(console),
            Self::Auto(auto) => auto.run(console),
            Self::Report(report) => report.run(console),
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::because("cannot write the file", error)
        .at(path.display())
        .remedy("name a file in a directory that you may write: --output FILE")
}
