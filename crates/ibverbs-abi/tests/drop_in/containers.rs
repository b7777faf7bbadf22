//! Foreign programs in containers: each in user, process, mount and IPC namespaces of its own, on one network.

use std::process::Command;

use crate::support::{Folder, Running, has, pair_of, words};

const CONTAINED: [&str; 8] = [
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child=SIGKILL",
    "--ipc",
    "--mount",
    "--mount-proc",
];

/// A program in a container, with the library in front.
fn contained(folder: &Folder, program: &str) -> Command {
    let mut command = folder.preloaded("unshare");
    command.args(CONTAINED).arg(program);
    command
}

#[test]
fn programs_in_two_containers_meet() {
    let folder = Folder::new("containers");
    let tried = Running::start(contained(&folder, "true")).finish();
    if !tried.status.success() {
        eprintln!("SKIPPED: no user namespaces here: {}", words(&tried).trim());
        return;
    }
    if has("ibv_rc_pingpong", "ibverbs-utils") {
        let (_, client) =
            pair_of(&|| contained(&folder, "ibv_rc_pingpong"), &["-g", "0", "-n", "10", "-e", "-c"]);
        assert!(client.contains("iters in"), "{client}");
    }
    if has("ib_write_bw", "perftest") {
        for (program, arguments) in
            [("ib_write_bw", [].as_slice()), ("ib_atomic_bw", &[]), ("ib_send_bw", &["-c", "UD"])]
        {
            let all = [&["-x", "0", "-n", "100", "-F"], arguments].concat();
            let (_, client) = pair_of(&|| contained(&folder, program), &all);
            assert!(client.contains("#bytes"), "{program}: {client}");
        }
    }
}
