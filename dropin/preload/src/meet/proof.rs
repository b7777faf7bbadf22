//! Proofs that two ends which meet are those of one connection.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::fs;

use crate::diagnosis;

/// A number that both ends know of the connecting end, and no other connection's end can state.
pub trait Proof {
    /// Returns what the accepting end, whose addresses these are, finds out about the other end.
    fn of_peer(local: SocketAddr, peer: SocketAddr) -> Option<u64>;

    /// Returns what the connecting end knows of itself.
    fn of_own(fd: c_int) -> Option<u64>;
}

/// Both ends are sockets of one kernel, which reports the inode of each.
pub struct SocketInode;

impl Proof for SocketInode {
    fn of_peer(local: SocketAddr, peer: SocketAddr) -> Option<u64> {
        diagnosis::inode(peer, local)
    }

    fn of_own(fd: c_int) -> Option<u64> {
        // SAFETY: the program's descriptor, for one query.
        fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok().map(|status| status.st_ino)
    }
}
