//! Programs that read an MTU of 4096 from the port of the drop-in device, and use it with a peer on Ethernet.
#![cfg(feature = "full")]

#[path = "support/networks.rs"]
mod networks;

use std::process::Command;

use networks::between_networks;

/// Two programs on two hosts that use the port's MTU for their queue pairs and check the received data. They start
/// when one host reaches the other (a new link takes up to a second for IPv6). The last output is the number of
/// fragments into which the client's host split its packets.
const PING_PONG: &str = "set -e
    export FARCALL_TRANSPORT=auto
    mkdir -m 700 /run/a /run/b
    in_a=\"ip netns exec $NETWORK_A env FARCALL_SOCKET_DIR=/run/a $0 verbs run --\"
    in_b=\"ip netns exec $NETWORK_B env FARCALL_SOCKET_DIR=/run/b $0 verbs run --\"
    $in_a ibv_devinfo | grep -q 'active_mtu:.*4096'
    export reach='(: >/dev/tcp/PEER/9) 2>&1 | grep -q refused'
    ip netns exec $NETWORK_A bash -c 'until eval \"$reach\"; do sleep 0.02; done'
    words='-g GID -m 4096 -s 65537 -n 50 -c'
    $in_b ibv_rc_pingpong $words & server=$!
    until ip netns exec $NETWORK_B ss -Htln | grep -q :18515; do kill -0 $server; sleep 0.02; done
    $in_a ibv_rc_pingpong $words 10.99.0.2
    wait $server
    ip netns exec $NETWORK_A cat /proc/net/snmp /proc/net/snmp6 | awk 'COUNT'";

/// Runs the test to an address with the GID at an index; `count` is an awk program that counts the fragments.
fn long_packets_arrive(peer: &str, gid_index: &str, count: &str) {
    let has_program = Command::new("ibv_rc_pingpong").arg("-h").output().is_ok();
    if !has_program || !between_networks("exec \"$0\" verbs run -- true", "").status.success() {
        eprintln!(
            "SKIPPED: needs ibverbs-utils, two networks, and cargo build -p farcall-ibverbs -p farcall-rdmacm"
        );
        return;
    }
    let script = PING_PONG.replace("PEER", peer).replace("GID", gid_index).replace("COUNT", count);
    let output = between_networks(&script, "");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!said.contains("invalid data"), "{said}");
    // Each message has 16 packets of 4096 bytes, each of which is sent in three fragments.
    let pieces = said.trim().rsplit('\n').next().unwrap().parse::<u32>();
    assert!(pieces.is_ok_and(|pieces| pieces >= 50 * 16 * 3), "{said}");
}

#[test]
fn packets_longer_than_those_of_ethernet_go_in_pieces_by_ipv4() {
    long_packets_arrive("10.99.0.2", "3", "/^Ip:/ { made = $20 } END { print made }");
}

#[test]
fn packets_longer_than_those_of_ethernet_go_in_pieces_by_ipv6() {
    long_packets_arrive("fd99::2", "4", "/^Ip6FragCreates/ { print $2 }");
}
