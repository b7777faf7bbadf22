//! libfabric's verbs provider, which connects by the connection manager, and the providers that it builds on it.

use std::time::{Duration, Instant};

use crate::meeting::folder;
use crate::support::{Running, free_port, has, words};

#[test]
fn libfabric_lists_the_device_with_all_its_endpoint_types() {
    if !has("fi_info", "libfabric-bin") {
        return;
    }
    let folder = folder("fi-info");
    let mut command = folder.program("fi_info");
    command.args(["-p", "verbs"]);
    let shown = words(&Running::start(command).finish());
    for part in ["domain: softnic0\n", "FI_EP_MSG", "FI_EP_DGRAM", "verbs;ofi_rxm", "verbs;ofi_rxd"] {
        assert!(shown.contains(part), "no {part} in: {shown}");
    }
}

/// Waits until somebody listens at a port of TCP, where both ends first agree what to do.
fn wait_for_listener(port: &str) {
    let began = Instant::now();
    let local = format!(":{:04X}", port.parse::<u16>().unwrap());
    let is_there = || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let is_it = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // 0A: it accepts connections.
            fields.get(1).is_some_and(|address| address.ends_with(&local)) && fields.get(3) == Some(&"0A")
        };
        sockets.lines().any(is_it)
    };
    while !is_there() {
        assert!(began.elapsed() < Duration::from_secs(60), "nobody listens at {port}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Messages of all sizes, their bytes checked: over connections, as datagrams, and through the two layers that make reliable
/// datagrams of each.
#[test]
fn libfabric_plays_ping_pong_over_every_endpoint_type() {
    if !has("fi_pingpong", "libfabric-bin") {
        return;
    }
    let folder = folder("fi-pingpong");
    let runs: [(&str, &str, &[&str]); 5] = [
        ("verbs", "msg", &[]),
        ("verbs", "dgram", &[]),
        ("verbs;ofi_rxm", "rdm", &[]),
        ("verbs;ofi_rxm", "rdm", &["-m", "tagged"]),
        ("verbs;ofi_rxd", "rdm", &[]),
    ];
    for (provider, endpoint, own) in runs {
        let port = free_port();
        let both = [&["-p", provider, "-e", endpoint, "-I", "10", "-c"], own].concat();
        let [server, client] = [["-B", port.as_str()].as_slice(), &["-P", &port, "127.0.0.1"]].map(|own| {
            let mut command = folder.program("fi_pingpong");
            command.args(&both).args(own);
            command
        });
        let server = Running::start(server);
        wait_for_listener(&port);
        let (client, server) = (Running::start(client).finish(), server.finish());
        let (is_fine, client) = (client.status.success() && server.status.success(), words(&client));
        assert!(is_fine && client.contains("=10"), "{provider} {endpoint}: {client}{}", words(&server));
    }
}
