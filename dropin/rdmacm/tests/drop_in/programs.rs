//! Unmodified programs of the system, between two processes. They check the contents where they can.

use std::net::UdpSocket;
use std::process::Command;

use crate::meeting::{folder, listening_at, meet};
use crate::support::{Folder, free_port, has};

/// Runs a program as server and client: arguments of both, and of each alone.
fn with_itself(
    folder: &Folder,
    program: &str,
    both: &[&str],
    ends: [&[&str]; 2],
    listening: &str,
) -> [String; 2] {
    let [server, client] = ends.map(|own| {
        let mut command: Command = folder.program(program);
        command.args(both).args(own);
        command
    });
    let (server, client) = meet(server, client, listening);
    [server, client]
}

/// Returns an address of this host other than the loopback address, if it has one.
fn outer_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing; only resolves the route.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}

#[test]
fn rping_validates_what_it_reads_and_writes() {
    if !has("rping", "rdmacm-utils") {
        return;
    }
    let folder = folder("rping");
    let addresses = ["127.0.0.1".into()].into_iter().chain(outer_address());
    for address in addresses {
        let port = free_port();
        let both = ["-v", "-V", "-C", "10", "-p", &port, "-a", &address];
        let listening = listening_at("tcp", &format!("{address}:{port}"));
        let [server, client] = with_itself(&folder, "rping", &both, [&["-s"], &["-c"]], &listening);
        assert!(server.contains("rdma-ping-9") && client.contains("rdma-ping-9"), "{server}{client}");
    }
}

#[test]
fn ucmatose_connects_many_times() {
    if !has("ucmatose", "rdmacm-utils") {
        return;
    }
    let folder = folder("ucmatose");
    for (any, to) in [("0.0.0.0", "127.0.0.1"), ("[::]", "::1")] {
        let port = free_port();
        let both = ["-p", &port, "-c", "4", "-C", "10", "-S", "1000"];
        let family = if to.contains(':') { "ipv6" } else { "ip" };
        let listening = listening_at("tcp", &format!("{any}:{port}"));
        let server: &[&str] = if family == "ipv6" { &["-f", "ipv6", "-b", "::"] } else { &[] };
        let [_, client] =
            with_itself(&folder, "ucmatose", &both, [server, &["-f", family, "-s", to]], &listening);
        assert!(client.contains("data transfers complete"), "{client}");
    }
}

#[test]
fn udaddy_finds_datagram_services() {
    if !has("udaddy", "rdmacm-utils") {
        return;
    }
    let folder = folder("udaddy");
    // Its port is fixed.
    let listening = listening_at("udp", "127.0.0.1:7174");
    let both = ["-C", "10", "-S", "500"];
    let ends: [&[&str]; 2] = [&["-b", "127.0.0.1"], &["-s", "127.0.0.1"]];
    let [_, client] = with_itself(&folder, "udaddy", &both, ends, &listening);
    assert!(client.contains("data transfers complete"), "{client}");
}

/// The example of synchronous calls: `rdma_create_ep`, `rdma_get_request`, `rdma_get_send_comp`.
#[test]
fn rdma_client_meets_rdma_server() {
    if !has("rdma_server", "rdmacm-utils") {
        return;
    }
    let folder = folder("sync");
    let port = free_port();
    let (mut server, mut client) = (folder.program("rdma_server"), folder.program("rdma_client"));
    server.args(["-p", &port]);
    client.args(["-p", &port, "-s", "127.0.0.1"]);
    let (server, client) = meet(server, client, &listening_at("tcp", &format!("0.0.0.0:{port}")));
    assert!(server.contains("end 0") && client.contains("end 0"), "{server}{client}");
}

#[test]
fn perftest_connects_by_the_connection_manager() {
    if !has("ib_send_bw", "perftest") {
        return;
    }
    let folder = folder("perftest");
    let runs: [(&str, &[&str]); 8] = [
        ("ib_send_bw", &["-e", "-q", "2"]),
        ("ib_send_bw", &["-e", "-a", "-n", "10"]),
        ("ib_send_bw", &["-e", "--use-srq"]),
        ("ib_send_lat", &["-e"]),
        ("ib_send_lat", &["-e", "-c", "UD"]),
        ("ib_write_bw", &["-q", "2"]),
        ("ib_read_bw", &["-e"]),
        ("ib_atomic_bw", &["-e"]),
    ];
    for (program, own) in runs {
        let port = free_port();
        let both = [&["-R", "-F", "-n", "50", "-p", &port], own].concat();
        // Before every measurement, they exchange their parameters over a connection.
        let listening = listening_at("tcp", &format!("0.0.0.0:{port}"));
        let [_, client] = with_itself(&folder, program, &both, [&[], &["127.0.0.1"]], &listening);
        assert!(client.contains("#bytes"), "{program} {own:?}: {client}");
    }
}
