//! Tests that need the RoCEv2 port: each runs again in a network namespace of its own, where the port is free.

use std::process::Command;

use farcall_wire::codec::UDP_PORT;

const APART: &str = "FARCALL_TEST_APART";

/// Runs a test of this file again, in a network namespace of its own with `FARCALL_WAY=way`. Whether this is that run.
pub fn is_apart(test: &str, way: &str) -> bool {
    is_apart_with(test, &[("FARCALL_WAY", way)])
}

/// As [`is_apart`], with more environment.
pub fn is_apart_with(test: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var_os(APART).is_some() {
        return true;
    }
    let script = "ip link set lo up && exec \"$0\" --exact \"$1\" --nocapture";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .envs(environment.iter().copied())
        .env(APART, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    false
}

/// Whether somebody in this network namespace has the port.
pub fn is_port_open() -> bool {
    std::fs::read_to_string("/proc/self/net/udp6").unwrap().contains(&format!(":{UDP_PORT:04X}"))
}

/// What the port has counted under a name.
pub fn counted_at_port(name: &str) -> u64 {
    let report = farcall_stats::read_pid(std::process::id()).unwrap();
    let port = report.blocks.iter().find(|block| block.label == "softnic roce port").unwrap();
    port.counters.iter().find(|(counter, _)| counter.as_str() == name).unwrap().1
}
