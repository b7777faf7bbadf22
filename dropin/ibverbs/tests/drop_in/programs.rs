//! Unmodified programs of the system, between two processes.

use crate::support::{Folder, Running, has, pair, words};

#[test]
fn listing_programs_find_the_device() {
    if !has("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let folder = Folder::new("listing");
    let listed = words(&Running::start(folder.program("ibv_devices")).finish());
    assert!(listed.contains("softnic0"), "{listed}");
    let mut command = folder.program("ibv_devinfo");
    command.arg("-v");
    let output = Running::start(command).finish();
    let shown = words(&output);
    assert!(output.status.success(), "{shown}");
    for part in ["PORT_ACTIVE", "ATOMIC_HCA", "RoCE v2"] {
        assert!(shown.contains(part), "no {part} in: {shown}");
    }
}

/// Every transport, by polling and by events. `-c` checks the bytes, `-N` posts by the extended queue pair, and `-t`
/// reads time stamps from the extended completion queue.
#[test]
fn ping_pongs_of_rdma_core() {
    if !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let folder = Folder::new("pingpong");
    for transport in ["rc", "uc", "ud", "srq"] {
        let program = format!("ibv_{transport}_pingpong");
        // Datagrams are at most an MTU; polling is suitable only for idle machines.
        for arguments in [
            ["-g", "0", "-n", "100", "-s", "1024", "-e"].as_slice(),
            &["-g", "1", "-n", "10", "-s", "64", "-c", "-e"],
        ] {
            let (server, client) = pair(&folder, &program, arguments);
            assert!(server.contains("iters in") && client.contains("iters in"), "{server}{client}");
        }
    }
    // With -t the program treats an event without a completion as an error, so it polls.
    for extended in [["-N", "-e"].as_slice(), &["-t"]] {
        let arguments = [&["-g", "0", "-n", "20", "-s", "64"], extended].concat();
        let (_, client) = pair(&folder, "ibv_rc_pingpong", &arguments);
        assert!(client.contains("iters in"), "{client}");
    }
}

/// Runs programs of perftest against themselves.
fn perftest_measures(folder: &str, runs: &[(&str, &[&str])]) {
    if !has("ib_write_lat", "perftest") {
        return;
    }
    let folder = Folder::new(folder);
    for (program, arguments) in runs {
        let all = [&["-x", "0", "-n", "100", "-F"], *arguments].concat();
        let (_, client) = pair(&folder, program, &all);
        assert!(client.contains("#bytes"), "{program} {arguments:?}: {client}");
    }
}

// Programs sleep where possible: polling is suitable only for idle machines.
#[test]
fn perftest_measures_messages() {
    let runs: [(&str, &[&str]); 12] = [
        ("ib_send_lat", &["-e", "-c", "RC"]),
        ("ib_send_lat", &["-e", "-c", "UC", "-x", "1"]),
        ("ib_send_lat", &["-e", "-c", "UD", "-x", "1"]),
        ("ib_send_lat", &["-e", "--use-srq"]),
        ("ib_send_lat", &["-e", "--use-srq", "-s", "65536"]),
        ("ib_send_bw", &["-e", "-q", "4"]),
        ("ib_send_bw", &["-e", "-c", "UC"]),
        // No datagram may be lost, or the receiver would never finish: more datagrams than it has receives.
        ("ib_send_bw", &["-e", "-c", "UD", "-n", "1000"]),
        ("ib_send_bw", &["-c", "UD", "-b", "-s", "64"]),
        ("ib_send_bw", &["-e", "--use-srq", "-q", "4"]),
        ("ib_send_bw", &["-e", "--use-srq", "-c", "UD"]),
        // All sizes up to 8 MiB.
        ("ib_send_bw", &["-e", "-a", "-n", "10"]),
    ];
    perftest_measures("perftest-messages", &runs);
}

#[test]
fn perftest_measures_one_sided_operations() {
    let runs: [(&str, &[&str]); 11] = [
        ("ib_read_bw", &["-e", "-a", "-n", "10"]),
        ("ib_write_bw", &["-q", "4"]),
        ("ib_write_bw", &["-c", "UC"]),
        ("ib_write_bw", &["--use_old_post_send"]),
        ("ib_write_lat", &["-n", "10"]),
        ("ib_write_lat", &["-n", "10", "-c", "UC"]),
        ("ib_read_lat", &["-e"]),
        ("ib_atomic_lat", &["-e", "-A", "FETCH_AND_ADD"]),
        ("ib_atomic_lat", &["-e", "-A", "CMP_AND_SWAP"]),
        ("ib_atomic_bw", &["-e"]),
        ("ib_atomic_bw", &["-e", "-A", "CMP_AND_SWAP", "-q", "4"]),
    ];
    perftest_measures("perftest-one-sided", &runs);
}
