//! UDP sockets: batches of datagrams are sent and received by one system call each.
//!
//! All addresses are IPv6, with IPv4 mapped into it as in GIDs. Sockets are not connected and forbid fragmentation, so
//! that the kernel sends identification 0 in IPv4, which the invariant CRC covers. While a socket sends datagrams that
//! are longer than the link's frames, it permits the kernel to fragment them.
//!
//! Datagrams of one length to one queue pair are passed to the kernel as one *GSO batch* (UDP_SEGMENT), a "train" in
//! names of counters. The kernel splits it as late as possible, and not at all within this machine. Datagrams that it
//! has combined (UDP_GRO) are split here.

use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use farcall_verbs::{Error, Result};
use farcall_wire::codec::UDP_PORT;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, ipproto};

use super::cmsg::{CmsgBuffer, ECN_SPACE, PKTINFO_SPACE, RecvMeta, SEGMENT_SPACE, write_cmsgs};
use super::ecn::Ecn;
use super::path::Path;

/// Maximum number of messages per system call; each is a datagram or a GSO batch.
pub(super) const MESSAGES_MAX: usize = 32;

/// Number of messages requested while few arrive. Each costs its preparation, whether it arrives or not.
const MESSAGES_USUAL: usize = 4;

/// Target number of bytes received by one system call. They are read twice more, and should stay in a cache near the
/// processor for that.
const RECEIVE_TARGET_BYTES: usize = 1 << 18;

/// Limits of the kernel on a GSO batch: number of datagrams, and bytes.
pub(super) const GSO_BATCH_MAX: usize = 64;
pub(super) const GSO_BATCH_BYTES_MAX: usize = 65_000;

/// Maximum length of a datagram in bytes: a packet with 4096 bytes of payload.
pub(super) const DATAGRAM_BYTES_MAX: usize = 4096 + 64;

/// Requested size of a socket's receive buffer in bytes. The system may grant less.
const RECEIVE_BYTES: usize = 8 << 20;

pub(super) const OP: &str = "open the RoCEv2 port";

/// A received datagram.
#[derive(Clone, Copy)]
pub(super) struct ReceivedDatagram {
    pub(super) src: Ipv6Addr,
    pub(super) dst: Ipv6Addr,
    pub(super) src_port: u16,
    /// Number of datagrams before it in its GRO batch. This is its IPv4 identification if the batch arrived as it was
    /// sent.
    pub(super) index_in_batch: u16,
    /// `true` if it carries the CE mark.
    pub(super) is_marked: bool,
    at: usize,
    len_bytes: usize,
}

/// Buffer size for one message. Not a power of two, so that the beginnings of messages do not share few cache sets.
const MESSAGE_BUFFER_BYTES: usize = (1 << 16) + DATAGRAM_BYTES_MAX;

/// Buffers for a batch of received messages.
pub(super) struct RecvBatch {
    bytes: Box<[u8]>,
    pub(super) datagrams: Vec<ReceivedDatagram>,
    /// `true` if the socket probably contains more messages.
    pub(super) has_more: bool,
    /// Number of messages requested next.
    messages_expected: usize,
}

impl RecvBatch {
    pub(super) fn new() -> Self {
        let bytes = vec![0; MESSAGES_MAX * MESSAGE_BUFFER_BYTES].into();
        Self {
            bytes,
            datagrams: Vec::with_capacity(MESSAGES_MAX * GSO_BATCH_MAX),
            has_more: false,
            messages_expected: 1,
        }
    }

    /// Adapts the number of requested messages to the number received. While they arrive singly no second one is
    /// requested, because the attempt to receive it takes half as long as the first.
    fn expect_after(&mut self, received: usize, received_bytes: usize) {
        let requested = self.messages_expected;
        self.has_more = received == requested && requested > 1;
        self.messages_expected = match (received, requested) {
            (1, 1) => MESSAGES_USUAL,
            (0 | 1, _) => 1,
            _ if received == requested => {
                (received * RECEIVE_TARGET_BYTES / received_bytes.max(1)).clamp(MESSAGES_USUAL, MESSAGES_MAX)
            }
            _ => MESSAGES_USUAL,
        };
    }

    pub(super) fn datagram(&self, received_datagram: &ReceivedDatagram) -> &[u8] {
        &self.bytes[received_datagram.at..][..received_datagram.len_bytes]
    }
}

/// Datagrams that are sent as one message.
#[derive(Clone, Copy)]
pub(super) struct GsoBatch<'a> {
    pub(super) path: Path,
    pub(super) bytes: &'a [u8],
    /// Length in bytes of each datagram except the last, which may be shorter.
    pub(super) segment_bytes: usize,
    pub(super) ecn: Ecn,
}

/// Result of sending a batch.
pub(super) enum BatchSendResult {
    /// This number of messages was sent.
    Some(usize),
    /// The first is a GSO batch, and the kernel supports none, or none of such datagrams.
    NoGso,
    /// The first is longer than the link's frames.
    TooLong,
    /// The first cannot be sent now, or not to its destination; handled as if it were lost.
    Lost,
}

pub(super) fn fail(what: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::os(OP, what, errno)
}

/// Permits the kernel to fragment the datagrams of a socket (`IP_PMTUDISC_DONT`), or makes it reject those that are too
/// long (`_DO`).
fn discover_mtu(fd: &impl AsFd, discover: libc::c_int) -> rustix::io::Result<()> {
    set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, discover)?;
    set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, discover)
}

/// Creates a socket for both address families.
fn create_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let fd = net::socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    net::sockopt::set_ipv6_v6only(&fd, false)?;
    discover_mtu(&fd, libc::IP_PMTUDISC_DO)?;
    set_option(&fd, libc::IPPROTO_IP, libc::IP_TOS, Ecn::Capable as libc::c_int)?;
    set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, Ecn::Capable as libc::c_int)?;
    Ok(fd)
}

fn bind(fd: &OwnedFd, port: u16) -> rustix::io::Result<()> {
    net::bind(fd, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))
}

/// Returns sockets that share the port. The kernel numbers them in this order.
///
/// # Errors
/// Returns an error if the port is in use, or if the system refuses.
pub(super) fn bind_shared(count: usize) -> Result<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    for nth in 0..count {
        let socket = create_socket()
            .map_err(fail("create a UDP socket (is IPv6 switched off? IPv4 is mapped into it)"))?;
        let option =
            |level, name| set_option(&socket, level, name, 1).map_err(fail("set an option of a UDP socket"));
        option(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)?;
        option(libc::IPPROTO_IP, libc::IP_RECVTOS)?;
        option(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)?;
        let share = || option(libc::SOL_SOCKET, libc::SO_REUSEPORT);
        if nth > 0 {
            share()?;
        }
        // The first socket is bound without sharing, so that it fails if the port is in use.
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

/// Returns a socket that sends from a port, and receives nothing.
///
/// # Errors
/// Returns `ADDRINUSE` if any socket of this host has the port, or the error of the kernel.
pub(super) fn bind_sender(port: u16) -> rustix::io::Result<OwnedFd> {
    let socket = create_socket()?;
    // Before the socket has its port, so that nothing is ever queued.
    let mut drop_all = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: drop_all.len() as u16, filter: drop_all.as_mut_ptr() };
    let len_bytes = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the option takes a `sock_fprog`. `program` and `drop_all` outlive the call, and the kernel copies them.
    let result = unsafe {
        let (fd, value) = (socket.as_raw_fd(), (&raw const program).cast());
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, len_bytes)
    };
    if result != 0 {
        return Err(last_errno());
    }
    bind(&socket, port)?;
    Ok(socket)
}

/// Turns GRO on or off for a socket.
pub(super) fn allow_gro(socket: BorrowedFd<'_>, is_allowed: bool) {
    // Older kernels do not support it; each datagram is then received singly.
    let _ = set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, is_allowed.into());
}

/// Discards all datagrams that a socket has received.
pub(super) fn drain(socket: BorrowedFd<'_>) {
    // Bounded, because untrusted hosts may send continuously.
    const DATAGRAMS_MAX: usize = 1 << 16;
    let receive_one = || net::recv(socket, &mut [0_u8; 1][..], net::RecvFlags::DONTWAIT).is_ok();
    let _ = (0..DATAGRAMS_MAX).find(|_| !receive_one());
}

fn set_option(
    fd: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> rustix::io::Result<()> {
    let (fd, len_bytes) = (fd.as_fd().as_raw_fd(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the option's value is an integer, and `value` is a local variable that outlives the call.
    let result = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len_bytes) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn sockaddr(address: Ipv6Addr, port: u16) -> libc::sockaddr_in6 {
    // SAFETY: all bytes zero are a valid `sockaddr_in6`, which is plain data.
    let mut name: libc::sockaddr_in6 = unsafe { zeroed() };
    name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
    name.sin6_port = port.to_be();
    name.sin6_addr.s6_addr = address.octets();
    name
}

/// Returns a buffer whose entries are written only as far as they are used.
fn unwritten<T>() -> [MaybeUninit<T>; MESSAGES_MAX] {
    [const { MaybeUninit::uninit() }; MESSAGES_MAX]
}

/// Returns the header of a message with one buffer.
fn head(
    name: &mut MaybeUninit<libc::sockaddr_in6>,
    piece: &mut MaybeUninit<libc::iovec>,
    cmsgs: &mut MaybeUninit<CmsgBuffer>,
    cmsg_bytes: usize,
) -> libc::mmsghdr {
    // SAFETY: all bytes zero are a valid `mmsghdr`, which is plain data.
    let mut head: libc::mmsghdr = unsafe { zeroed() };
    head.msg_hdr.msg_name = name.as_mut_ptr().cast();
    head.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in6>() as u32;
    head.msg_hdr.msg_iov = piece.as_mut_ptr();
    head.msg_hdr.msg_iovlen = 1;
    head.msg_hdr.msg_control = cmsgs.as_mut_ptr().cast();
    head.msg_hdr.msg_controllen = cmsg_bytes;
    head
}

/// Prepares a socket for bursts of packets.
pub(super) fn enlarge_receive_buffer(socket: BorrowedFd<'_>) {
    // A smaller buffer is not an error. Privileged processes may exceed the system's limit.
    let _ = net::sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BYTES);
    let _ = net::sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BYTES);
}

impl RecvBatch {
    /// Receives up to a batch of messages from a socket. Never blocks.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) {
        self.datagrams.clear();
        let requested = self.messages_expected;
        let (mut names, mut pieces) = (unwritten::<libc::sockaddr_in6>(), unwritten::<libc::iovec>());
        let (mut controls, mut heads) = (unwritten::<CmsgBuffer>(), unwritten::<libc::mmsghdr>());
        for at in 0..requested {
            let buffer = &mut self.bytes[at * MESSAGE_BUFFER_BYTES..][..MESSAGE_BUFFER_BYTES];
            names[at].write(sockaddr(Ipv6Addr::UNSPECIFIED, 0));
            pieces[at].write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
            let head = head(&mut names[at], &mut pieces[at], &mut controls[at], size_of::<CmsgBuffer>());
            heads[at].write(head);
        }
        let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: `requested` headers are initialized. Each refers to an address, a buffer and a control buffer of its
        // own, which are local variables or belong to `self` and outlive the call.
        let count = unsafe {
            libc::recvmmsg(fd, heads[0].as_mut_ptr(), requested as u32, flags, std::ptr::null_mut())
        };
        let count = usize::try_from(count).unwrap_or(0);
        let mut received_bytes = 0;
        for at in 0..count {
            // SAFETY: both were initialized above.
            let (head, name) = unsafe { (heads[at].assume_init(), names[at].assume_init()) };
            // SAFETY: the kernel has filled the header, and its control buffer is an entry of `controls`.
            let meta = unsafe { RecvMeta::from_msghdr(&head.msg_hdr) };
            let (Some(dst), 0) = (meta.dst, head.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC))
            else {
                continue;
            };
            let (src, src_port) = (name.sin6_addr.s6_addr.into(), u16::from_be(name.sin6_port));
            let all_bytes = (head.msg_len as usize).min(MESSAGE_BUFFER_BYTES);
            received_bytes += all_bytes;
            let each_bytes = meta.segment_bytes.unwrap_or(all_bytes).max(1);
            // An empty datagram counts, too.
            for (index_in_batch, offset) in (0..all_bytes.max(1)).step_by(each_bytes).enumerate() {
                let len_bytes = each_bytes.min(all_bytes - offset);
                // Longer than any packet.
                if len_bytes > DATAGRAM_BYTES_MAX {
                    continue;
                }
                let (at, index_in_batch, is_marked) =
                    (at * MESSAGE_BUFFER_BYTES + offset, index_in_batch as u16, meta.is_marked);
                self.datagrams.push(ReceivedDatagram {
                    src,
                    dst,
                    src_port,
                    index_in_batch,
                    is_marked,
                    at,
                    len_bytes,
                });
            }
        }
        self.expect_after(count, received_bytes);
    }
}

/// Sends up to a batch of GSO batches from a socket. `may_be_fragmented` permits the kernel to fragment them.
pub(super) fn send<'a>(
    socket: BorrowedFd<'_>,
    batches: impl Iterator<Item = GsoBatch<'a>>,
    may_be_fragmented: bool,
) -> BatchSendResult {
    let (mut names, mut pieces) = (unwritten::<libc::sockaddr_in6>(), unwritten::<libc::iovec>());
    let (mut controls, mut heads) = (unwritten::<CmsgBuffer>(), unwritten::<libc::mmsghdr>());
    let (mut count, mut first_is_long) = (0, false);
    for GsoBatch { path, bytes, segment_bytes, ecn } in batches.take(MESSAGES_MAX) {
        let is_long = bytes.len() > segment_bytes;
        first_is_long |= count == 0 && is_long;
        names[count].write(sockaddr(path.dst, UDP_PORT));
        let base = bytes.as_ptr().cast_mut().cast();
        pieces[count].write(libc::iovec { iov_base: base, iov_len: bytes.len() });
        controls[count].write(CmsgBuffer([0; _]));
        let segment_bytes = is_long.then_some(segment_bytes as u16);
        let ecn = Some(ecn).filter(|ecn| *ecn != Ecn::Capable);
        let cmsg_bytes =
            PKTINFO_SPACE + segment_bytes.map_or(0, |_| SEGMENT_SPACE) + ecn.map_or(0, |_| ECN_SPACE);
        let head = head(&mut names[count], &mut pieces[count], &mut controls[count], cmsg_bytes);
        // SAFETY: the header's control buffer is an entry of `controls`, which is large enough, aligned to 8 bytes
        // and zeroed.
        unsafe { write_cmsgs(&head.msg_hdr, path, segment_bytes, ecn) };
        heads[count].write(head);
        count += 1;
    }
    if may_be_fragmented && discover_mtu(&socket, libc::IP_PMTUDISC_DONT).is_err() {
        return BatchSendResult::Lost;
    }
    let fd = socket.as_raw_fd();
    let sent = loop {
        // SAFETY: `count` headers are initialized. Each refers to an address, a buffer and a control buffer that
        // outlive the call, and which the kernel only reads.
        let sent = unsafe { libc::sendmmsg(fd, heads[0].as_mut_ptr(), count as u32, 0) };
        match usize::try_from(sent) {
            Ok(sent) => break BatchSendResult::Some(sent),
            Err(_) => match last_errno() {
                Errno::INTR => {}
                Errno::MSGSIZE | Errno::INVAL | Errno::IO | Errno::OPNOTSUPP if first_is_long => {
                    break BatchSendResult::NoGso;
                }
                Errno::MSGSIZE => break BatchSendResult::TooLong,
                _ => break BatchSendResult::Lost,
            },
        }
    };
    if may_be_fragmented {
        // The option was set before, so the kernel accepts it again.
        let _set = discover_mtu(&socket, libc::IP_PMTUDISC_DO);
    }
    sent
}
