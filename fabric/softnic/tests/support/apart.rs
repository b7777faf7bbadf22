//! Tests that run again in a process of their own: alone, or in a network namespace where the RoCEv2 port is free.

use std::net::{IpAddr, SocketAddrV6, UdpSocket};
use std::panic::Location;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use farcall_wire::codec::UDP_PORT;
use rustix::net::{self, AddressFamily, SocketType};

use super::name_in_program;

const APART: &str = "FARCALL_TEST_APART";
const ALONE: &str = "FARCALL_TEST_ALONE";

/// Environment in which the queue pairs of a process send from one port, as in earlier versions, over RoCEv2.
pub const ONE_SOURCE_PORT: [(&str, &str); 2] =
    [("FARCALL_TRANSPORT", "roce"), ("FARCALL_SOURCE_PORTS", "shared")];

/// Runs a test of the caller's file again, in a process of its own: it counts resources of the entire process, needs
/// many, or loads the machine. Returns whether this is that process. The tests of a program that call it run one at a
/// time.
#[track_caller]
pub fn is_alone(test: &str) -> bool {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", &name_in_program(Location::caller(), test), "--nocapture", "--include-ignored"]);
    println!("{}", passed(command.env(ALONE, "1")));
    false
}

/// Runs a test of the caller's file again, in a network namespace of its own with `FARCALL_TRANSPORT=transport`.
/// Returns whether this is that run.
#[track_caller]
pub fn is_apart(test: &str, transport: &str) -> bool {
    is_apart_with(test, &[("FARCALL_TRANSPORT", transport)])
}

/// Like [`is_apart`], with additional environment variables.
#[track_caller]
pub fn is_apart_with(test: &str, environment: &[(&str, &str)]) -> bool {
    is_apart_in(&["--user", "--map-root-user", "--net"], test, environment)
}

/// Like [`is_apart`], for a test that needs sockets of other users. Returns `None` and prints a message if the process
/// has no permission to create them.
#[track_caller]
pub fn is_apart_as_root(test: &str, transport: &str) -> Option<bool> {
    let may = std::env::var_os(APART).is_some()
        || Command::new("unshare")
            .args(["--net", "setpriv", "--reuid=65534", "true"])
            .output()
            .is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("SKIPPED: a socket of another user needs the right to make one (run this as root)");
        return None;
    }
    Some(is_apart_in(&["--net"], test, &[("FARCALL_TRANSPORT", transport)]))
}

#[track_caller]
fn is_apart_in(namespaces: &[&str], test: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var_os(APART).is_some() {
        return true;
    }
    let script = "ip link set lo up && exec \"$0\" --exact \"$1\" --nocapture";
    let mut command = Command::new("unshare");
    command
        .args(namespaces)
        .args(["sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(name_in_program(Location::caller(), test))
        .envs(environment.iter().copied())
        .env(APART, "1");
    passed(&mut command);
    false
}

/// Runs a test in another process, which must pass. Returns its output.
fn passed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    text
}

/// Returns a socket with an address and a port that other sockets of this user may have, too. With the unspecified
/// address and [`UDP_PORT`], its packets have the same source as those of the port.
pub fn shared_socket(at: IpAddr, port: u16) -> UdpSocket {
    let socket = net::socket(AddressFamily::INET6, SocketType::DGRAM, None).unwrap();
    net::sockopt::set_ipv6_v6only(&socket, false).unwrap();
    net::sockopt::set_socket_reuseport(&socket, true).unwrap();
    let at = match at {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    net::bind(&socket, &SocketAddrV6::new(at, port, 0, 0)).unwrap();
    socket.into()
}

/// Returns whether a socket in this network namespace has the port.
pub fn is_port_open() -> bool {
    std::fs::read_to_string("/proc/self/net/udp6").unwrap().contains(&format!(":{UDP_PORT:04X}"))
}

/// Returns the value of a counter of the port.
pub fn counted_at_port(name: &str) -> u64 {
    counted_at("softnic roce port", name)
}

/// Returns the value of a counter of a queue pair with a peer on another host.
pub fn counted_at_pair(qpn: u32, name: &str) -> u64 {
    counted_at(&format!("softnic roce qp {qpn:#08x}"), name)
}

fn counted_at(label: &str, name: &str) -> u64 {
    let report = farcall_stats::read_pid(std::process::id()).unwrap();
    let block = report.blocks.iter().find(|block| block.live && block.label.starts_with(label)).unwrap();
    block.counters.iter().find(|(counter, _)| counter.as_str() == name).unwrap().1
}
