//! Programs on two hosts: two networks of a container that share only a cable.

use crate::containers::two_networks;
use crate::meeting::{compile, folder};
use crate::support::{Running, has, words};

/// Faults of an unreliable cable.
const BAD_CABLE: &str = "loss=0.1,duplicate=0.05,reorder=0.05,corrupt=0.05";

/// Returns the output of a server and a client in two networks that share only the cable, with `faults` injected into
/// its packets.
pub fn on_two_hosts(name: &str, faults: &str, server: &str, client: &str) -> Option<String> {
    let (_folder, mut command) = two_networks(name, server, client)?;
    command.env("FARCALL_TRANSPORT", "roce").env("FARCALL_WIRE_FAULTS", faults);
    let output = Running::start(command).finish();
    let said = words(&output);
    assert!(output.status.success(), "{name}, {faults}: {said}");
    Some(said)
}

/// Programs on two hosts connect; the client retries until its server listens.
#[test]
fn programs_on_two_hosts_meet() {
    for (name, faults) in [("hosts", String::new()), ("hosts-lossy", format!("seed=3,{BAD_CABLE}"))] {
        let server = "exec rping -s -v -V -C 5 -a 192.0.2.2 -p 7174";
        let client = "until rping -c -v -V -C 5 -a 192.0.2.2 -p 7174; do kill -0 $server; sleep 0.2; done
            wait $server";
        let Some(said) = on_two_hosts(name, &faults, server, client) else { return };
        assert_eq!(said.matches("rdma-ping-4").count(), 2, "{name}: {said}");
    }
}

/// `FARCALL_TRANSPORT=roce` takes precedence over a directory that the other host does not share.
#[test]
fn connects_to_another_host_although_a_directory_is_set() {
    let server = "exec rping -s -v -C 5 -a 192.0.2.2 -p 7174";
    let client = "mkdir -p own; export FARCALL_SOCKET_DIR=$PWD/own
        until rping -c -v -V -C 5 -a 192.0.2.2 -p 7174; do kill -0 $server; sleep 0.2; done
        wait $server";
    let Some(said) = on_two_hosts("folder", "", server, client) else { return };
    assert_eq!(said.matches("rdma-ping-4").count(), 2, "{said}");
}

/// If sockets may have addresses of other hosts, these still do not count as addresses of this host.
#[test]
fn knows_other_hosts_where_sockets_may_have_any_address() {
    let server = "exec rping -s -v -C 5 -a 192.0.2.2 -p 7174";
    let client = "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind
        until rping -c -v -V -C 5 -a 192.0.2.2 -p 7174; do kill -0 $server; sleep 0.2; done
        wait $server
        if rping -s -a 192.0.2.3 -p 7175; then exit 1; fi";
    let Some(said) = on_two_hosts("nonlocal", "", server, client) else { return };
    assert_eq!(said.matches("rdma-ping-4").count(), 2, "{said}");
    assert!(said.contains("Cannot assign requested address"), "an address of another host: {said}");
}

/// One process owns queue pair 1 for both. Its exit ends no connection of the other one, and later clients are served.
#[test]
fn shares_queue_pair_1_and_passes_it_on_after_a_crash() {
    let server = "rping -s -C 5 -a 192.0.2.2 -p 7174 & first=$!
        until grep -q process-0.sock /proc/net/unix; do kill -0 $first; sleep 0.02; done
        rping -s -P -v -C 5 -a 192.0.2.2 -p 7175 & second=$!
        until grep -q process-1.sock /proc/net/unix; do kill -0 $second; sleep 0.02; done
        touch listening
        until [ -e met ]; do sleep 0.02; done
        kill -9 $first; wait $first || true
        touch killed
        until [ -e left ]; do sleep 0.02; done
        kill $second; wait $second || true";
    let client = "until [ -e listening ]; do kill -0 $server; sleep 0.02; done
        rping -c -v -V -C 5 -a 192.0.2.2 -p 7175
        touch met
        until [ -e killed ]; do kill -0 $server; sleep 0.02; done
        rping -c -v -V -C 5 -a 192.0.2.2 -p 7175
        touch left
        wait $server";
    let Some(said) = on_two_hosts("elected", "", server, client) else { return };
    assert_eq!(said.matches("ping data: rdma-ping-4").count(), 2, "{said}");
}

/// The process that owns queue pair 1 for both is stopped. The other one takes it over, and new clients are served.
/// The first one is continued, and serves its clients again.
#[test]
fn a_stopped_holder_of_queue_pair_1_is_succeeded() {
    let server = "rping -s -P -C 5 -a 192.0.2.2 -p 7174 & first=$!
        until grep -q process-0.sock /proc/net/unix; do kill -0 $first; sleep 0.02; done
        rping -s -P -v -C 5 -a 192.0.2.2 -p 7175 & second=$!
        until grep -q process-1.sock /proc/net/unix; do kill -0 $second; sleep 0.02; done
        kill -STOP $first
        touch stopped
        until [ -e met ]; do sleep 0.02; done
        kill -CONT $first
        touch continued
        until [ -e left ]; do sleep 0.02; done
        kill $first $second; wait $first $second || true";
    let client = "until [ -e stopped ]; do kill -0 $server; sleep 0.02; done
        rping -c -v -V -C 5 -a 192.0.2.2 -p 7175
        touch met
        until [ -e continued ]; do kill -0 $server; sleep 0.02; done
        rping -c -v -V -C 5 -a 192.0.2.2 -p 7174
        touch left
        wait $server";
    let Some(said) = on_two_hosts("succeeded", "", server, client) else { return };
    assert!(said.matches("ping data: rdma-ping-4").count() >= 2, "{said}");
}

#[test]
fn datagram_services_of_other_hosts_are_found() {
    if !has("udaddy", "rdmacm-utils") {
        return;
    }
    let faults = "seed=4,loss=0,duplicate=0.1,reorder=0.1";
    let server = "udaddy -c 2 -C 10 & until grep -q process-0.sock /proc/net/unix; do sleep 0.02; done
        touch listening; wait $!";
    let client = "until [ -e listening ]; do kill -0 $server; sleep 0.02; done
        udaddy -s 192.0.2.2 -c 2 -C 10 && wait $server";
    let Some(said) = on_two_hosts("services", faults, server, client) else { return };
    assert!(said.contains("data transfers complete"), "{said}");
}

/// A request without a listener is rejected at once by the existing processes.
#[test]
fn rejects_a_connection_to_a_remote_port_without_listener() {
    let server = "rping -s -v -C 5 -a 192.0.2.2 -p 7174 & server=$!
        until grep -q process-0.sock /proc/net/unix; do kill -0 $server; sleep 0.02; done
        touch listening
        wait $server";
    let client = "until [ -e listening ]; do kill -0 $server; sleep 0.02; done
        ! rping -c -C 5 -a 192.0.2.2 -p 7999
        rping -c -v -V -C 5 -a 192.0.2.2 -p 7174 && wait $server";
    let Some(said) = on_two_hosts("nobody", "", server, client) else { return };
    assert!(said.contains("RDMA_CM_EVENT_REJECTED") && said.contains("rdma-ping-4"), "{said}");
}

/// Runs a case of the C program on one host, and its server on the other, which waits for the end of the connection,
/// whatever packets the cable loses.
fn ends_are_told(name: &str, seed: u32, client: &str) {
    let folder = folder(name);
    let Some(program) = compile("ends.c", &folder) else { return };
    let server = format!("exec {program} serve 7174 192.0.2.2");
    let client = client.replace("PROGRAM", &program);
    let client = format!(
        "until grep -q -e :7174.sock /proc/$server/net/unix; do kill -0 $server; sleep 0.02; done
        {client}
        wait $server"
    );
    let faults = format!("seed={seed},{BAD_CABLE}");
    let Some(said) = on_two_hosts(&format!("{name}-two"), &faults, &server, &client) else { return };
    assert!(said.contains("ok"), "{faults}: {said}");
}

/// A process that exits normally disconnects from its peers, and waits for their confirmation.
#[test]
fn disconnects_peers_of_a_process_that_exits_in_order() {
    for seed in 1..=8 {
        ends_are_told("ends-in-order", seed, "PROGRAM end 7174 192.0.2.2");
        ends_are_told("ends-politely", seed, "PROGRAM visit 7174 192.0.2.2");
    }
}

/// An end that its program destroys repeats the disconnection until its peer has confirmed it, while the program
/// continues.
#[test]
fn an_end_that_is_destroyed_is_missed_by_its_peer() {
    for seed in 1..=4 {
        let client = "PROGRAM destroy 7174 192.0.2.2 & client=$!
            while kill -0 $server 2> /dev/null; do sleep 0.02; done
            kill $client";
        ends_are_told("destroyed", seed, client);
    }
}

/// On behalf of a killed process, another process of its user disconnects: whether it owned queue pair 1 before, owns
/// it afterwards, or is started later.
#[test]
fn disconnects_peers_of_a_killed_process() {
    let stay = "PROGRAM stay 7174 192.0.2.2 & client=$!
        until [ -e connected ]; do kill -0 $client; sleep 0.02; done";
    let other = |slot: u32| {
        format!(
            "PROGRAM hoard 7175 192.0.2.1 & other=$!
            until grep -q process-{slot}.sock /proc/net/unix; do kill -0 $other; sleep 0.02; done"
        )
    };
    let kill = "kill -9 $client; wait $client || true";
    let rest = "while kill -0 $server 2> /dev/null; do sleep 0.02; done
        kill $other";
    for (name, steps) in [
        ("killed-second", [&other(0), stay, kill, rest]),
        ("killed-first", [stay, &other(1), kill, rest]),
        ("killed-alone", [stay, kill, &other(0), rest]),
    ] {
        for seed in 1..=3 {
            ends_are_told(name, seed, &steps.join("\n"));
        }
    }
}
