//! Calls and a store between two networks, while their cable is pulled, their server is restarted, and the client's
//! address changes: tests the guarantees between hosts.
//!
//! The default test pulls the cable for 0.1 and 1 s; with `--ignored`, for 30 s. The time during which the client had
//! no result is printed.
#![cfg(feature = "full")]

#[path = "../support/networks.rs"]
mod networks;

mod calls;
mod client;
mod disturbances;
mod store;

use std::time::Duration;

use networks::between_networks;

/// Role of this program in a network, if it is not run as a test.
const ROLE: &str = "FARCALL_TEST_ROLE";

/// Runs the program between two networks: the client in one of them starts its servers in the other.
fn between(role: &str) {
    let tried = between_networks("exit 0", "");
    if !tried.status.success() {
        eprintln!("SKIPPED: no two networks here: {}", String::from_utf8_lossy(&tried.stderr).trim());
        return;
    }
    let program = std::env::current_exe().unwrap();
    let script = format!(
        "export FARCALL_BINARY=$0 {ROLE}={role}
        exec ip netns exec $NETWORK_A '{}' --exact child_entry --nocapture",
        program.display()
    );
    let output = between_networks(&script, "");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said.lines().filter(|line| line.starts_with("cable: ")).for_each(|line| println!("{line}"));
}

/// Entry point of the other processes.
#[test]
fn child_entry() {
    match std::env::var(ROLE).as_deref() {
        Ok("serve") => calls::serve(),
        Ok("pulls") => client::through(&[Duration::from_millis(100), Duration::from_secs(1)]),
        Ok("long pull") => client::through(&[Duration::from_secs(30)]),
        _ => {}
    }
}

#[test]
fn survives_cable_pulls_restarts_and_an_address_change() {
    between("pulls");
}

/// Longer than a client tries to reconnect, and than a server retains its session.
#[test]
#[ignore = "takes minutes"]
fn calls_and_a_store_survive_a_long_pull_of_the_cable() {
    between("'long pull'");
}
