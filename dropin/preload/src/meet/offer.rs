//! The steps of both ends to their meeting.

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

use super::memory::{FORMAT, ShmHandoff};
use super::proof::Proof;
use super::{describe, place};
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
    let place = place::of(fd, local, peer).ok_or(PathReason::NoResources)?;
    let meeting = place::make(&place).ok_or(PathReason::NoResources)?;
    sock.publish(meeting);
    sock.uses.try_again(true);
    Ok(())
}

/// Searches, at the accepting end, for the connecting end.
pub(super) fn seek<P: Proof>(fd: c_int, sock: &Sock) -> Result<(), PathReason> {
    if sock.is_in_kernel(Direction::Receive) {
        // Another thread waits in the kernel: the connection could not be turned.
        sock.uses.try_again(true);
        return Ok(());
    }
    sock.uses.try_again(false);
    let is_last = sock.count_pairing_try() >= MAX_TRIES;
    describe(fd, sock, |local, _| local)?;
    if sock.descriptors() != 1 {
        return Err(PathReason::Duplicated);
    }
    if sock.is_inherited() {
        return Err(PathReason::Forked);
    }
    let (local, peer) = sock.addresses().ok_or(PathReason::NoResources)?;
    let place = place::of(fd, peer, local).ok_or(PathReason::NoResources)?;
    let is_absent = fs::access(&place, fs::Access::EXISTS).is_err();
    let meeting = if is_absent { None } else { place::connect_to(&place)? };
    let Some(meeting) = meeting else {
        return if is_last { Err(PathReason::PeerNotAccelerated) } else { Ok(()) };
    };
    offer::<P>(fd, sock, meeting, local, peer)
}

/// Makes what both ends share, and sends it to the connecting one.
fn offer<P: Proof>(
    fd: c_int,
    sock: &Sock,
    meeting: OwnedFd,
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
    sock.while_turning(Stage::Accepted, || {
        let link = Link::new(segment.memory(), false, doorbell).ok_or(PathReason::NoResources)?;
        enter(fd, sock, link)
    })?;
    if sock.stage() != Stage::Met {
        return Ok(());
    }
    epoll::watch(fd);
    let fds = [segment.fd(), peer_doorbell.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let byte = [std::io::IoSlice::new(&[1])];
    // If it fails the other end never comes, and everything goes by TCP.
    let _ = sendmsg(&meeting, &byte, &mut control, SendFlags::NOSIGNAL);
    Ok(())
}

/// Adds the rings to the connection; they follow the bytes that were read by TCP.
fn enter(fd: c_int, sock: &Sock, link: Link) -> Result<(), PathReason> {
    let read_bytes = tcp::read_bytes(fd).ok_or(PathReason::KernelFeature)?;
    link.inn.set_read_by_tcp(read_bytes);
    sock.set_met(link);
    Ok(())
}

/// Checks at the connecting end whether the accepting one has sent the shared memory.
pub(super) fn check<P: Proof>(fd: c_int, sock: &Sock) -> Result<(), PathReason> {
    let checks = sock.count_pairing_try();
    sock.uses.try_again(checks < EAGER_CHECKS);
    if sock.descriptors() != 1 {
        return Err(PathReason::Duplicated);
    }
    accept_offer::<P>(fd, sock)?;
    if checks >= MAX_CHECKS { Err(PathReason::PeerNotAccelerated) } else { Ok(()) }
}

fn accept_offer<P: Proof>(fd: c_int, sock: &Sock) -> Result<(), PathReason> {
    let Some(meeting) = sock.rendezvous() else { return Ok(()) };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let meeting = if meeting.is_connected {
        meeting.fd
    } else {
        let Ok(peer) = accept_with(own_fds::borrow(meeting.fd), flags) else { return Ok(()) };
        if !place::is_own_user(peer.as_fd()) {
            return Err(PathReason::AnotherUser);
        }
        if direct_calls::are_possible() {
            return Err(PathReason::DirectCalls);
        }
        // The other end sends at once; if it has not yet, this socket takes the place of the first.
        let peer = own_fds::keep(peer).ok_or(PathReason::NoResources)?;
        sock.replace_rendezvous(peer);
        peer
    };
    sock.while_turning(Stage::Meeting, || take_offer::<P>(fd, sock, meeting))?;
    if let Some(link) = sock.link() {
        sock.close_meeting();
        epoll::watch(fd);
        link.announce_mapped();
    }
    Ok(())
}

fn take_offer<P: Proof>(fd: c_int, sock: &Sock, meeting: RawFd) -> Result<(), PathReason> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    match recvmsg(own_fds::borrow(meeting), &mut into, &mut control, flags) {
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
    enter(fd, sock, link)
}
