//! `farcall doctor`: checks whether this machine can run Farcall, and prints remedies.

mod check;
mod container;
mod kernel;
mod limits;
mod machine;
mod programs;
#[cfg(feature = "full")]
mod region;
mod rnic;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use check::{Finding, Verdict};
use clap::Args;
use serde_json::json;
use std::fmt::Write;

/// Check whether this machine can run Farcall, and print remedies.
///
/// Changes nothing. Where possible, a check uses the feature itself. Exits with 1 if a required feature is missing.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall doctor\n  farcall doctor --json | jq '.checks[] | select(.verdict != \"ok\")'"
)]
pub struct Doctor {
    /// Show only warnings and failures.
    #[arg(long, short)]
    quiet: bool,
}

impl Doctor {
    /// Runs all checks.
    ///
    /// # Errors
    /// If the result cannot be printed.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let findings: Vec<Finding> = [
            kernel::check(),
            limits::check(),
            machine::check(),
            container::check(),
            vec![programs::check()],
            #[cfg(feature = "full")]
            vec![region::check()],
            rnic::check(),
        ]
        .into_iter()
        .flatten()
        .collect();
        let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
        let (ok, warnings, failures) = (count(Verdict::Ok), count(Verdict::Warn), count(Verdict::Fail));
        let mut text = String::new();
        for finding in findings.iter().filter(|finding| !self.quiet || finding.verdict != Verdict::Ok) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{finding}");
        }
        let _ = write!(text, "{ok} ok, {warnings} warnings, {failures} failures");
        let checks: Vec<_> = findings.iter().map(Finding::to_json).collect();
        console.print(
            &text,
            &json!({ "ok": ok, "warnings": warnings, "failures": failures, "checks": checks }),
        )?;
        Ok(if failures == 0 { Exit::Success } else { Exit::Failure })
    }
}
