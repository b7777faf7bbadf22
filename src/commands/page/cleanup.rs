//! `farcall page cleanup`.

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use serde_json::json;

/// Undo what runs left behind whose processes were killed: their programs are killed, their swap areas end.
///
/// Runs whose processes are alive are left alone.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall page cleanup\n  farcall page cleanup --json")]
pub struct Cleanup {}

impl Cleanup {
    /// Cleans up.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let runs = farcall_paging::clean_up().map_err(|error| {
            Failure::because("cannot see what runs left behind", &error).remedy("run it as root")
        })?;
        let left: Vec<String> =
            runs.iter().filter_map(|(_, undone)| undone.as_ref().err()).flatten().cloned().collect();
        let pids: Vec<u32> = runs.iter().map(|(paths, _)| paths.supervisor()).collect();
        let text = match runs.len() {
            0 => "nothing is left behind".to_owned(),
            count => format!("{count} runs were undone"),
        };
        if left.is_empty() {
            console.say(&text, &json!({ "undone": pids }))?;
            return Ok(Exit::Success);
        }
        Err(Failure::new("not everything could be undone")
            .why(left.join("; "))
            .remedy("end what uses it, then once more: farcall page cleanup"))
    }
}
