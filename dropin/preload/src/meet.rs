//! How the two ends of a connection meet, outside of it.
//!
//! The end that connected makes a Unix socket in the user's own directory, named by network namespace and addresses. The
//! end that accepted looks for it when it receives its first bytes, which were sent after the socket was made; it makes
//! memory and doorbells and sends them there without waiting. The other end finds them when it uses the connection next;
//! until then, and if nobody comes, everything goes by TCP. Both check the other's user. The accepting end asks the
//! kernel which socket (its inode) is at the other end of the TCP connection, and the connecting end goes on only if that
//! is its own: so what an earlier connection of the same addresses left behind misleads nobody.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use farcall_shm::{Segment, SharedMem};
use farcall_stats::Why;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
};

use crate::memory::Memory;
use crate::ring::{Part, Ring, WORDS_BYTES};
use crate::sock::{Link, MAPPED, Sock, Stage};
use crate::{calls, config, diagnosis, epoll, own_fds, real, sock, tcp};

/// The first word of the memory: what it is, and its version.
const MAGIC: u64 = u64::from_le_bytes(*b"farrun03");
const AT_MAGIC: usize = 0;
/// Where the connecting end says that it closed or shut down.
pub const AT_CONNECTED_END: usize = 24;
const AT_ACCEPTED_END: usize = 32;
/// The inode of the connecting end's socket, as the kernel told the accepting end.
const AT_INODE: usize = 40;
const WORDS_AT: [usize; 2] = [256, 256 + WORDS_BYTES];
const SHORT_AT: usize = 4096;
const SHORT_BYTES: usize = 64 << 10;
const LONG_AT: usize = SHORT_AT + 2 * SHORT_BYTES;
const LONG_BYTES: usize = 1 << 20;
const SEGMENT_BYTES: usize = LONG_AT + 2 * LONG_BYTES;

/// So often a connecting end looks whether the accepting one came.
const MAX_LOOKS: u32 = 64;
/// So often an accepting end tries.
const MAX_TRIES: u32 = 8;

/// The address as IPv4 if it is one that IPv6 only wraps.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Both addresses of a TCP connection within this host; `None` for everything else.
/// While a connection is being made the kernel does not tell the peer's address; `asked` was asked for.
pub fn addresses_within_host(fd: c_int, asked: Option<SocketAddr>) -> Option<(SocketAddr, SocketAddr)> {
    if calls::uses_io_uring() {
        return None;
    }
    // SAFETY: the program's descriptor, for two questions; a wrong one is answered by an error.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    if rustix::net::sockopt::socket_type(fd).ok()? != SocketType::STREAM
        || rustix::net::sockopt::socket_protocol(fd).ok()? != Some(rustix::net::ipproto::TCP)
    {
        return None;
    }
    let local = plain(SocketAddr::try_from(rustix::net::getsockname(fd).ok()?).ok()?);
    let told = rustix::net::getpeername(fd).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
    let peer = plain(told.or(asked)?);
    let is_within = local.ip() == peer.ip() || (is_loopback(local.ip()) && is_loopback(peer.ip()));
    (is_within && local != peer).then_some((local, peer))
}

fn is_loopback(address: IpAddr) -> bool {
    address.is_loopback()
}

/// After `connect` was called: expects the accepting end.
pub fn expect(fd: c_int, asked: Option<SocketAddr>) {
    let Some((local, peer)) = addresses_within_host(fd, asked).filter(|(_, peer)| config::admits(*peer))
    else {
        return;
    };
    crate::fork::prepare();
    let made = sock::new(Stage::Meeting, local, peer);
    let meeting = place(fd, local, peer).and_then(|place| make_meeting(&place));
    match meeting {
        Some(meeting) => made.meeting_fd.store(meeting, SeqCst),
        None => made.stay(Why::NoResources),
    }
    sock::put(fd, &made);
}

fn make_meeting(place: &Path) -> Option<RawFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let address = SocketAddrUnix::new(place).ok()?;
    let bound = bind(&listener, &address).or_else(|error| match error {
        // Of a connection that has these addresses no more.
        Errno::ADDRINUSE => fs::unlink(place).and_then(|()| bind(&listener, &address)),
        error => Err(error),
    });
    bound.and_then(|()| listen(&listener, 1)).ok()?;
    let kept = own_fds::keep(listener);
    if kept.is_none() {
        let _ = fs::unlink(place);
    }
    kept
}

/// Takes the name of a meeting socket away.
pub fn forget_place(meeting: RawFd) {
    let address = rustix::net::getsockname(own_fds::borrow(meeting)).ok();
    let address = address.and_then(|address| SocketAddrUnix::try_from(address).ok());
    if let Some(path) = address.as_ref().and_then(|address| address.path()) {
        let _ = fs::unlink(path.as_ref());
    }
}

/// Where both ends look: the accepting one's addresses are the same, the other way round.
fn place(fd: c_int, connected: SocketAddr, accepted: SocketAddr) -> Option<PathBuf> {
    const SO_NETNS_COOKIE: c_int = 71;
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the cookie.
    let asked = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut len)
    };
    if asked != 0 {
        return None;
    }
    let name = fnv(format!("{cookie} {connected} {accepted}").as_bytes());
    Some(farcall_shm::own_directory().ok()?.join(format!("run-{name:032x}")))
}

/// FNV-1a, 128 bits: short names that do not depend on a build.
fn fnv(bytes: &[u8]) -> u128 {
    let step =
        |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013B);
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, step)
}

fn is_own_user(socket: BorrowedFd<'_>) -> bool {
    // Not rustix's, whose pid cannot be the 0 that the kernel tells of another pid namespace.
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, a ucred.
    let asked = unsafe {
        let value = (&raw mut credentials).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut len)
    };
    asked == 0 && credentials.uid == rustix::process::geteuid().as_raw()
}

/// Memory and doorbells of a connection, before they are its.
struct Made {
    segment: Segment,
    door: OwnedFd,
    peer_door: OwnedFd,
}

fn make(inode: u64) -> Option<Made> {
    let segment = Segment::create_with_room("farcall-run", LONG_AT, 2 * LONG_BYTES).ok()?;
    let words = segment.memory();
    words.store(AT_INODE, inode, Relaxed);
    words.store(AT_MAGIC, MAGIC, SeqCst);
    Some(Made { segment, door: make_door()?, peer_door: make_door()? })
}

fn make_door() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()
}

/// What both ends make of the memory; `first` is the ring of the connecting end.
fn link(words: SharedMem, connected: bool, door: OwnedFd, peer_door: OwnedFd) -> Option<Link> {
    let ring = |i: usize| {
        let short = Part { at: SHORT_AT + i * SHORT_BYTES, len_bytes: SHORT_BYTES };
        let long = Part { at: LONG_AT + i * LONG_BYTES, len_bytes: LONG_BYTES };
        Ring::new(Memory::new(words.clone()), WORDS_AT[i], short, long)
    };
    let (out, inn) = if connected { (ring(0), ring(1)) } else { (ring(1), ring(0)) };
    let (own_end, peer_end) =
        if connected { (AT_CONNECTED_END, AT_ACCEPTED_END) } else { (AT_ACCEPTED_END, AT_CONNECTED_END) };
    let door = own_fds::keep(door)?;
    let Some(peer_door) = own_fds::keep(peer_door) else {
        own_fds::close(door);
        return None;
    };
    Some(Link { out, inn, words, own_end, peer_end, door, peer_door })
}

/// After `accept`: a connection that may be moved once the program uses it.
pub fn accepted(fd: c_int) {
    let Some((local, peer)) = addresses_within_host(fd, None).filter(|(local, _)| config::admits(*local))
    else {
        return;
    };
    crate::fork::prepare();
    sock::put(fd, &sock::new(Stage::Accepted, local, peer));
}

/// The accepting end, which has received bytes: looks for the other one.
pub fn seek(fd: c_int, sock: &Sock) {
    if sock.tries.fetch_add(1, AcqRel) >= MAX_TRIES {
        return sock.stay(Why::NotMet);
    }
    sock.while_meeting(|| {
        if sock.stage() == Stage::Accepted
            && let Err(why) = try_seek(fd, sock)
        {
            sock.stay(why);
        }
    });
}

fn try_seek(fd: c_int, sock: &Sock) -> Result<(), Why> {
    if sock.fds.load(Acquire) != 1 {
        return Err(Why::Duplicated);
    }
    if sock.is_inherited() {
        return Err(Why::Forked);
    }
    let (local, peer) = sock.addresses().ok_or(Why::NoResources)?;
    let place = place(fd, peer, local).ok_or(Why::NoResources)?;
    if fs::access(&place, fs::Access::EXISTS).is_err() {
        return Err(Why::PeerNotAccelerated);
    }
    if epoll::is_nested(fd) {
        return Err(Why::NestedEpoll);
    }
    let inode = diagnosis::inode(peer, local).ok_or(Why::NoResources)?;
    let Made { segment, door, peer_door } = make(inode).ok_or(Why::NoResources)?;
    let handed = peer_door.try_clone().map_err(|_| Why::NoResources)?;
    let own = door.try_clone().map_err(|_| Why::NoResources)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let meeting = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let meeting = meeting.map_err(|_| Why::NoResources)?;
    let address = SocketAddrUnix::new(&place).map_err(|_| Why::NoResources)?;
    match connect(&meeting, &address) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => {
            // Of a process that died.
            let _ = fs::unlink(&place);
            return Err(Why::PeerNotAccelerated);
        }
        Err(_) => return Err(Why::PeerNotAccelerated),
    }
    if !is_own_user(meeting.as_fd()) {
        return Err(Why::AnotherUser);
    }
    // Whoever is inside of the kernel with it would not hear the doorbell; then another time.
    sock.while_turning(Stage::Accepted, || {
        let link = link(segment.memory(), false, door, peer_door).ok_or(Why::NoResources)?;
        enter(fd, sock, link)
    })?;
    if sock.stage() != Stage::Met {
        return Ok(());
    }
    acknowledge(fd);
    epoll::watch(fd);
    // The connecting end's doorbell first, then ours.
    let fds = [segment.fd(), handed.as_fd(), own.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let byte = [std::io::IoSlice::new(&[1])];
    // If it fails the other end never comes, and everything goes by TCP.
    let _ = sendmsg(&meeting, &byte, &mut control, SendFlags::NOSIGNAL);
    Ok(())
}

/// The rings belong to the connection from now on, after what was read by TCP.
fn enter(fd: c_int, sock: &Sock, link: Link) -> Result<(), Why> {
    let Some(read_bytes) = tcp::read_bytes(fd) else {
        own_fds::close(link.door);
        own_fds::close(link.peer_door);
        return Err(Why::KernelFeature);
    };
    link.inn.set_read_by_tcp(read_bytes);
    sock.set_met(link);
    Ok(())
}

/// Lets the kernel acknowledge at once what came by TCP: the peer's ring begins when all of it is.
pub fn acknowledge(fd: c_int) {
    let on: c_int = 1;
    let (value, len) = ((&raw const on).cast(), size_of::<c_int>() as libc::socklen_t);
    // SAFETY: an int of ours. A failure costs time alone.
    unsafe { real::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, value, len) };
}

/// The connecting end, which uses its connection: looks whether the accepting one came.
pub fn look(fd: c_int, sock: &Sock) {
    if sock.stage() != Stage::Meeting {
        return;
    }
    let looks = sock.tries.fetch_add(1, AcqRel);
    sock.while_meeting(|| {
        if sock.stage() != Stage::Meeting {
            return;
        }
        if sock.fds.load(Acquire) != 1 {
            return sock.stay(Why::Duplicated);
        }
        match accept_offer(fd, sock) {
            Ok(()) if looks >= MAX_LOOKS => sock.stay(Why::PeerNotAccelerated),
            Ok(()) => {}
            Err(why) => sock.stay(why),
        }
    });
}

fn accept_offer(fd: c_int, sock: &Sock) -> Result<(), Why> {
    let meeting = sock.meeting_fd.load(Acquire);
    if meeting < 0 {
        return Ok(());
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let meeting = if sock.is_offered.load(Acquire) {
        meeting
    } else {
        let Ok(peer) = accept_with(own_fds::borrow(meeting), flags) else { return Ok(()) };
        if !is_own_user(peer.as_fd()) {
            return Err(Why::AnotherUser);
        }
        // The other end sends at once; if it has not yet, this socket is waited for in the place of the first.
        let peer = own_fds::keep(peer).ok_or(Why::NoResources)?;
        sock.close_meeting();
        sock.meeting_fd.store(peer, SeqCst);
        sock.is_offered.store(true, SeqCst);
        peer
    };
    sock.while_turning(Stage::Meeting, || take_offer(fd, sock, meeting))?;
    if let Some(link) = sock.link() {
        sock.close_meeting();
        acknowledge(fd);
        epoll::watch(fd);
        link.words.store(MAPPED, 1, SeqCst);
        // Who sleeps in `poll` on the meeting socket looks again.
        own_fds::ring(link.door);
    }
    Ok(())
}

fn take_offer(fd: c_int, sock: &Sock, meeting: RawFd) -> Result<(), Why> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    match recvmsg(own_fds::borrow(meeting), &mut into, &mut control, flags) {
        Ok(_) => {}
        Err(Errno::AGAIN) => return Ok(()),
        Err(_) => return Err(Why::PeerNotAccelerated),
    }
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds: Vec<OwnedFd> = fds.flatten().collect();
    let [segment, door, peer_door] = <[OwnedFd; 3]>::try_from(fds).map_err(|_| Why::NoResources)?;
    let mapped =
        Segment::map_foreign(segment.as_fd(), 0, SEGMENT_BYTES, true).map_err(|_| Why::NoResources)?;
    let words = SharedMem::new(mapped);
    // SAFETY: the program's descriptor, for one question.
    let own = fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).map_err(|_| Why::NoResources)?;
    if words.load(AT_MAGIC, SeqCst) != MAGIC || words.load(AT_INODE, Relaxed) != own.st_ino {
        return Err(Why::PeerNotAccelerated);
    }
    if epoll::is_nested(fd) {
        return Err(Why::NestedEpoll);
    }
    let link = link(words, true, door, peer_door).ok_or(Why::NoResources)?;
    enter(fd, sock, link)
}
