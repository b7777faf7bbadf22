//! Unmodified programs in containers: each in its own user, process, mount and IPC namespaces, on one network.

use std::process::Command;

use crate::support::{self, Folder, has, has_containers, pair_of};

/// Returns the command of a program in a container, with the library preloaded.
fn contained(folder: &Folder, program: &str) -> Command {
    let mut command = support::contained(folder.preloaded("unshare"));
    command.arg(program);
    command
}

#[test]
fn programs_in_two_containers_meet() {
    let folder = Folder::new("containers");
    if !has_containers() {
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
