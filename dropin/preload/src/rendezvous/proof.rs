//! Proofs that two ends which pair are those of one connection.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::fs;

use crate::sock_diag;

/// A number that both ends know of the connecting end, and no other connection's end can state.
pub trait Proof {
    /// Returns the number of the connecting end as the accepting end, whose addresses these are, determines it.
    fn of_peer(local: SocketAddr, peer: SocketAddr) -> Option<u64>;

    /// Returns the number of the connecting end as that end determines it.
    fn of_own(fd: c_int) -> Option<u64>;
}

/// Both ends are sockets of one kernel, which reports the inode of each.
pub struct SocketInode;

impl Proof for SocketInode {
    fn of_peer(local: SocketAddr, peer: SocketAddr) -> Option<u64> {
        sock_diag::inode(peer, local)
    }

    fn of_own(fd: c_int) -> Option<u64> {
        // SAFETY: the program's descriptor, for one query.
        fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok().map(|status| status.st_ino)
    }
}
