//! Limits on the resources that one process can use in another.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use crate::support::apart::is_alone;
use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{QpCap, SendWr, WcStatus};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Returns the number of connections that one process may have: a quarter of all that the other accepts.
fn let_in() -> u64 {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    ((files / 4).min(4096) / 4).min(256)
}

/// Number of attempts beyond that limit.
const TOO_MANY: u64 = 40;

#[test]
fn child_entry() {
    let Some((role, args, mut line)) = role() else { return };
    match role.as_str() {
        "greedy" => greedy(&mut line, args[0]),
        "modest" => modest(&mut line),
        other => panic!("unknown role {other}"),
    }
    std::process::exit(0);
}

fn is_closed(socket: &OwnedFd) -> bool {
    readable(socket.as_raw_fd(), 0)
}

/// Connects repeatedly, keeps all connections, and reports how many were closed by the other process.
fn greedy(line: &mut Line, block: u64) {
    let path = farcall_softnic::rendezvous_path((block as u32) << 12).unwrap();
    let address = SocketAddrUnix::new(path).unwrap();
    let connect = |_| {
        let socket =
            net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        net::connect(&socket, &address).unwrap();
        socket
    };
    let sockets: Vec<OwnedFd> = (0..let_in() + TOO_MANY).map(connect).collect();
    let began = Instant::now();
    let closed = || sockets.iter().filter(|socket| is_closed(socket)).count() as u64;
    while closed() < TOO_MANY {
        assert!(began.elapsed() < LOST, "{} of {} were refused", closed(), sockets.len());
        std::thread::yield_now();
    }
    line.say([closed(), 0, 0, 0]);
    line.hear();
}

fn modest(line: &mut Line) {
    let (mut end, to) = connect(line, QpCap::default()).unwrap();
    let sges = [end.sge(0, 8)];
    end.send(&[SendWr::write(1, &sges, to.addr, to.rkey).with_flags(SIGNALED)]);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
    line.say([1, 0, 0, 0]);
    line.hear();
}

/// Returns whether the kernel gives pidfds unique inode numbers (since 6.9). Without them only the total is bounded.
fn processes_are_told_apart() -> bool {
    let fd =
        rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).unwrap();
    rustix::fs::fstatfs(&fd).is_ok_and(|stat| stat.f_type as u64 == 0x5049_4446)
}

#[test]
fn one_process_cannot_take_all_connections_of_another() {
    if !is_alone("one_process_cannot_take_all_connections_of_another") {
        return;
    }
    if !processes_are_told_apart() {
        return println!("skipped: the kernel is older than 6.9");
    }
    let end = End::default();
    let block = u64::from(end.qp.qp_num() >> 12);
    let mut greedy = start("greedy", &[block]);
    assert_eq!(greedy.line.hear(), Some([TOO_MANY, 0, 0, 0]));
    // Others are served while it holds its connections.
    let mut modest = start("modest", &[]);
    let (_end, _) = connect(&mut modest.line, QpCap::default()).unwrap();
    assert_eq!(modest.line.hear(), Some([1, 0, 0, 0]));
}
