//! libfabric's verbs provider, which connects by the connection manager, and the providers that it builds on it.

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

/// Messages of all sizes, their bytes checked: over connections, as datagrams, and through the two layers that make
/// reliable datagrams of each.
///
/// An end of `ofi_rxm` closes its connection at the word that the peer left. If it was kept from the processor until
/// then, it never sees the peer's last message, on any device, and waits for ever after all was checked.
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
        // Without an end of its own only where that may be; the small datagrams of ofi_rxd have many turns to wait for.
        let patience_s = if may_miss_the_last { "60" } else { "500" };
        let both =
            [&[patience_s, "fi_pingpong", "-p", provider, "-e", endpoint, "-I", "10", "-c"], own].concat();
        let [server, client] = [["-B", port.as_str()].as_slice(), &["-P", &port, "127.0.0.1"]].map(|own| {
            let mut command = folder.program("timeout");
            command.args(&both).args(own);
            command
        });
        // Both ends first agree by TCP what to do.
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
