//! Programs of the system that never heard of us, unmodified, between two processes.

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

/// Every transport, by polling and by events; `-c` checks the bytes, `-N` posts by the extended queue pair, `-t` takes time
/// stamps from the extended completion queue.
#[test]
fn ping_pongs_of_rdma_core() {
    if !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let folder = Folder::new("pingpong");
    for transport in ["rc", "uc", "ud", "srq"] {
        let program = format!("ibv_{transport}_pingpong");
        // Datagrams are at most an MTU, polling is left to idle machines.
        for arguments in [
            ["-g", "0", "-n", "100", "-s", "1024", "-e"].as_slice(),
            &["-g", "0", "-n", "10", "-s", "64", "-c", "-e"],
        ] {
            let (server, client) = pair(&folder, &program, arguments);
            assert!(server.contains("iters in") && client.contains("iters in"), "{server}{client}");
        }
    }
    // With -t the program takes an event without a completion for an error, so it polls.
    for extended in [["-N", "-e"].as_slice(), &["-t"]] {
        let arguments = [&["-g", "0", "-n", "20", "-s", "64"], extended].concat();
        let (_, client) = pair(&folder, "ibv_rc_pingpong", &arguments);
        assert!(client.contains("iters in"), "{client}");
    }
}

#[test]
fn perftest_measures() {
    if !has("ib_write_lat", "perftest") {
        return;
    }
    let folder = Folder::new("perftest");
    let runs: [(&str, &[&str]); 11] = [
        ("ib_send_lat", &["-e", "-c", "RC"]),
        ("ib_send_lat", &["-e", "-c", "UC"]),
        ("ib_send_lat", &["-e", "-c", "UD"]),
        ("ib_send_bw", &["-e", "-q", "4"]),
        // Nothing gets lost, or its receiver would wait for ever: more datagrams than it has receives.
        ("ib_send_bw", &["-e", "-c", "UD", "-n", "1000"]),
        ("ib_send_bw", &["-c", "UD", "-b", "-s", "64"]),
        ("ib_write_bw", &["-q", "4"]),
        ("ib_write_bw", &["--use_old_post_send"]),
        ("ib_read_bw", &["-e"]),
        ("ib_atomic_bw", &["-e"]),
        ("ib_atomic_bw", &["-e", "-A", "CMP_AND_SWAP"]),
    ];
    for (program, arguments) in runs {
        let all = [&["-x", "0", "-n", "100", "-F"], arguments].concat();
        let (_, client) = pair(&folder, program, &all);
        assert!(client.contains("#bytes"), "{program} {arguments:?}: {client}");
    }
}
