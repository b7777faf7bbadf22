//! Control messages of UDP sockets: destination address of a datagram, length of the datagrams of a GSO or GRO batch,
//! ECN marks.

use std::mem::{size_of, zeroed};
use std::net::Ipv6Addr;

use super::ecn::Ecn;
use super::path::Path;

/// Buffer for the control messages of a message.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct CmsgBuffer(pub(super) [u8; 88]);

/// Returns the space in bytes of a control message with this content.
const fn control_space<T>() -> usize {
    // SAFETY: `CMSG_SPACE` only computes a length.
    unsafe { libc::CMSG_SPACE(size_of::<T>() as u32) as usize }
}
pub(super) const PKTINFO_SPACE: usize = control_space::<libc::in6_pktinfo>();
pub(super) const SEGMENT_SPACE: usize = control_space::<u16>();
pub(super) const ECN_SPACE: usize = control_space::<libc::c_int>();
const _: () = assert!(PKTINFO_SPACE + SEGMENT_SPACE + ECN_SPACE <= size_of::<CmsgBuffer>());
const _: () = assert!(PKTINFO_SPACE + control_space::<libc::c_int>() + ECN_SPACE <= size_of::<CmsgBuffer>());

/// Metadata of a received message, from its control messages.
#[derive(Default)]
pub(super) struct RecvMeta {
    /// Destination address of the message.
    pub(super) dst: Option<Ipv6Addr>,
    /// Length of the datagrams of a GRO batch, except the last; `None` for a single datagram.
    pub(super) segment_bytes: Option<usize>,
    /// `true` if it carries the CE mark. In a GRO batch this applies to each datagram: Linux batches only datagrams
    /// with equal marks.
    pub(super) is_marked: bool,
}

impl RecvMeta {
    /// # Safety
    /// `head` must be filled by the kernel, and its control messages must be valid.
    pub(super) unsafe fn from_msghdr(head: &libc::msghdr) -> Self {
        let mut meta = Self::default();
        // SAFETY: by the contract of this function the control messages are valid; the kernel writes only complete
        // ones.
        unsafe {
            let mut message = libc::CMSG_FIRSTHDR(head);
            while let Some(header) = message.as_ref() {
                let data = libc::CMSG_DATA(message);
                match (header.cmsg_level, header.cmsg_type) {
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                        let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                        meta.dst = Some(info.ipi6_addr.s6_addr.into());
                    }
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        meta.segment_bytes = data.cast::<libc::c_int>().read_unaligned().try_into().ok();
                    }
                    (libc::IPPROTO_IP, libc::IP_TOS) => {
                        meta.is_marked = Ecn::is_congested(data.read());
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                        let class = data.cast::<libc::c_int>().read_unaligned();
                        meta.is_marked = Ecn::is_congested(class as u8);
                    }
                    _ => {}
                }
                message = libc::CMSG_NXTHDR(head, message);
            }
        }
        meta
    }
}

/// Writes control messages to a message header: the source address of the message, the length of the datagrams of a GSO
/// batch, and the ECN field if it differs from the socket's.
///
/// # Safety
/// The header's control buffer must be valid for [`PKTINFO_SPACE`] bytes, for [`SEGMENT_SPACE`] more for a GSO batch,
/// and for [`ECN_SPACE`] more for an ECN field. It must be zeroed and aligned to 8 bytes, and the header must contain
/// its length.
pub(super) unsafe fn write_cmsgs(
    head: &libc::msghdr,
    path: Path,
    segment_bytes: Option<u16>,
    ecn: Option<Ecn>,
) {
    // SAFETY: all bytes zero are a valid `in6_pktinfo`, which is plain data.
    let mut info: libc::in6_pktinfo = unsafe { zeroed() };
    info.ipi6_addr.s6_addr = path.src.octets();
    // SAFETY: by the contract of this function the control buffer has space for each of these messages.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(head);
        write_message(message, (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), info);
        if let Some(segment_bytes) = segment_bytes {
            message = libc::CMSG_NXTHDR(head, message);
            write_message(message, (libc::SOL_UDP, libc::UDP_SEGMENT), segment_bytes);
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
/// `message` must have space for a control message with this content.
unsafe fn write_message<T>(
    message: *mut libc::cmsghdr,
    (level, kind): (libc::c_int, libc::c_int),
    content: T,
) {
    // SAFETY: by the contract of this function `message` has space for the header and the content.
    unsafe {
        (*message).cmsg_level = level;
        (*message).cmsg_type = kind;
        (*message).cmsg_len = libc::CMSG_LEN(size_of::<T>() as u32) as usize;
        libc::CMSG_DATA(message).cast::<T>().write_unaligned(content);
    }
}
