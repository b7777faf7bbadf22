//! `farcall mount list`.

use super::record::{About, running};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use serde_json::{Value, json};

/// List the mounts of this machine, and the reason for which their programs wait.
///
/// A mount and its programs wait if its memory nodes do not reply, or if another mount holds its volume. The programs can
/// be killed in the meantime, and the mount can be unmounted: farcall umount DIR.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall mount list\n  farcall mount list --json")]
pub struct List {}

impl List {
    /// Lists the mounts.
    ///
    /// # Errors
    /// If records cannot be read.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let mounts = listed()?;
        let lines: Vec<String> = mounts.iter().map(text).collect();
        let text = if lines.is_empty() { "nothing is mounted".to_owned() } else { lines.join("\n") };
        console.print(&text, &Value::Array(mounts.iter().map(value).collect()))?;
        Ok(Exit::Success)
    }
}

/// Returns the mounts of this machine as text, and what their programs wait for: a line each.
///
/// # Errors
/// When records cannot be read.
pub fn mounts_here() -> Result<Vec<String>, Failure> {
    Ok(listed()?.iter().map(text).collect())
}

fn listed() -> Result<Vec<About>, Failure> {
    running().map_err(|error| Failure::because("cannot list mounts", &error))
}

fn text(mount: &About) -> String {
    let volume = mount.volume.as_ref().map_or_else(String::new, |volume| format!(", volume {volume:?}"));
    let state = match &mount.waits_for {
        Some(waits_for) => format!("waits: {waits_for}"),
        None => "serves".to_owned(),
    };
    format!("{} (pid {}{volume})  {state}", mount.dir.display(), mount.pid)
}

fn value(mount: &About) -> Value {
    json!({ "mounted": mount.dir, "pid": mount.pid, "volume": mount.volume, "waits_for": mount.waits_for })
}
