//! `farcall figures report`.

use super::{RESULTS_FILE, cannot_write};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::whole_file;
use clap::Args;
use farcall_bench::figures::{Results, page};
use serde_json::json;
use std::path::PathBuf;

/// Write results as one HTML file with plots and tables, which needs no network.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall figures report\n  \
                        farcall figures report --input rnic.json --output rnic.html")]
pub struct Report {
    /// File that `farcall figures run` wrote.
    #[arg(long, value_name = "FILE", default_value = RESULTS_FILE)]
    input: PathBuf,
    /// File of the page.
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

impl Report {
    /// Reads the results and writes the page.
    ///
    /// # Errors
    /// If the input is not a results file, or is one of a newer farcall, or the page cannot be written.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let failure = |error: &dyn std::error::Error| {
            Failure::because("cannot read the results", error)
                .at(self.input.display())
                .remedy("measure them: farcall figures run")
                .exit(Exit::Usage)
        };
        let text = std::fs::read_to_string(&self.input).map_err(|error| failure(&error))?;
        let results = Results::from_json(&text).map_err(|error| failure(&error))?;
        whole_file::write(&self.output, page(&results).as_bytes())
            .map_err(|error| cannot_write(&self.output, &error))?;
        let text = format!("{} experiments: {}", results.experiments.len(), self.output.display());
        console.print(&text, &json!({ "page": self.output, "experiments": results.experiments.len() }))?;
        Ok(Exit::Success)
    }
}
