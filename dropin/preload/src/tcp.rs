//! Information of the kernel about a TCP socket.

use std::ffi::{c_int, c_ulong};

use crate::libc_next;

/// `ioctl` request that queries whether the socket is at the mark of urgent data.
pub const SIOCATMARK: c_ulong = 0x8905;

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
    _segments: u64,
    notsent_bytes: u32,
    _round_trip: u32,
    _between: [u64; 6],
    bytes_sent: u64,
    bytes_retrans: u64,
}

const _: () = assert!(std::mem::offset_of!(Info, bytes_acked) == 120);
const _: () = assert!(std::mem::offset_of!(Info, notsent_bytes) == 144);
const _: () = assert!(std::mem::offset_of!(Info, bytes_sent) == 200);

/// A SYN carried data (TCP_FASTOPEN), which not all counts have.
const OPTION_SYN_DATA: u8 = 32;
const STATE_ESTABLISHED: u8 = 1;
const STATE_SYN_SENT: u8 = 2;
const STATE_CLOSE: u8 = 7;
/// States in which bytes can arrive: ESTABLISHED, FIN_WAIT1, FIN_WAIT2.
const STATES_OF_ARRIVALS: [u8; 3] = [STATE_ESTABLISHED, 4, 5];
/// After the end of the peer, which the kernel counts as a byte: CLOSE_WAIT, LAST_ACK, CLOSING.
const STATES_AFTER_END: [u8; 3] = [8, 9, 11];

/// Traffic of a socket.
pub struct Traffic {
    /// Bytes that the program has sent by TCP.
    pub sent_bytes: u64,
    /// Bytes that have arrived by TCP.
    pub received_bytes: u64,
    /// `false` if the connection was refused, or is still being made.
    pub was_established: bool,
}

/// Returns the traffic of a socket so far; `None` if the kernel reports none.
pub fn traffic(fd: c_int) -> Option<Traffic> {
    let info = info(fd)?;
    let end_bytes = u64::from(STATES_AFTER_END.contains(&info.state));
    let is_without_peer = [STATE_SYN_SENT, STATE_CLOSE].contains(&info.state);
    Some(Traffic {
        sent_bytes: info.bytes_sent.saturating_sub(info.bytes_retrans) + u64::from(info.notsent_bytes),
        received_bytes: info.bytes_received.saturating_sub(end_bytes),
        was_established: !is_without_peer || info.bytes_acked + info.bytes_received > 0,
    })
}

fn info(fd: c_int) -> Option<Info> {
    let mut info = Info::default();
    let mut len = size_of::<Info>() as libc::socklen_t;
    let value = (&raw mut info).cast();
    // SAFETY: the kernel writes at most `len` bytes to a structure of numbers.
    let asked = unsafe { libc_next::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, value, &raw mut len) };
    (asked == 0 && len as usize == size_of::<Info>() && info.options & OPTION_SYN_DATA == 0).then_some(info)
}

fn number(fd: c_int, request: c_ulong) -> Option<u64> {
    let mut value: c_int = 0;
    // SAFETY: the kernel writes one int.
    let asked = unsafe { libc_next::ioctl(fd, request, (&raw mut value).addr()) };
    u64::try_from(value).ok().filter(|_| asked == 0)
}

/// Returns whether the next byte to receive follows an urgent one (SIOCATMARK).
pub fn is_at_mark(fd: c_int) -> bool {
    number(fd, SIOCATMARK) == Some(1)
}

/// Returns the number of bytes that were received and not read.
pub fn unread_bytes(fd: c_int) -> u64 {
    number(fd, libc::FIONREAD).unwrap_or(0)
}

/// Returns the number of bytes written so far, transmitted or not; `None` if the kernel's counts are inconsistent.
/// No other thread writes in the meantime.
pub fn written_bytes(fd: c_int) -> Option<u64> {
    const SIOCOUTQNSD: c_ulong = 0x894B;
    for _ in 0..READ_TRIES {
        let before = info(fd)?;
        let (unacknowledged, unsent) = (number(fd, libc::TIOCOUTQ)?, number(fd, SIOCOUTQNSD)?);
        let after = info(fd)?;
        if before.state != STATE_ESTABLISHED {
            return None;
        }
        if (before.bytes_acked, before.bytes_sent, before.bytes_retrans)
            != (after.bytes_acked, after.bytes_sent, after.bytes_retrans)
        {
            continue;
        }
        let written = (after.bytes_sent + unsent).checked_sub(after.bytes_retrans)?;
        // The end that connected counts its SYN among the acknowledged bytes, too.
        let acknowledged = (after.bytes_acked + unacknowledged).checked_sub(written)?;
        return (acknowledged <= 1).then_some(written);
    }
    None
}

/// Returns whether no more bytes can arrive.
pub fn is_ended(fd: c_int) -> bool {
    info(fd).is_none_or(|info| !STATES_OF_ARRIVALS.contains(&info.state))
}

/// Ends a connection for both ends at once, as a reset: bytes that wait in its receive queue are discarded.
pub fn reset(fd: c_int) {
    // SAFETY: zeros are a valid address.
    let mut unspecified: libc::sockaddr = unsafe { std::mem::zeroed() };
    unspecified.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    // SAFETY: an address of this function, of the length that is passed. `connect` with AF_UNSPEC disconnects.
    unsafe { libc_next::connect(fd, &raw const unspecified, size_of::<libc::sockaddr>() as libc::socklen_t) };
}

/// Maximum number of attempts to count bytes, which may arrive while they are counted.
const READ_TRIES: u32 = 64;

/// Returns the number of bytes that were ever read; `None` if the connection is about to end. No other thread may read
/// concurrently.
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

/// Returns the pending error of the socket (SO_ERROR), which the kernel does not report again; 0: none.
pub fn take_error(fd: c_int) -> c_int {
    let (mut value, mut len) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes, an int.
    unsafe {
        libc_next::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut value).cast(), &raw mut len);
    }
    value
}
