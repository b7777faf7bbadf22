//! The check of a queue pair's owner uses the same socket as the later handshake with its process.

use crate::support::*;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

#[test]
fn connects_to_a_process_once_for_all_checks_of_its_numbers() {
    let mut a = End::default();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    // In a block that no process has claimed; no process replies there.
    let path = |block: &u32| farcall_softnic::rendezvous_path(block << 12).unwrap();
    let bind = |block: &u32| net::bind(&listener, &SocketAddrUnix::new(path(block)).unwrap()).is_ok();
    let block = (1..4096).rev().find(bind).unwrap();
    net::listen(&listener, 16).unwrap();
    let (gid, qpn) = (a.path().dgid, block << 12);
    for index in 0..4 {
        a.context.check_owner(gid, qpn + index).unwrap();
    }
    a.init();
    a.rtr(qpn);
    let connections = std::iter::from_fn(|| net::accept(&listener).ok()).count();
    std::fs::remove_file(path(&block)).unwrap();
    assert_eq!(connections, 1);
}
