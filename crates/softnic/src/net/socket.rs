//! The UDP sockets: batches of datagrams in and out, by one system call each.
//!
//! Everything is IPv6 here, with IPv4 mapped into it, as GIDs are. The socket never connects and forbids fragments: so
//! the kernel sends identification 0 in IPv4, which the invariant CRC covers. A datagram that is longer than the link's
//! frames goes out of a second socket, which lets the kernel cut it.

use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use farcall_shm::fork::DontForkFd;
use farcall_verbs::{Error, Result};
use farcall_wire::codec::UDP_PORT;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, ipproto};

use super::path::Path;
use super::slots::Slots;

/// Datagrams that one system call moves at most.
pub(super) const BATCH: usize = 32;

/// Bytes of the longest datagram: a packet with 4096 bytes of payload.
pub(super) const DATAGRAM_BYTES_MAX: usize = 4096 + 64;

/// What a socket may hold for us while nobody looks, in bytes; the system may allow less.
const RECEIVE_BYTES: usize = 8 << 20;

pub(super) const OP: &str = "open the RoCEv2 port";

/// A datagram that came in.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) src: Ipv6Addr,
    pub(super) dst: Ipv6Addr,
    pub(super) src_port: u16,
    at: usize,
    len_bytes: usize,
}

/// Room for a batch of datagrams that come in.
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    pub(super) arrivals: Vec<Arrival>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; BATCH * DATAGRAM_BYTES_MAX].into(), arrivals: Vec::with_capacity(BATCH) }
    }

    pub(super) fn datagram(&self, arrival: &Arrival) -> &[u8] {
        &self.bytes[arrival.at..][..arrival.len_bytes]
    }
}

/// Room for the control message that names our address.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 64]);

const PKTINFO_SPACE: usize = {
    // SAFETY: computes a length.
    unsafe { libc::CMSG_SPACE(size_of::<libc::in6_pktinfo>() as u32) as usize }
};
const _: () = assert!(PKTINFO_SPACE <= size_of::<Control>());

/// How sending a batch ended.
pub(super) enum Sent {
    /// So many went out.
    Some(usize),
    /// The first is longer than the link's frames.
    TooLong,
    /// The first cannot be sent now, or not there: as if it were lost.
    Lost,
}

pub(super) struct Socket {
    /// Whose socket takes and sends what goes in one piece.
    slots: Arc<Slots>,
    /// Its datagrams may be cut.
    fragments: DontForkFd,
    pub(super) fragments_port: u16,
}

pub(super) fn fail(what: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::os(OP, what, errno)
}

/// A socket for both families.
fn make(discover: libc::c_int) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let fd = net::socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, Some(ipproto::UDP))
        .map_err(fail("create a UDP socket (is IPv6 switched off? IPv4 is mapped into it)"))?;
    net::sockopt::set_ipv6_v6only(&fd, false).map_err(fail("let IPv4 in"))?;
    set_option(&fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, discover)?;
    set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, discover)?;
    Ok(fd)
}

fn bind(fd: &OwnedFd, port: u16) -> rustix::io::Result<()> {
    net::bind(fd, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))
}

/// Sockets that share the port: the kernel numbers them in this order.
///
/// # Errors
/// If somebody has the port, or the system refuses.
pub(super) fn bind_shared(count: usize) -> Result<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    for nth in 0..count {
        let socket = make(libc::IP_PMTUDISC_DO)?;
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        let share = || set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
        if nth > 0 {
            share()?;
        }
        // The first shares with nobody who was there before.
        bind(&socket, UDP_PORT).map_err(fail(
            "bind UDP port 4791 (another user of this network namespace has it, or the kernel's rxe)",
        ))?;
        if nth == 0 {
            share()?;
        }
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Takes everything out of a socket that has come.
pub(super) fn drain(socket: BorrowedFd<'_>) {
    // Bounded, because strangers may send all the time.
    const DATAGRAMS_MAX: usize = 1 << 16;
    let take = || net::recv(socket, &mut [0_u8; 1][..], net::RecvFlags::DONTWAIT).is_ok();
    let _ = (0..DATAGRAMS_MAX).find(|_| !take());
}

fn set_option(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> Result<()> {
    let len_bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: an option whose value is an integer, which lives through the call.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len_bytes) };
    if result == 0 { Ok(()) } else { Err(fail("set an option of a UDP socket")(last_errno())) }
}

pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn sockaddr(address: Ipv6Addr, port: u16) -> libc::sockaddr_in6 {
    // SAFETY: plain data, of which nothing is a reference.
    let mut name: libc::sockaddr_in6 = unsafe { zeroed() };
    name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
    name.sin6_port = port.to_be();
    name.sin6_addr.s6_addr = address.octets();
    name
}

impl Socket {
    /// Opens what a process needs beside its slot.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(super) fn open(slots: Arc<Slots>) -> Result<Self> {
        let whole = slots.socket();
        // Less than asked for is no error. Beyond the system's limit for those who may.
        let _ = net::sockopt::set_socket_recv_buffer_size(whole, RECEIVE_BYTES);
        let _ = net::sockopt::set_socket_recv_buffer_size_force(whole, RECEIVE_BYTES);
        let fragments = make(libc::IP_PMTUDISC_DONT)?;
        bind(&fragments, 0).map_err(fail("bind a UDP socket"))?;
        let name = net::getsockname(&fragments).map_err(fail("ask for the port of a UDP socket"))?;
        let fragments_port = SocketAddrV6::try_from(name).map_or(0, |name| name.port());
        Ok(Self { slots, fragments: DontForkFd::new(fragments), fragments_port })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.slots.socket()
    }

    /// Takes what has come, up to a batch. Never waits.
    pub(super) fn receive(&self, inbox: &mut Inbox) {
        inbox.arrivals.clear();
        // SAFETY: plain data, filled below or by the kernel.
        let (mut names, mut heads): ([libc::sockaddr_in6; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { zeroed() };
        let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
        let mut controls = [Control([0; 64]); BATCH];
        for at in 0..BATCH {
            let room = &mut inbox.bytes[at * DATAGRAM_BYTES_MAX..][..DATAGRAM_BYTES_MAX];
            pieces[at].write(libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
            let head = &mut heads[at].msg_hdr;
            head.msg_name = (&raw mut names[at]).cast();
            head.msg_namelen = size_of::<libc::sockaddr_in6>() as u32;
            head.msg_iov = pieces[at].as_mut_ptr();
            head.msg_iovlen = 1;
            head.msg_control = (&raw mut controls[at]).cast();
            head.msg_controllen = size_of::<Control>();
        }
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: every head names a name, a piece and a control of its own, which live through the call.
        let count = unsafe {
            libc::recvmmsg(
                self.fd().as_raw_fd(),
                heads.as_mut_ptr(),
                BATCH as u32,
                flags,
                std::ptr::null_mut(),
            )
        };
        for at in 0..usize::try_from(count).unwrap_or(0) {
            let head = &heads[at];
            // SAFETY: filled by the kernel, control messages included, whose room lives.
            let dst = unsafe { destination(&head.msg_hdr) };
            let (Some(dst), 0) = (dst, head.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC)) else {
                continue;
            };
            inbox.arrivals.push(Arrival {
                src: names[at].sin6_addr.s6_addr.into(),
                dst,
                src_port: u16::from_be(names[at].sin6_port),
                at: at * DATAGRAM_BYTES_MAX,
                len_bytes: (head.msg_len as usize).min(DATAGRAM_BYTES_MAX),
            });
        }
    }

    /// Sends datagrams, up to a batch of them; those that may be cut if `may_be_cut`.
    pub(super) fn send<'a>(
        &self,
        datagrams: impl Iterator<Item = (Path, &'a [u8])>,
        may_be_cut: bool,
    ) -> Sent {
        // SAFETY: plain data, filled below.
        let (mut names, mut heads): ([libc::sockaddr_in6; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { zeroed() };
        let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
        let mut controls = [Control([0; 64]); BATCH];
        let mut count = 0;
        for (path, datagram) in datagrams.take(BATCH) {
            names[count] = sockaddr(path.dst, UDP_PORT);
            let base = datagram.as_ptr().cast_mut().cast();
            pieces[count].write(libc::iovec { iov_base: base, iov_len: datagram.len() });
            let head = &mut heads[count].msg_hdr;
            head.msg_name = (&raw mut names[count]).cast();
            head.msg_namelen = size_of::<libc::sockaddr_in6>() as u32;
            head.msg_iov = pieces[count].as_mut_ptr();
            head.msg_iovlen = 1;
            head.msg_control = (&raw mut controls[count]).cast();
            head.msg_controllen = PKTINFO_SPACE;
            // SAFETY: the head names a control that is large enough, aligned and zeroed.
            unsafe { name_source(head, path.src) };
            count += 1;
        }
        let fd = if may_be_cut { self.fragments.as_fd() } else { self.fd() };
        loop {
            // SAFETY: as in `receive`; what is sent is only read.
            let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), heads.as_mut_ptr(), count as u32, 0) };
            match usize::try_from(sent) {
                Ok(sent) => return Sent::Some(sent),
                Err(_) => match last_errno() {
                    Errno::INTR => {}
                    Errno::MSGSIZE => return Sent::TooLong,
                    _ => return Sent::Lost,
                },
            }
        }
    }
}

/// Our address from which the kernel would send to another.
///
/// # Errors
/// If there is no way to it.
pub(super) fn source_towards(operation: &'static str, dst: Ipv6Addr) -> Result<Ipv6Addr> {
    let ask = || {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
        // Sends nothing.
        socket.connect((dst, UDP_PORT))?;
        socket.local_addr()
    };
    match ask() {
        Ok(std::net::SocketAddr::V6(name)) => Ok(*name.ip()),
        Ok(std::net::SocketAddr::V4(name)) => Ok(name.ip().to_ipv6_mapped()),
        Err(error) => {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::HOSTUNREACH);
            let to = dst.to_canonical();
            Err(Error::os(operation, format!("find a route to {to} (does ping reach it?)"), errno))
        }
    }
}

/// The address that a datagram was sent to.
///
/// # Safety
/// The head must be one that the kernel has filled, and its control messages live.
unsafe fn destination(head: &libc::msghdr) -> Option<Ipv6Addr> {
    // SAFETY: the caller's promise; the kernel's messages are whole.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(head);
        while let Some(header) = message.as_ref() {
            if header.cmsg_level == libc::IPPROTO_IPV6 && header.cmsg_type == libc::IPV6_PKTINFO {
                let info: libc::in6_pktinfo =
                    libc::CMSG_DATA(message).cast::<libc::in6_pktinfo>().read_unaligned();
                return Some(info.ipi6_addr.s6_addr.into());
            }
            message = libc::CMSG_NXTHDR(head, message);
        }
    }
    None
}

/// Says in a head which of our addresses a datagram comes from.
///
/// # Safety
/// The head's control must be valid for [`PKTINFO_SPACE`] bytes, aligned to 8.
unsafe fn name_source(head: &libc::msghdr, src: Ipv6Addr) {
    // SAFETY: plain data.
    let mut info: libc::in6_pktinfo = unsafe { zeroed() };
    info.ipi6_addr.s6_addr = src.octets();
    // SAFETY: the caller's promise: there is room for one message with this content.
    unsafe {
        let message = libc::CMSG_FIRSTHDR(head);
        (*message).cmsg_level = libc::IPPROTO_IPV6;
        (*message).cmsg_type = libc::IPV6_PKTINFO;
        (*message).cmsg_len = libc::CMSG_LEN(size_of::<libc::in6_pktinfo>() as u32) as usize;
        libc::CMSG_DATA(message).cast::<libc::in6_pktinfo>().write_unaligned(info);
    }
}
