//! Steps by which the two ends pair.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use farcall_shm::{Segment, SharedMem};
use farcall_stats::PathReason;
use rustix::fs;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, accept_with, recvmsg, sendmsg,
};

use super::handoff::{FORMAT, ShmHandoff};
use super::proof::Proof;
use super::{describe, socket};
use crate::sock::layout::{MAGIC, PROOF, SEGMENT_BYTES};
use crate::sock::{Direction, Link, Sock, Stage};
use crate::{direct_calls, epoll, own_fds, tcp};

/// Number of uses in a row after which a connecting end checks for an offer; later it checks ever less often.
const EAGER_CHECKS: u32 = 64;

/// Maximum number of checks for an offer, after which a connection stays on TCP.
const MAX_CHECKS: u32 = EAGER_CHECKS + 10;

/// Maximum number of times that an accepting end tries to find the connecting one.
const MAX_TRIES: u32 = 8;

/// Creates the socket by which the connecting end is found.
pub(super) fn publish(fd: c_int, sock: &Sock) -> Result<(), PathReason> {
    describe(fd, sock, |_, peer| peer)?;
    let (local, peer) = sock.addresses().ok_or(PathReason::NoResources)?;
    let path = socket::path(fd, local, peer).ok_or(PathReason::NoResources)?;
    let rendezvous = socket::create(&path).ok_or(PathReason::NoResources)?;
    sock.publish(rendezvous);
    sock.usage.schedule_retry(true);
    Ok(())
}

/// Searches, at the accepting end, for the connecting end.
pub(super) fn find_connector<P: Proof>(fd: c_int, sock: &Sock) -> Result<(), PathReason> {
    if sock.is_in_kernel(Direction::Receive) {
        // Another thread waits in the kernel: the connection cannot be switched now.
        sock.usage.schedule_retry(true);
        return Ok(());
    }
    sock.usage.schedule_retry(false);
    let is_last = sock.count_pairing_try() >= MAX_TRIES;
    describe(fd, sock, |local, _| local)?;
    if sock.descriptors() != 1 {
        return Err(PathReason::Duplicated);
    }
    if sock.is_inherited() {
        return Err(PathReason::Forked);
    }
    let (local, peer) = sock.addresses().ok_or(PathReason::NoResources)?;
    let path = socket::path(fd, peer, local).ok_or(PathReason::NoResources)?;
    let is_absent = fs::access(&path, fs::Access::EXISTS).is_err();
    let rendezvous = if is_absent { None } else { socket::connect_to(&path)? };
    let Some(rendezvous) = rendezvous else {
        return if is_last { Err(PathReason::PeerNotAccelerated) } else { Ok(()) };
    };
    offer::<P>(fd, sock, rendezvous, local, peer)
}

/// Creates what both ends share, and sends it to the connecting end.
fn offer<P: Proof>(
    fd: c_int,
    sock: &Sock,
    rendezvous: OwnedFd,
    local: SocketAddr,
    peer: SocketAddr,
) -> Result<(), PathReason> {
    if epoll::is_nested(fd) {
        return Err(PathReason::NestedEpoll);
    }
    if direct_calls::are_possible() {
        return Err(PathReason::DirectCalls);
    }
    let proof = P::of_peer(local, peer).ok_or(PathReason::NoResources)?;
    let ShmHandoff { segment, doorbell, peer_doorbell } =
        ShmHandoff::new(proof).ok_or(PathReason::NoResources)?;
    // A thread that is in the kernel with the socket would miss the doorbell; the move is tried again later then.
    sock.while_switching(Stage::Accepted, || {
        let link = Link::new(segment.memory(), false, doorbell).ok_or(PathReason::NoResources)?;
        pair(fd, sock, link)
    })?;
    if sock.stage() != Stage::Paired {
        return Ok(());
    }
    epoll::watch(fd);
    let fds = [segment.fd(), peer_doorbell.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let byte = [std::io::IoSlice::new(&[1])];
    // If it fails, the other end never appears, and all bytes use TCP.
    let _ = sendmsg(&rendezvous, &byte, &mut control, SendFlags::NOSIGNAL);
    Ok(())
}

/// Adds the rings to the connection; they follow the bytes that were read by TCP.
fn pair(fd: c_int, sock: &Sock, link: Link) -> Result<(), PathReason> {
    let read_bytes = tcp::read_bytes(fd).ok_or(PathReason::KernelFeature)?;
    link.incoming.set_read_by_tcp(read_bytes);
    sock.set_paired(link);
    Ok(())
}

/// Checks at the connecting end whether the accepting one has sent the shared memory.
pub(super) fn check<P: Proof>(fd: c_int, sock: &Sock) -> Result<(), PathReason> {
    let checks = sock.count_pairing_try();
    sock.usage.schedule_retry(checks < EAGER_CHECKS);
    if sock.descriptors() != 1 {
        return Err(PathReason::Duplicated);
    }
    accept_offer::<P>(fd, sock)?;
    if checks >= MAX_CHECKS { Err(PathReason::PeerNotAccelerated) } else { Ok(()) }
}

fn accept_offer<P: Proof>(fd: c_int, sock: &Sock) -> Result<(), PathReason> {
    let Some(rendezvous) = sock.rendezvous() else { return Ok(()) };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let rendezvous = if rendezvous.is_connected {
        rendezvous.fd
    } else {
        let Ok(peer) = accept_with(own_fds::borrow(rendezvous.fd), flags) else { return Ok(()) };
        if !socket::is_own_user(peer.as_fd()) {
            return Err(PathReason::AnotherUser);
        }
        if direct_calls::are_possible() {
            return Err(PathReason::DirectCalls);
        }
        // The other end sends at once. Until it has, this socket replaces the listening one.
        let peer = own_fds::adopt(peer).ok_or(PathReason::NoResources)?;
        sock.replace_rendezvous(peer);
        peer
    };
    sock.while_switching(Stage::Published, || receive_handoff::<P>(fd, sock, rendezvous))?;
    if let Some(link) = sock.link() {
        sock.close_rendezvous();
        epoll::watch(fd);
        link.announce_mapped();
    }
    Ok(())
}

fn receive_handoff<P: Proof>(fd: c_int, sock: &Sock, rendezvous: RawFd) -> Result<(), PathReason> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    match recvmsg(own_fds::borrow(rendezvous), &mut into, &mut control, flags) {
        Ok(_) => {}
        Err(Errno::AGAIN) => return Ok(()),
        Err(_) => return Err(PathReason::PeerNotAccelerated),
    }
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds: Vec<OwnedFd> = fds.flatten().collect();
    let [segment, doorbell] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| PathReason::NoResources)?;
    let mapped = Segment::map_peer_segment(segment.as_fd(), 0, SEGMENT_BYTES, true)
        .map_err(|_| PathReason::NoResources)?;
    let words = SharedMem::new(mapped);
    if words.load(MAGIC, SeqCst) != FORMAT || P::of_own(fd) != Some(words.load(PROOF, Relaxed)) {
        return Err(PathReason::PeerNotAccelerated);
    }
    if epoll::is_nested(fd) {
        return Err(PathReason::NestedEpoll);
    }
    let link = Link::new(words, true, doorbell).ok_or(PathReason::NoResources)?;
    pair(fd, sock, link)
}
