//! `farcall kv set`.

use super::address::Server;
use super::client::KvClient;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use serde_json::json;
use std::io::Read;

/// Store a value under a key.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall kv set greeting hello\n  farcall kv set photo --ttl 3600 < photo.jpg"
)]
pub struct Set {
    /// The key.
    key: String,
    /// The value [default: standard input].
    value: Option<String>,
    /// Seconds until the value expires, at most 30 days; 0 means that it never expires.
    #[arg(long, default_value_t = 0, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=2_592_000))]
    ttl: u32,
    #[command(flatten)]
    server: Server,
}

impl Set {
    /// Stores the value.
    ///
    /// # Errors
    /// If the input cannot be read, or the service cannot be reached, refuses or fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let value = match self.value {
            Some(text) => text.into_bytes(),
            None => {
                let mut bytes = Vec::new();
                std::io::stdin()
                    .read_to_end(&mut bytes)
                    .map_err(|error| Failure::because("cannot read the value from standard input", &error))?;
                bytes
            }
        };
        let is_stored = KvClient::connect(&self.server)?.set(self.key.as_bytes(), &value, self.ttl)?;
        let text = if is_stored { "stored" } else { "not stored" };
        console
            .print(&text, &json!({ "key": self.key, "stored": is_stored, "value_len_bytes": value.len() }))?;
        Ok(if is_stored { Exit::Success } else { Exit::Negative })
    }
}
