//! Control messages of UDP: our address of a datagram, the length of the datagrams of a train, marks of congestion.

use std::mem::{size_of, zeroed};
use std::net::Ipv6Addr;

use super::ecn::Ecn;
use super::path::Path;

/// Room for the control messages of a message.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Control(pub(super) [u8; 88]);

/// Bytes that a control message of such a content takes.
const fn control_space<T>() -> usize {
    // SAFETY: computes a length.
    unsafe { libc::CMSG_SPACE(size_of::<T>() as u32) as usize }
}
pub(super) const PKTINFO_SPACE: usize = control_space::<libc::in6_pktinfo>();
pub(super) const SEGMENT_SPACE: usize = control_space::<u16>();
pub(super) const ECN_SPACE: usize = control_space::<libc::c_int>();
const _: () = assert!(PKTINFO_SPACE + SEGMENT_SPACE + ECN_SPACE <= size_of::<Control>());
const _: () = assert!(PKTINFO_SPACE + control_space::<libc::c_int>() + ECN_SPACE <= size_of::<Control>());

/// What the kernel tells of a message.
#[derive(Default)]
pub(super) struct Told {
    /// The address that it was sent to.
    pub(super) dst: Option<Ipv6Addr>,
    /// If it is a train: of all of its datagrams but the last.
    pub(super) datagram_bytes: Option<usize>,
    /// Whether it met congestion; of a train, each of its datagrams: Linux puts none together that differ in it.
    pub(super) is_marked: bool,
}

impl Told {
    /// # Safety
    /// The head must be one that the kernel has filled, and its control messages live.
    pub(super) unsafe fn by(head: &libc::msghdr) -> Self {
        let mut told = Self::default();
        // SAFETY: the caller's promise; the kernel's messages are whole.
        unsafe {
            let mut message = libc::CMSG_FIRSTHDR(head);
            while let Some(header) = message.as_ref() {
                let data = libc::CMSG_DATA(message);
                match (header.cmsg_level, header.cmsg_type) {
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                        let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                        told.dst = Some(info.ipi6_addr.s6_addr.into());
                    }
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        told.datagram_bytes = data.cast::<libc::c_int>().read_unaligned().try_into().ok();
                    }
                    (libc::IPPROTO_IP, libc::IP_TOS) => {
                        told.is_marked = Ecn::is_congested(data.read());
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                        let class = data.cast::<libc::c_int>().read_unaligned();
                        told.is_marked = Ecn::is_congested(class as u8);
                    }
                    _ => {}
                }
                message = libc::CMSG_NXTHDR(head, message);
            }
        }
        told
    }
}

/// Says in a head which of our addresses a message comes from, how long the datagrams of a train are, and the ECN field
/// if it is not the socket's.
///
/// # Safety
/// The head's control must be valid for [`PKTINFO_SPACE`] bytes, for [`SEGMENT_SPACE`] more for a train, and for
/// [`ECN_SPACE`] more for an ECN field, zeroed and aligned to 8; the head says how many.
pub(super) unsafe fn write_control(
    head: &libc::msghdr,
    path: Path,
    datagram_bytes: Option<u16>,
    ecn: Option<Ecn>,
) {
    // SAFETY: plain data.
    let mut info: libc::in6_pktinfo = unsafe { zeroed() };
    info.ipi6_addr.s6_addr = path.src.octets();
    // SAFETY: the caller's promise: there is room for one message with this content, and for the others.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(head);
        write_message(message, (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), info);
        if let Some(datagram_bytes) = datagram_bytes {
            message = libc::CMSG_NXTHDR(head, message);
            write_message(message, (libc::SOL_UDP, libc::UDP_SEGMENT), datagram_bytes);
        }
        if let Some(ecn) = ecn {
            message = libc::CMSG_NXTHDR(head, message);
            let is_v4 = path.dst.to_ipv4_mapped().is_some();
            let v4 = (libc::IPPROTO_IP, libc::IP_TOS);
            let kind = if is_v4 { v4 } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
            write_message(message, kind, ecn as libc::c_int);
        }
    }
}

/// # Safety
/// There must be room for a control message of this content.
unsafe fn write_message<T>(
    message: *mut libc::cmsghdr,
    (level, kind): (libc::c_int, libc::c_int),
    content: T,
) {
    // SAFETY: the caller's promise.
    unsafe {
        (*message).cmsg_level = level;
        (*message).cmsg_type = kind;
        (*message).cmsg_len = libc::CMSG_LEN(size_of::<T>() as u32) as usize;
        libc::CMSG_DATA(message).cast::<T>().write_unaligned(content);
    }
}
