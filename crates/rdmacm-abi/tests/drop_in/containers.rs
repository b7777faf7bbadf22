//! Programs in containers: in namespaces of their own.

use std::process::Command;

use crate::meeting::{folder, listening_at, meet};
use crate::support::{self, Folder, Running, free_port, has, has_containers, words};

/// A program in a container.
fn contained(folder: &Folder, more: &[&str], program: &[&str]) -> Command {
    let mut command = support::contained(folder.program("unshare"));
    command.args(more).args(program);
    command
}

#[test]
fn two_containers_on_one_network_meet() {
    let folder = folder("containers");
    if !has("rping", "rdmacm-utils") || !has_containers() {
        return;
    }
    let port = free_port();
    let both = ["-v", "-V", "-C", "5", "-p", &port, "-a", "127.0.0.1"];
    let [server, client] =
        ["-s", "-c"].map(|end| contained(&folder, &[], &[&["rping", end], both.as_slice()].concat()));
    let (_, client) = meet(server, client, &listening_at("tcp", &format!("127.0.0.1:{port}")));
    assert!(client.contains("rdma-ping-4"), "{client}");
}

#[test]
fn programs_in_a_container_with_a_network_of_its_own_meet() {
    let folder = folder("network");
    if !has("rping", "rdmacm-utils") || !has("ip", "iproute2") || !has_containers() {
        return;
    }
    // The port is nobody else's there.
    let script = "ip link set lo up
        rping -s -V -C 5 -a 127.0.0.1 -p 7174 &
        until grep -q farcall/cm/v1/tcp/127.0.0.1:7174 /proc/net/unix; do sleep 0.02; done
        rping -c -v -V -C 5 -a 127.0.0.1 -p 7174 && wait $!";
    let output = Running::start(contained(&folder, &["--net"], &["sh", "-c", script])).finish();
    let said = words(&output);
    assert!(output.status.success() && said.contains("rdma-ping-4"), "{said}");
}
