//! Resolution of names to addresses (man `rdma_getaddrinfo`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use farcall_layout::rdmacm::{AddrInfo, addr_flags};
use farcall_wire::cm::PortSpace;
use libc::{addrinfo, sockaddr, socklen_t};

use crate::errno::{invalid, log_why, to_return_value};
use crate::id::{UD, transport};
use crate::symbols::export;

/// Copies bytes to memory that [`rdma_freeaddrinfo`] frees; returns null if there are none.
///
/// # Safety
/// `from` must be null or point to `len` bytes.
unsafe fn copy(from: *const c_void, len: usize) -> *mut c_void {
    if from.is_null() || len == 0 {
        return ptr::null_mut();
    }
    // SAFETY: contract of this function: `from` has `len` bytes. `to` is newly allocated with that length, and checked
    // for null.
    unsafe {
        let to = libc::malloc(len);
        if !to.is_null() {
            ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len);
        }
        to
    }
}

/// The program's hints, completed with defaults.
struct AddrInfoHints {
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
}

impl AddrInfoHints {
    fn of(hints: Option<&AddrInfo>) -> Self {
        let (flags, family, qp_type, port_space) = hints.map_or((0, 0, 0, 0), |hints| {
            (hints.ai_flags, hints.ai_family, hints.ai_qp_type, hints.ai_port_space)
        });
        let is_datagram = qp_type == UD as c_int || (qp_type == 0 && port_space == PortSpace::Udp as c_int);
        let usual = if is_datagram { PortSpace::Udp } else { PortSpace::Tcp };
        let port_space = if port_space == 0 { usual as c_int } else { port_space };
        let space = PortSpace::of(port_space as u32).unwrap_or(usual);
        let qp_type = if qp_type == 0 { transport(space) as c_int } else { qp_type };
        Self { flags, family, qp_type, port_space }
    }

    fn is_passive(&self) -> bool {
        self.flags & addr_flags::PASSIVE != 0
    }

    fn for_libc(&self) -> addrinfo {
        // SAFETY: a structure of integers and pointers, for which zero is valid.
        let mut hints: addrinfo = unsafe { MaybeUninit::zeroed().assume_init() };
        hints.ai_family = self.family;
        hints.ai_socktype = if self.qp_type == UD as c_int { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
        if self.is_passive() {
            hints.ai_flags |= libc::AI_PASSIVE;
        }
        if self.flags & addr_flags::NUMERICHOST != 0 {
            hints.ai_flags |= libc::AI_NUMERICHOST;
        }
        hints
    }
}

/// Stores an address as the local one of a listener, or as the remote one of a connecting endpoint.
///
/// # Safety
/// The pointers must be null, or point to `len` bytes and to a C string.
unsafe fn place(
    info: &mut AddrInfo,
    is_passive: bool,
    address: *const sockaddr,
    len: socklen_t,
    canonname: *const c_char,
) {
    // SAFETY: contract of this function: `address` is null or has `len` bytes, and `canonname` is null or a C string.
    let (address, name) = unsafe {
        let name_len = if canonname.is_null() { 0 } else { libc::strlen(canonname) + 1 };
        (copy(address.cast(), len as usize).cast(), copy(canonname.cast(), name_len).cast())
    };
    if is_passive {
        (info.ai_src_addr, info.ai_src_len, info.ai_src_canonname) = (address, len, name);
    } else {
        (info.ai_dst_addr, info.ai_dst_len, info.ai_dst_canonname) = (address, len, name);
    }
}

/// # Safety
/// The same as for `rdma_getaddrinfo` (man page).
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
) -> Result<*mut AddrInfo, c_int> {
    let resolved_hints = AddrInfoHints::of(hints);
    let mut info = AddrInfo {
        ai_flags: resolved_hints.flags,
        ai_family: resolved_hints.family,
        ai_qp_type: resolved_hints.qp_type,
        ai_port_space: resolved_hints.port_space,
        ..AddrInfo::default()
    };
    // SAFETY: contract of this function: the strings and hints are null or valid. `getaddrinfo` returned `found`
    // without an error, and it is freed once.
    unsafe {
        if !node.is_null() || !service.is_null() {
            let (wanted, mut found) = (resolved_hints.for_libc(), ptr::null_mut());
            let number = libc::getaddrinfo(node, service, &raw const wanted, &raw mut found);
            if number != 0 {
                let why = CStr::from_ptr(libc::gai_strerror(number)).to_string_lossy();
                log_why(format_args!("getaddrinfo: {why}"));
                return Err(number);
            }
            let first = &*found;
            info.ai_family = first.ai_family;
            place(
                &mut info,
                resolved_hints.is_passive(),
                first.ai_addr,
                first.ai_addrlen,
                first.ai_canonname,
            );
            libc::freeaddrinfo(found);
        }
        if let Some(hints) = hints {
            if info.ai_dst_addr.is_null() && hints.ai_dst_len > 0 {
                place(&mut info, false, hints.ai_dst_addr, hints.ai_dst_len, ptr::null());
            }
            if info.ai_src_addr.is_null() && hints.ai_src_len > 0 {
                place(&mut info, true, hints.ai_src_addr, hints.ai_src_len, ptr::null());
            }
        }
    }
    Ok(Box::into_raw(Box::new(info)))
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_getaddrinfo`: returns one address. The result is 0, -1 with `errno`, or a number for
        /// `gai_strerror`.
        fn rdma_getaddrinfo(
            node: *const c_char, service: *const c_char, hints: *const AddrInfo, res: *mut *mut AddrInfo,
        ) -> c_int {
            if node.is_null() && service.is_null() && hints.is_null() {
                return to_return_value(Err(invalid("neither a node, a service nor hints")));
            }
            // SAFETY: contract of `rdma_getaddrinfo` (man page): strings and structure are null or valid, and `res`
            // points to a variable.
            unsafe {
                match find(node, service, hints.as_ref()) {
                    Ok(info) => {
                        *res = info;
                        0
                    }
                    Err(number) => number,
                }
            }
        }

        /// `man rdma_freeaddrinfo`.
        fn rdma_freeaddrinfo(first: *mut AddrInfo) {
            let mut next = first;
            while !next.is_null() {
                // SAFETY: `rdma_getaddrinfo` made the structure with `Box::into_raw`, and each part is null or was
                // allocated by `malloc`.
                unsafe {
                    let info = Box::from_raw(next);
                    for part in [
                        info.ai_src_addr.cast(),
                        info.ai_dst_addr.cast(),
                        info.ai_src_canonname.cast(),
                        info.ai_dst_canonname.cast(),
                        info.ai_route,
                        info.ai_connect,
                    ] {
                        libc::free(part);
                    }
                    next = info.ai_next;
                }
            }
        }
    }
}
