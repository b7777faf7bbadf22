//! Calls have the effects and results that they have on plain TCP.

use crate::support::{TestDirectory, both_ends, compile, moved_bytes, program, reasons};

#[test]
fn matches_tcp_in_every_call() {
    assert_same_results("calls");
}

#[test]
fn matches_tcp_in_corners_of_the_interface() {
    assert_same_results("corners");
}

/// Runs a program on plain TCP and with the library: each end must print the same.
fn assert_same_results(name: &str) {
    let directory = TestDirectory::new(name);
    let Some(path) = compile(&directory, name) else { return };
    let plain = both_ends(&path, false, ["x", "x"]);
    let moved = both_ends(&path, true, ["x", "x"]);
    for (plain, moved) in [(plain.server, moved.server), (plain.client, moved.client)] {
        assert!(plain.1.success() && plain.0.ends_with("done\n"), "{}", plain.0);
        let differ = plain.0.lines().zip(moved.0.lines()).find(|(plain, moved)| plain != moved);
        assert_eq!(differ, None, "on TCP, and moved");
        assert!(moved.1.success() && moved.0.ends_with("done\n"), "{}", moved.0);
    }
    for pid in moved.pids {
        assert!(moved_bytes(pid).is_none_or(|bytes| bytes > 100), "process {pid} moved nothing");
    }
}

/// A program without the library, and its peer with it, behave as on plain TCP.
#[test]
fn stays_on_tcp_with_a_peer_without_the_library() {
    let directory = TestDirectory::new("alone");
    let Some(path) = compile(&directory, "calls") else { return };
    let source =
        std::fs::read_to_string(format!("{}/tests/preload/calls.c", env!("CARGO_MANIFEST_DIR"))).unwrap();
    assert!(source.contains("int main"), "the program of this test");
    // The client has the library, the server does not.
    let server = format!("#!/bin/sh\n[ \"$1\" = server ] && unset LD_PRELOAD\nexec {path} \"$@\"\n");
    let script = directory.path("half.sh");
    std::fs::write(&script, server).unwrap();
    let plain = both_ends(&path, false, ["x", "x"]);
    let mut make = program("chmod", false);
    assert!(make.args(["700", &script]).status().unwrap().success());
    let half = both_ends(&script, true, ["x", "x"]);
    assert_eq!(half.client.0, plain.client.0);
    assert!(half.client.1.success() && half.server.1.success());
    assert!(moved_bytes(half.pids[1]).is_none_or(|bytes| bytes == 0));
    assert!(
        reasons(half.pids[1]).iter().all(|why| *why != "paired with the other end"),
        "{:?}",
        reasons(half.pids[1])
    );
}

/// Programs by their names; server ports, which the script passes.
#[test]
fn leaves_excluded_programs_and_ports_on_tcp() {
    let directory = TestDirectory::new("excepted");
    let Some(path) = compile(&directory, "calls") else { return };
    let script = directory.path("excepted.sh");
    let settings = [
        ("FARCALL_RUN_EXCEPT=other,calls", false),
        ("FARCALL_RUN_EXCEPT=other,1", true),
        ("FARCALL_RUN_EXCEPT=$port", false),
        ("FARCALL_RUN_ONLY=1,2", false),
        ("FARCALL_RUN_ONLY=1,$port", true),
    ];
    for (setting, is_moved) in settings {
        // Only the client has the setting: one end that stays on TCP is enough.
        let text = format!(
            "#!/bin/sh\n[ \"$1\" = client ] && {{ port=$2; export {setting}; }}\nexec {path} \"$@\"\n"
        );
        std::fs::write(&script, text).unwrap();
        assert!(program("chmod", false).args(["700", &script]).status().unwrap().success());
        let ends = both_ends(&script, true, ["x", "x"]);
        assert!(ends.client.1.success() && ends.server.1.success(), "{setting}");
        for pid in ends.pids {
            assert!(moved_bytes(pid).is_none_or(|bytes| (bytes > 0) == is_moved), "{setting}");
        }
    }
}
