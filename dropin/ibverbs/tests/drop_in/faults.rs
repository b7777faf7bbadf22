//! Effects of FARCALL_FAULTS on programs.

use crate::roles::role;
use crate::support::{Folder, Running, free_port, has, pair_in, words};

const VARIABLE: &str = "FARCALL_FAULTS";

/// Starts a server that never exits, and returns the output of its client.
fn client_says(folder: &Folder, faults: &str, arguments: &[&str]) -> String {
    let port = free_port();
    let command = |host: &[&str]| {
        let mut command = folder.program("ibv_rc_pingpong");
        command.args(arguments).args(["-g", "0", "-p", &port]).args(host).env(VARIABLE, faults);
        command
    };
    let mut server = Running::start(command(&[]));
    loop {
        let client = Running::start(command(&["127.0.0.1"])).finish();
        // Otherwise the server does not listen yet.
        if !words(&client).contains("ouldn't connect") || server.has_ended() {
            assert!(!client.status.success(), "{}", words(&client));
            return words(&client);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_broken_connection_ends_a_ping_pong_in_words() {
    if !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let folder = Folder::new("faults-kill");
    for waiting in [&[][..], &["-e"], &["-N"]] {
        let said = client_says(&folder, "seed=1,kill_qp=1", waiting);
        assert!(said.contains("transport retry counter exceeded (12)"), "{waiting:?}: {said}");
    }
    let said = client_says(&folder, "seed=1,reg_mr=1", &[]);
    assert!(said.contains("ouldn't register MR"), "{said}");
    let said = client_says(&folder, "seed=1,post_full=1", &[]);
    assert!(said.contains("ouldn't post send"), "{said}");
}

/// `-c` checks the bytes.
#[test]
fn passes_ping_pong_with_rnr_and_late_completions() {
    if !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let folder = Folder::new("faults-late");
    for (faults, waiting) in [
        ("seed=3,delay=100us", "-e"),
        ("seed=3,delay=0us..500us,rnr=0.1", "-e"),
        ("seed=3,rnr=0.1,drop=0.002", "-N"),
        ("seed=3,delay=20us", "-t"),
    ] {
        let arguments = ["-g", "0", "-n", "60", "-c", waiting];
        let (server, client) = pair_in(&folder, "ibv_rc_pingpong", &arguments, &[(VARIABLE, faults)]);
        assert!(server.contains("60 iters in") && client.contains("60 iters in"), "{server}{client}");
        assert!(!server.contains("invalid data"), "{faults}: {server}");
    }
}

/// Returns the faults in the trace of a run, without values that differ between runs.
fn faults_met(folder: &Folder, seed: u32, run: usize) -> Vec<Vec<String>> {
    let ending = format!(".{seed}-{run}");
    let (file, text) = (folder.path(&format!("%p{ending}")), format!("seed={seed},rnr=0.2"));
    let variables = [("FARCALL_TRACE", file.as_str()), (VARIABLE, &text)];
    pair_in(folder, "ibv_rc_pingpong", &["-g", "0", "-n", "60", "-r", "30", "-e"], &variables);
    let faults = |trace: &String| -> Vec<String> {
        let lines = trace.lines().filter_map(|line| line.split_once("-- fault "));
        lines.map(|(_, fault)| format!("{} {}", &fault[..10], fault.split_once("pair=").unwrap().1)).collect()
    };
    // Clients that started too early did nothing.
    let traces = folder.texts(&ending).into_iter().filter(|trace| trace.contains("ibv_destroy_qp"));
    traces.map(|trace| faults(&trace)).collect()
}

#[test]
fn the_same_seed_meets_the_same_faults() {
    if !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let folder = Folder::new("faults-seed");
    let [first, again, other] = [(7, 1), (7, 2), (8, 1)].map(|(seed, run)| faults_met(&folder, seed, run));
    assert_eq!(first.len(), 2, "both ends: {first:?}");
    assert!(first[0].len() > 3 && first[0][0].contains("rnr"), "{first:?}");
    assert_eq!(first[0], first[1], "both ends make the same requests");
    assert_eq!(first, again);
    assert_ne!(first, other);
}

#[test]
fn reports_an_invalid_specification_and_has_no_device() {
    let folder = Folder::new("faults-wrong");
    let mut command = role(&folder, "asks_for_devices", "");
    command.env(VARIABLE, "rnr=1e-3,kil_qp=1");
    let said = words(&Running::start(command).finish());
    assert_eq!(said.matches("no fault \"kil_qp\"; there are seed, rnr, drop,").count(), 1, "{said}");
    assert!(said.contains("no list, EINVAL"), "{said}");
}

#[test]
fn prints_a_chosen_seed_once() {
    let folder = Folder::new("faults-chosen");
    for (faults, lines) in [("kill_qp=0.5", 1), ("seed=4,kill_qp=0.5", 0)] {
        let mut command = role(&folder, "asks_for_devices", "");
        command.env(VARIABLE, faults);
        let said = words(&Running::start(command).finish());
        assert_eq!(said.matches(" repeats this run").count(), lines, "{said}");
        assert!(said.contains("1 devices"), "{said}");
    }
}
