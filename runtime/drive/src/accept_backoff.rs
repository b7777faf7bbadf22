//! Back-off for non-blocking accept loops when `accept` fails.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::LogThrottle;

/// Maximum number of connections that the kernel queues for a listening socket.
pub const BACKLOG: i32 = 1024;

/// Pause of an accept loop when the system cannot accept a connection, for example for lack of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// Sets the backlog of a socket that already listens to [`BACKLOG`].
///
/// # Errors
/// If the socket does not listen.
pub fn deepen_backlog(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::listen(socket, BACKLOG)?)
}

/// Decides when an accept loop continues after a failure. Waiting connections raise no second edge-triggered event, so
/// the loop calls `accept` again itself at the end of the pause.
pub struct AcceptBackoff {
    socket_name: String,
    until: Option<Instant>,
    failures: LogThrottle,
}

impl AcceptBackoff {
    /// `socket_name` names the listening socket in warnings.
    pub fn new(socket_name: impl Into<String>) -> Self {
        Self { socket_name: socket_name.into(), until: None, failures: LogThrottle::default() }
    }

    /// Records an error of `accept`. Returns whether to call `accept` again at once. If not, no connection is waiting,
    /// or the loop pauses.
    pub fn should_retry(&mut self, error: &io::Error) -> bool {
        match Errno::from_io_error(error) {
            Some(Errno::WOULDBLOCK) => false,
            Some(
                Errno::INTR
                | Errno::CONNABORTED
                // Errors of the new connection, which has been discarded (accept(2), "Error handling").
                | Errno::NETDOWN
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH,
            ) => true,
            _ => {
                self.pause(error);
                false
            }
        }
    }

    #[cold]
    fn pause(&mut self, error: &io::Error) {
        self.until = Some(Instant::now() + PAUSE);
        if self.failures.count().is_some() {
            tracing::warn!(
                "{}: new connections have to wait: accept failed: {error}; those that are open go on; close some, or \
                 raise the limit of open files (ulimit -n)",
                self.socket_name
            );
        }
    }

    /// Returns the rest of the pause; `None` if the loop does not pause.
    pub fn remaining(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Returns whether a pause has ended, so that the loop must accept now.
    pub fn take_expired(&mut self) -> bool {
        let take_expired = self.remaining().is_some_and(|remaining| remaining.is_zero());
        if take_expired {
            self.until = None;
        }
        take_expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_accepting_for_a_shortage_not_for_a_lost_connection() {
        let mut backoff = AcceptBackoff::new("test");
        assert!(
            !backoff.should_retry(&Errno::WOULDBLOCK.into())
                && backoff.remaining().is_none()
                && !backoff.take_expired()
        );
        for gone in [Errno::CONNABORTED, Errno::PROTO, Errno::HOSTUNREACH, Errno::INTR] {
            assert!(backoff.should_retry(&gone.into()) && backoff.remaining().is_none(), "{gone}");
        }
        for shortage in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::PERM] {
            assert!(!backoff.should_retry(&shortage.into()) && backoff.remaining().is_some(), "{shortage}");
        }
        while !backoff.take_expired() {
            std::thread::yield_now();
        }
        assert!(backoff.remaining().is_none() && !backoff.take_expired());
    }
}
