//! `farcall page cleanup`.

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use serde_json::json;

/// Clean up after runs whose processes were killed: kill their programs, and remove their swap areas.
///
/// Runs whose processes exist are not changed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall page cleanup\n  farcall page cleanup --json")]
pub struct Cleanup {}

impl Cleanup {
    /// Cleans up.
    ///
    /// # Errors
    /// If a part of a run cannot be removed.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let runs = farcall_paging::clean_up()
            .map_err(|error| Failure::because("cannot list earlier runs", &error).remedy("run it as root"))?;
        let left: Vec<String> =
            runs.iter().filter_map(|(_, undone)| undone.as_ref().err()).flatten().cloned().collect();
        let pids: Vec<u32> = runs.iter().map(|(run, _)| run.supervisor()).collect();
        let text = match runs.len() {
            0 => "there is nothing to clean up".to_owned(),
            count => format!("{count} runs were cleaned up"),
        };
        if left.is_empty() {
            console.print(&text, &json!({ "undone": pids }))?;
            return Ok(Exit::Success);
        }
        Err(Failure::new("not everything could be cleaned up")
            .why(left.join("; "))
            .remedy("end the processes that use it, then repeat: farcall page cleanup"))
    }
}
