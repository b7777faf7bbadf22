//! `farcall figures`: the figures of the papers, measured on this machine.

mod auto;
mod list;
mod report;
mod run;

use crate::commands::command_group::command_group;
use crate::failure::Failure;
use std::path::Path;

/// Default file that `run` writes and `report` reads.
const RESULTS_FILE: &str = "figures.json";

command_group! {
    /// Measure the figures of papers on this machine, compared with what they publish.
    ///
    /// The papers: A is RF-RPC and its store Jakiro, B a study of communication patterns, C RDMAbox, E HERD.
    pub enum Figures {
        always {
            List(list::List),
            Run(run::Run),
            Auto(auto::Auto),
            Report(report::Report),
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::because("cannot write the file", error)
        .at(path.display())
        .remedy("name a file in a directory to which you may write: --output FILE")
}
