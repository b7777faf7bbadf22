//! `farcall kv del`.

use super::address::Server;
use super::client::KvClient;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use serde_json::json;

/// Remove keys.
///
/// Exits with 3 if one of the keys had no value.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall kv del greeting\n  farcall kv del a b c --server unix:/run/kv.sock"
)]
pub struct Del {
    /// The keys.
    #[arg(required = true)]
    keys: Vec<String>,
    #[command(flatten)]
    server: Server,
}

impl Del {
    /// Removes the keys.
    ///
    /// # Errors
    /// If the service cannot be reached or fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let mut client = KvClient::connect(&self.server)?;
        let (mut removed, mut absent) = (Vec::new(), Vec::new());
        for key in self.keys {
            let list = if client.delete(key.as_bytes())? { &mut removed } else { &mut absent };
            list.push(key);
        }
        let text = match absent.as_slice() {
            [] => format!("removed {}", removed.len()),
            _ => format!("removed {}; no such key: {}", removed.len(), absent.join(", ")),
        };
        console.print(&text, &json!({ "removed": removed, "absent": absent }))?;
        Ok(if absent.is_empty() { Exit::Success } else { Exit::Negative })
    }
}
