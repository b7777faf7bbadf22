//! libfabric's verbs provider, which connects through the connection manager, and the providers on top of it.

use crate::meeting::{folder, wait_for};
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

/// Messages of all sizes with checked bytes: over connections, as datagrams, and through the two layers that implement
/// reliable datagrams on each of them.
///
/// An end of `ofi_rxm` closes its connection when its peer disconnects. If it was not scheduled until then, it never
/// receives the peer's last message, on any device, and waits forever after all bytes were checked.
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
        let may_miss_the_last = provider == "verbs;ofi_rxm";
        // A shorter limit only where that may happen; the small datagrams of ofi_rxd need many iterations.
        let patience_s = if may_miss_the_last { "60" } else { "500" };
        let both =
            [&[patience_s, "fi_pingpong", "-p", provider, "-e", endpoint, "-I", "10", "-c"], own].concat();
        let [server, client] = [["-B", port.as_str()].as_slice(), &["-P", &port, "127.0.0.1"]].map(|own| {
            let mut command = folder.program("timeout");
            command.args(&both).args(own);
            command
        });
        // Both ends first negotiate over TCP.
        let server = wait_for(Running::start(server), &format!("port {port}"));
        let ends = [Running::start(client).finish(), server.finish()];
        let failed = ends.iter().filter(|end| !end.status.success()).count();
        let said = ends.each_ref().map(|end| format!("{}: {}", end.status, words(end)));
        let largest = if endpoint == "dgram" { "4k " } else { "1m " };
        let is_checked = said.iter().all(|said| said.lines().any(|line| line.starts_with(largest)));
        let is_fine = is_checked && failed <= usize::from(may_miss_the_last);
        assert!(is_fine, "{provider} {endpoint} {own:?}, client and server: {said:#?}");
    }
}
