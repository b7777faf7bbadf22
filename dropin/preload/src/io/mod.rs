//! Sending and receiving on a connection: through the rings where they have begun and not ended, by TCP otherwise.

mod buffers;
mod kernel;
mod receive;
mod send;
mod wait;

use std::ffi::c_int;

use libc::ssize_t;

pub use self::kernel::receive_before_pairing;
pub use self::receive::receive;
pub use self::send::send;
use crate::sock::Sock;
use crate::{confined, errno, tcp};

/// Result of a call.
pub enum CallOutcome {
    /// The kernel must execute the call that the program made.
    PassToKernel,
    /// This many bytes; -1: `errno` is set.
    Done(ssize_t),
}

impl CallOutcome {
    /// Returns the result of the call; `None` if the kernel must execute it.
    pub fn done(self) -> Option<ssize_t> {
        match self {
            Self::PassToKernel => None,
            Self::Done(done) => Some(done),
        }
    }
}

const FAILED: CallOutcome = CallOutcome::Done(-1);

fn fail(number: c_int) -> CallOutcome {
    errno::set(number);
    FAILED
}

/// Returns the number of bytes left, for a program that waits for an edge after a report of 0: 0 is reported only if
/// the ring alone can have any. Otherwise at least 1, as Linux reports after an end.
pub fn inq_bytes(sock: &Sock) -> u64 {
    let Some(link) = sock.link() else { return 1 };
    let incoming = link.incoming.snapshot();
    let is_ring_all = link.incoming.is_drained() && !incoming.is_closed && !link.has_peer_announced_end();
    incoming.unread_bytes.max(u64::from(!is_ring_all))
}

/// Returns the error that a connection has to report, and that is not reported again; 0: none.
pub fn take_error(fd: c_int, sock: &Sock) -> c_int {
    if confined::is_confined() {
        return 0;
    }
    let error = sock.take_pending_error();
    if error != 0 { error } else { tcp::take_error(fd) }
}
