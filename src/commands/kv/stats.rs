//! `farcall kv stats`.

use super::address::Server;
use super::client::KvClient;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use serde_json::{Map, Value};

/// Print the statistics of a key-value service.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall kv stats\n  farcall kv stats --json | jq '.get_hits'")]
pub struct Stats {
    #[command(flatten)]
    server: Server,
}

impl Stats {
    /// Reads the statistics and prints them.
    ///
    /// # Errors
    /// If the service cannot be reached or fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stats = KvClient::connect(&self.server)?.stats()?;
        let width = stats.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let lines: Vec<String> =
            stats.iter().map(|(name, value)| format!("{name:<width$}  {value}")).collect();
        let numbers: Map<String, Value> = stats
            .into_iter()
            .map(|(name, value)| (name, value.parse::<u64>().map_or(Value::String(value), Value::from)))
            .collect();
        console.print(&lines.join("\n"), &Value::Object(numbers))?;
        Ok(Exit::Success)
    }
}
