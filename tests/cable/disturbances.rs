//! What happens to the cable and to addresses, as seen from the client's network.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// The end of the cable that is taken out: at the other one the link has no carrier.
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

/// Nothing gets through for so long.
pub fn pull(end: End, lasts: Duration) {
    let network = network(end);
    ip(&network, "link set cable down");
    sleep(lasts);
    ip(&network, "link set cable up");
}

/// The client's host has another address from now on.
pub fn change_address(from: &str, to: &str) {
    let network = network(End::Client);
    ip(&network, &format!("address del {from}/24 dev cable"));
    ip(&network, &format!("address add {to}/24 dev cable"));
}
