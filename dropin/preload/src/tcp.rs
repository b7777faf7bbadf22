//! What the kernel tells of a TCP socket.

use std::ffi::{c_int, c_ulong};

use crate::real;

/// struct tcp_info, as far as it is needed (Linux 4.19 has all of it).
#[repr(C)]
#[derive(Default)]
struct Info {
    state: u8,
    _states: [u8; 4],
    options: u8,
    _rates: [u8; 2],
    _before: [u32; 24],
    _pacing: [u64; 2],
    bytes_acked: u64,
    bytes_received: u64,
    _between: [u64; 8],
    bytes_sent: u64,
    bytes_retrans: u64,
}

const _: () = assert!(std::mem::offset_of!(Info, bytes_acked) == 120);
const _: () = assert!(std::mem::offset_of!(Info, bytes_sent) == 200);

/// A SYN carried data (TCP_FASTOPEN), which not all counts have.
const OPTION_SYN_DATA: u8 = 32;
const STATE_ESTABLISHED: u8 = 1;

fn info(fd: c_int) -> Option<Info> {
    let mut info = Info::default();
    let mut len = size_of::<Info>() as libc::socklen_t;
    let value = (&raw mut info).cast();
    // SAFETY: the kernel writes at most `len` bytes to a structure of numbers.
    let asked = unsafe { real::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, value, &raw mut len) };
    (asked == 0 && len as usize == size_of::<Info>() && info.options & OPTION_SYN_DATA == 0).then_some(info)
}

fn number(fd: c_int, request: c_ulong) -> Option<u64> {
    let mut value: c_int = 0;
    // SAFETY: the kernel writes one int.
    let asked = unsafe { real::ioctl(fd, request, (&raw mut value).addr()) };
    u64::try_from(value).ok().filter(|_| asked == 0)
}

/// Bytes that were received and not read.
pub fn unread_bytes(fd: c_int) -> u64 {
    number(fd, libc::FIONREAD).unwrap_or(0)
}

/// All bytes that were ever sent, if the peer's kernel has them all.
pub fn sent_and_acknowledged_bytes(fd: c_int) -> Option<u64> {
    if number(fd, libc::TIOCOUTQ)? != 0 {
        return None;
    }
    let info = info(fd)?;
    let sent = info.bytes_sent.checked_sub(info.bytes_retrans)?;
    // The end that connected counts its SYN, too.
    (info.bytes_acked == sent || info.bytes_acked == sent + 1).then_some(sent)
}

/// Bytes may come while they are counted; so often it is tried again.
const READ_TRIES: u32 = 64;

/// All bytes that were ever read; `None` if the connection is about to end. Nobody else reads meanwhile.
pub fn read_bytes(fd: c_int) -> Option<u64> {
    for _ in 0..READ_TRIES {
        let before = info(fd)?;
        let unread_bytes = unread_bytes(fd);
        let after = info(fd)?;
        // An end of the peer's would be counted as a byte.
        if after.state != STATE_ESTABLISHED {
            return None;
        }
        if before.bytes_received == after.bytes_received {
            return after.bytes_received.checked_sub(unread_bytes);
        }
    }
    None
}
