//! UCX, with the transports that use only verbs.

use crate::support::{Folder, Running, has, pair_of, words};

/// Runs both ends over these transports of only this device.
fn run(folder: &Folder, transports: &str, arguments: &[&str]) {
    let program = || {
        let mut command = folder.preloaded("ucx_perftest");
        command.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "softnic0:1");
        command
    };
    let (_, client) = pair_of(&program, &[arguments, &["-n", "100", "-w", "10"]].concat());
    assert!(client.contains("Final:"), "{transports} {arguments:?}: {client}");
}

#[test]
fn ucx_lists_its_transports_on_the_device() {
    if !has("ucx_info", "ucx-utils") {
        return;
    }
    let folder = Folder::new("ucx-info");
    let mut command = folder.preloaded("ucx_info");
    let output = Running::start({
        command.arg("-d");
        command
    })
    .finish();
    let shown = words(&output);
    for part in ["Transport: rc_verbs", "Transport: ud_verbs", "Device: softnic0:1", "atomic_fadd: 64 bit"] {
        assert!(shown.contains(part), "no {part} in: {shown}");
    }
}

/// Messages, streams, one-sided and atomic operations of the upper interface, small and too large for one packet.
#[test]
fn ucp_runs_over_rc_and_ud() {
    if !has("ucx_perftest", "ucx-utils") {
        return;
    }
    let folder = Folder::new("ucp");
    for transports in ["rc_v", "ud_v"] {
        for test in ["tag_lat", "tag_bw", "ucp_am_bw", "ucp_put_bw", "ucp_get", "stream_bw"] {
            run(&folder, transports, &["-t", test, "-s", "8"]);
        }
        run(&folder, transports, &["-t", "tag_lat", "-s", "100000"]);
        run(&folder, transports, &["-t", "ucp_fadd"]);
    }
}

/// The lower interface: every operation that the verbs transports have, in each layout.
#[test]
fn uct_runs_over_rc_and_ud() {
    if !has("ucx_perftest", "ucx-utils") {
        return;
    }
    let folder = Folder::new("uct");
    let on = |transport: &'static str, arguments: &[&str]| {
        run(&folder, "all", &[arguments, &["-x", transport, "-d", "softnic0:1"]].concat());
    };
    for transport in ["rc_verbs", "ud_verbs"] {
        on(transport, &["-t", "am_lat"]);
        on(transport, &["-t", "am_bw", "-D", "bcopy", "-s", "4000"]);
        on(transport, &["-t", "am_lat", "-D", "zcopy"]);
    }
    for arguments in [
        ["-t", "put_lat"].as_slice(),
        &["-t", "put_bw", "-D", "bcopy", "-s", "4096"],
        &["-t", "put_bw", "-D", "zcopy", "-s", "65536"],
        &["-t", "get", "-D", "zcopy", "-s", "65536"],
        &["-t", "fadd"],
        &["-t", "cswap"],
    ] {
        on("rc_verbs", arguments);
    }
}
