//! Two network namespaces with a cable between them.

use std::process::{Command, Output};

/// Runs a shell script with two networks, `$NETWORK_A` and `$NETWORK_B`, and a `/run` of its own. Its remaining
/// processes end with it. `$0` is the program.
pub fn between_networks(script: &str, faults: &str) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--net", "--pid", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", "mount -t tmpfs none /run && exec bash \"$@\"", "sh"]);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/networks"));
    command.args(["bash", "-c", script, env!("CARGO_BIN_EXE_farcall")]);
    // Both ends share the user's directory, and would otherwise use shared memory.
    command.env("FARCALL_TRANSPORT", "roce").env("FARCALL_WIRE_FAULTS", faults);
    command.output().unwrap()
}
