//! Programs in containers, in their own namespaces.

use std::process::Command;

use crate::meeting::{folder, listening_at, meet};
use crate::support::{self, Folder, Running, free_port, has, has_containers, words};

/// Returns the command of a program in a container.
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
    // The port is free there. Between processes of one host no UDP socket is opened.
    let script = "ip link set lo up
        rping -s -V -C 5 -a 127.0.0.1 -p 7174 &
        until grep -q -e -tcp-127.0.0.1:7174.sock /proc/net/unix; do sleep 0.02; done
        if grep -q :12B7 /proc/net/udp6; then echo 'the RoCEv2 port is open'; exit 1; fi
        rping -c -v -V -C 5 -a 127.0.0.1 -p 7174 && wait $!";
    let output = Running::start(contained(&folder, &["--net"], &["sh", "-c", script])).finish();
    let said = words(&output);
    assert!(output.status.success() && said.contains("rdma-ping-4"), "{said}");
}

/// Two network namespaces connected by a virtual cable, like two containers with a bridge. `SERVER` and `CLIENT` run
/// in them, and the server's addresses are 192.0.2.2 and 2001:db8::2. The server's process is `$server`.
const TWO_NETWORKS: &str = "set -e
    ip link set lo up
    ip link add here type veth peer name there
    ip addr add 192.0.2.1/24 dev here
    ip -6 addr add 2001:db8::1/64 dev here nodad
    ip link set here up
    mkfifo ready
    unshare --net sh -ec '
        read -r _ < ready
        ip link set lo up
        ip addr add 192.0.2.2/24 dev there
        ip -6 addr add 2001:db8::2/64 dev there nodad
        ip link set there up
        SERVER' &
    server=$!
    # Its network is its own.
    until [ \"$(readlink /proc/$server/ns/net)\" != \"$(readlink /proc/$$/ns/net)\" ]; do sleep 0.02; done
    ip link set there netns $server
    echo > ready
    CLIENT";

/// Returns the output of a server and a client in two networks of a container that share a directory; `None` if there
/// can be none here.
fn in_two_networks(name: &str, server: &str, client: &str) -> Option<String> {
    let (folder, mut command) = two_networks(name, server, client)?;
    let shared = folder.path("shared");
    std::fs::create_dir(&shared).unwrap();
    command.env("FARCALL_SOCKET_DIR", &shared);
    let output = Running::start(command).finish();
    let said = words(&output);
    assert!(output.status.success(), "{said}");
    let left: Vec<_> = std::fs::read_dir(&shared).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let is_listener = |name: &&std::ffi::OsString| {
        let name = name.to_string_lossy();
        name.starts_with("cm-") && name.ends_with(".sock")
    };
    assert_eq!(left.iter().filter(is_listener).count(), 0, "{left:?}");
    Some(said)
}

/// Returns the directory and the command of a server and a client in two networks of a container.
pub fn two_networks(name: &str, server: &str, client: &str) -> Option<(Folder, Command)> {
    if !has("rping", "rdmacm-utils") || !has("ip", "iproute2") || !has_containers() {
        return None;
    }
    let tried =
        contained(&folder(&format!("veth-{name}")), &["--net"], &["ip", "link", "add", "type", "veth"]);
    let tried = Running::start(tried).finish();
    if !tried.status.success() {
        eprintln!("SKIPPED: no pairs of network devices here: {}", words(&tried).trim());
        return None;
    }
    let folder = folder(name);
    let script = TWO_NETWORKS.replace("SERVER", server).replace("CLIENT", client);
    let mut command = contained(&folder, &["--net"], &["sh", "-c", &script]);
    command.current_dir(folder.path(""));
    Some((folder, command))
}

#[test]
fn connects_containers_through_a_shared_directory() {
    for (name, listens_at, address, file) in [
        ("own-address", "192.0.2.2", "192.0.2.2", "cm-v1-tcp-192.0.2.2:7174.sock"),
        ("every-address", "0.0.0.0", "192.0.2.2", "cm-v1-tcp-192.0.2.2:7174.sock"),
        ("v6", "::", "2001:db8::2", "cm-v1-tcp-[2001:db8::2]:7174.sock"),
    ] {
        let server = format!("exec rping -s -V -C 5 -a {listens_at} -p 7174");
        let client = format!(
            "until [ -e 'shared/{file}' ]; do kill -0 $server; sleep 0.02; done
            rping -c -v -V -C 5 -a {address} -p 7174 && wait $server"
        );
        let Some(said) = in_two_networks(name, &server, &client) else { return };
        assert!(said.contains("rdma-ping-4"), "{name}: {said}");
    }
}

#[test]
fn datagrams_go_between_containers_with_networks_of_their_own() {
    if !has("udaddy", "rdmacm-utils") {
        return;
    }
    let client = "until [ -e shared/cm-v1-udp-192.0.2.2:7174.sock ]; do kill -0 $server; sleep 0.02; done
        udaddy -s 192.0.2.2 -c 2 -C 10 && wait $server";
    let Some(said) = in_two_networks("udaddy", "exec udaddy -c 2 -C 10", client) else { return };
    assert!(said.contains("data transfers complete"), "{said}");
}

#[test]
fn replaces_a_crashed_listener_and_reports_a_missing_one() {
    // A killed server leaves its name; the client is refused, and the next server replaces the name.
    let server = "rping -s -V -C 5 -a 192.0.2.2 -p 7174 & first=$!
        until [ -e shared/cm-v1-tcp-192.0.2.2:7174.sock ]; do sleep 0.02; done
        kill -9 $first; wait $first || true
        [ -e shared/cm-v1-tcp-192.0.2.2:7174.sock ]
        touch killed
        until [ -e refused ]; do sleep 0.02; done
        exec rping -s -V -C 5 -a 192.0.2.2 -p 7174";
    let client = "until [ -e killed ]; do kill -0 $server; sleep 0.02; done
        ! rping -c -C 5 -a 192.0.2.2 -p 7174
        touch refused
        until rping -c -v -V -C 5 -a 192.0.2.2 -p 7174; do sleep 0.1; done
        wait $server";
    let Some(said) = in_two_networks("left", server, client) else { return };
    assert!(said.contains("no process that shares FARCALL_SOCKET_DIR listens at 192.0.2.2:7174"), "{said}");
    assert!(said.contains("rdma-ping-4"), "{said}");
}
