//! Blocked front ends: exhausted descriptors, handshakes that are never completed, many simultaneous connections.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit, setrlimit};

use farcall::kv::KvClient;
use farcall::rpc::ClientOptions;
use farcall::{Nic, SoftNic};

use crate::server::{PATIENCE, Server, assert_answers, farcall, read_to_end};

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Descriptors that remain for clients after the shortage was caused: enough for one client over RPC.
const SPARE_DESCRIPTORS: u64 = 24;

fn connect(place: &str, patience: Duration) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&place.parse::<SocketAddr>().unwrap(), patience)
}

/// Opens as many connections as a front end accepts, up to `count`.
fn hold(place: &str, count: usize) -> Vec<TcpStream> {
    (0..count).map_while(|_| connect(place, Duration::from_secs(2)).ok()).collect()
}

/// Asserts that the front end accepts clients, immediately or after some time.
fn assert_opens(server: &Server, door: &str) {
    let address = format!("{door}:{}", server.place(door));
    let (given_up, mut last) = (Instant::now() + PATIENCE, None);
    while Instant::now() < given_up {
        let stored = farcall(&["kv", "set", "probe", "alive", "--server", &address]);
        if stored.status.success() {
            return;
        }
        last = Some(stored);
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("nobody gets in by {address}: {last:?}");
}

/// Raises the descriptor limit, because this process acts as many clients.
fn take_many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

#[test]
fn doors_open_again_after_a_shortage_of_descriptors() {
    take_many_descriptors();
    let server = Server::start("descriptors", &[]);
    let pid = Pid::from_raw(server.pid() as i32);
    let before = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count() as u64;
    let limit = Some(before + SPARE_DESCRIPTORS);
    prlimit(pid, Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let mut connected = TcpStream::connect(server.place("tcp")).unwrap();
    for door in ["tcp", "rpc"] {
        // More than the server has descriptors for, and enough to fill a backlog of the default length.
        let held = hold(server.place(door), 200);
        // Connected clients are served in the meantime.
        assert_answers(&mut connected);
        drop(held);
        assert_opens(&server, door);
    }
    for door in ["tcp", "unix", "rpc"] {
        assert_opens(&server, door);
    }
}

#[test]
fn silent_handshakes_do_not_keep_others_out() {
    take_many_descriptors();
    let server = Server::start("silent", &[]);
    let mut silent = hold(server.place("rpc"), 400);
    let stored =
        farcall(&["kv", "set", "probe", "alive", "--server", &format!("rpc:{}", server.place("rpc"))]);
    assert!(stored.status.success(), "{stored:?}");
    // A displaced client is notified of the reason.
    let mut oldest = silent.remove(0);
    oldest.set_read_timeout(Some(PATIENCE)).unwrap();
    let answer = read_to_end(&mut oldest);
    assert!(String::from_utf8_lossy(&answer).contains("the oldest"), "{answer:?}");
}

#[test]
fn a_thousand_clients_that_come_at_once_all_get_in() {
    take_many_descriptors();
    let server = Server::start("crowd", &[]);
    let pid = Pid::from_raw(server.pid() as i32).unwrap();
    for door in ["tcp", "rpc"] {
        // Stopped, so that no connection is accepted while they are opened.
        kill_process(pid, Signal::STOP).unwrap();
        let crowd = hold(server.place(door), 1_000);
        kill_process(pid, Signal::CONT).unwrap();
        assert_eq!(crowd.len(), 1_000, "{door}");
        if door == "tcp" {
            crowd.into_iter().for_each(|mut client| assert_answers(&mut client));
        }
    }
    server.assert_serves();
}

#[test]
fn an_rpc_client_costs_the_server_a_known_number_of_descriptors() {
    let server = Server::start("cost", &[]);
    let open_files = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    // Descriptors of a handshake do not count. They may be closed shortly after the client is connected.
    let at_most = |limit: usize| {
        let since = Instant::now();
        while open_files() > limit {
            assert!(
                since.elapsed() < PATIENCE,
                "{} descriptors stay, {limit} are counted with",
                open_files()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        open_files()
    };
    let before = open_files();
    let nic = nic();
    let connect = || KvClient::connect(&nic, server.place("rpc"), &ClientOptions::default()).unwrap();
    let _first = connect();
    // The numbers with which `src/open_files.rs` calculates.
    let with_first = at_most(before + 10);
    let _others: Vec<KvClient> = (0..8).map(|_| connect()).collect();
    at_most(with_first + 40);
}
