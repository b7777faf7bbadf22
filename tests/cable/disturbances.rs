//! Disturbances of the cable and of addresses, executed from the client's network.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// End of the cable that is disconnected; the link at the other end then has no carrier.
#[derive(Clone, Copy, Debug)]
pub enum End {
    Client,
    Server,
}

fn ip(network: &str, words: &str) {
    let status = Command::new("ip").args(["-n", network]).args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip -n {network} {words}");
}

fn network(end: End) -> String {
    std::env::var(if matches!(end, End::Client) { "NETWORK_A" } else { "NETWORK_B" }).unwrap()
}

/// Interrupts the connection for a given time.
pub fn pull(end: End, lasts: Duration) {
    let network = network(end);
    ip(&network, "link set cable down");
    sleep(lasts);
    ip(&network, "link set cable up");
}

/// Changes the address of the client's host.
pub fn change_address(from: &str, to: &str) {
    let network = network(End::Client);
    ip(&network, &format!("address del {from}/24 dev cable"));
    ip(&network, &format!("address add {to}/24 dev cable"));
}
