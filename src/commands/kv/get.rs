//! `farcall kv get`.

use super::address::Server;
use super::client::KvClient;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use serde_json::json;

/// Print the value of a key.
///
/// Writes the bytes without change, followed by a line feed. Exits with 3 if there is no such key.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall kv get greeting\n  farcall kv get greeting --server unix:/run/kv.sock\n  \
                        farcall kv get greeting --server rpc:127.0.0.1:11212 --json"
)]
pub struct Get {
    /// The key.
    key: String,
    #[command(flatten)]
    server: Server,
}

impl Get {
    /// Reads the value and prints it.
    ///
    /// # Errors
    /// If the service cannot be reached or fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let value = KvClient::connect(&self.server)?.get(self.key.as_bytes())?;
        let exit = if value.is_some() { Exit::Success } else { Exit::Negative };
        if console.is_json() {
            let text = value.as_deref().map(String::from_utf8_lossy);
            // A value that is not text is also printed as bytes.
            let bytes = value.as_deref().filter(|bytes| std::str::from_utf8(bytes).is_err());
            console.print(
                &"",
                &json!({ "key": self.key, "found": value.is_some(), "value": text, "bytes": bytes }),
            )?;
        } else if let Some(bytes) = value {
            console.raw(&bytes)?;
            console.raw(b"\n")?;
        } else {
            eprintln!("no such key: {}", self.key);
        }
        Ok(exit)
    }
}
