//! Checks with this program whether unmodified RDMA programs find the device.

use super::check::Finding;
use serde_json::Value;
use std::env;
use std::process::{Command, Stdio};

const NAME: &str = "RDMA programs";

/// Lists devices through the libraries that unmodified programs load.
pub fn check() -> Finding {
    match listed() {
        Ok(()) => Finding::ok(NAME, "find the device softnic0 with farcall verbs run -- CMD"),
        Err(why) => Finding::warn(
            NAME,
            why,
            "farcall verbs run provides no device to them; no other command is affected",
            "in the repository: packaging/build.sh OUT and install its packages, or \
             .github/actions/farcall-verbs/install.sh PREFIX and PREFIX/bin/farcall",
        ),
    }
}

/// Lists the devices. The error is the one that programs would receive.
fn listed() -> Result<(), String> {
    let this = env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(&this);
    command.args(["verbs", "run", "--"]).arg(&this).args(["devices", "--json"]).stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    let listing: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let devices = listing["devices"].as_array().into_iter().flatten();
    let through_libibverbs = |device: &Value| device["provider"] == "ibv" && device["name"] == "softnic0";
    if devices.into_iter().any(through_libibverbs) {
        return Ok(());
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    let first = messages.lines().next().unwrap_or("the device is not listed");
    Err(first.trim_start_matches("error: ").to_owned())
}
