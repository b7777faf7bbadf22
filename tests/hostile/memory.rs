//! Clients that make the server buffer much data for them: its memory remains below a bound, and is released
//! afterwards.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::server::{PATIENCE, Server};

const MIB: u64 = 1 << 20;

/// Bound of the memory: the store, as much for buffers, and as much again for everything else.
const BOUND_BYTES: u64 = 3 * 64 * MIB;

/// Maximum growth after an attack, which allocators and the kernel may retain.
const KEPT_MAX_BYTES: u64 = 32 * MIB;

fn resident_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn client(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.place("tcp")).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    stream
}

/// Asserts that a connected client is served by the thread that owns its value, however long it takes.
fn assert_stores(client: &mut TcpStream) {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"set probe 0 0 5\r\nalive\r\nget probe\r\n").unwrap();
    let expected = b"STORED\r\nVALUE probe 0 5\r\nalive\r\nEND\r\n";
    let mut answer = vec![0; expected.len()];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, expected);
}

/// Attacks, and checks the memory of the server while the attackers hold their connections and after the server has
/// handled everything that they sent.
fn attack(server: &Server, attackers: usize, send: impl Fn(usize, &mut TcpStream)) {
    let before_bytes = resident_bytes(server);
    let mut connections: Vec<TcpStream> = (0..attackers).map(|_| client(server)).collect();
    let mut most_bytes = 0;
    for (number, connection) in connections.iter_mut().enumerate() {
        send(number, connection);
        most_bytes = most_bytes.max(resident_bytes(server));
    }
    // On a slow machine the server may need long to handle the sent data, longer than the timeout of a command. The
    // connections are assigned to the server's threads in turn, so two of them reach every thread.
    (0..2).for_each(|_| assert_stores(&mut client(server)));
    most_bytes = most_bytes.max(resident_bytes(server));
    assert!(most_bytes < BOUND_BYTES, "the server took {} MiB", most_bytes / MIB);
    drop(connections);
    let mut after_bytes = resident_bytes(server);
    for _ in 0..PATIENCE.as_millis() / 100 {
        if after_bytes < before_bytes + KEPT_MAX_BYTES {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
        after_bytes = resident_bytes(server);
    }
    panic!("the server had {} MiB before, {} MiB after", before_bytes / MIB, after_bytes / MIB);
}

#[test]
fn clients_that_do_not_take_their_replies_cost_a_bounded_amount() {
    for options in [&["--memory-mib", "64"][..], &["--memory-mib", "64", "--partitions", "2"]] {
        let server = Server::start("unread", options);
        let mut setter = TcpStream::connect(server.place("tcp")).unwrap();
        setter.write_all(b"set big 0 0 1000000\r\n").unwrap();
        setter.write_all(&[b'v'; 1_000_000]).unwrap();
        setter.write_all(b"\r\n").unwrap();
        server.assert_serves();
        // The server may close a connection for which it buffers too much.
        attack(&server, 300, |_, connection| drop(connection.write_all(&b"get big\r\n".repeat(50))));
    }
}

#[test]
fn values_that_are_sent_in_part_cost_a_bounded_amount() {
    for options in [&["--memory-mib", "64"][..], &["--memory-mib", "64", "--partitions", "2"]] {
        let server = Server::start("half-sent", options);
        attack(&server, 600, |number, connection| {
            let half = [format!("set k{number} 0 0 1000000\r\n").as_bytes(), &[b'v'; 600_000]].concat();
            let _ = connection.write_all(&half);
        });
    }
}
