//! `farcall figures list`.

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::figures::{Experiment, papers};
use serde_json::json;

/// List the experiments, and the reason for which some cannot be measured yet.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall figures list\n  farcall figures list --json | jq '.experiments[].id'"
)]
pub struct List {}

impl List {
    /// Prints the list.
    ///
    /// # Errors
    /// If standard output cannot be written to.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let values: Vec<_> = papers::all()
            .map(|experiment| {
                let Experiment { id, title, place, paper, .. } = experiment;
                json!({
                    "id": id, "title": title, "paper": paper.title, "place": place, "file": paper.file,
                    "not_yet_measurable_because": experiment.not_yet,
                })
            })
            .collect();
        console.print(&text(), &json!({ "experiments": values }))?;
        Ok(Exit::Success)
    }
}

fn text() -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut paper = None;
    for experiment in papers::all() {
        if paper != Some(experiment.paper.letter) {
            paper = Some(experiment.paper.letter);
            lines.push(format!("{}  {}", experiment.paper.letter, experiment.paper.title));
        }
        lines.push(format!("  {:<13} {}", experiment.id, experiment.title));
        if let Some(because) = experiment.not_yet {
            lines.push(format!("  {:<13}   not yet measurable, because {because}", ""));
        }
    }
    lines.join("\n")
}
