//! Back-off for non-blocking accept loops when `accept` fails.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::Seldom;

/// Maximum number of connections that the kernel queues for a listening socket.
pub const BACKLOG: i32 = 1024;

/// Pause of an accept loop when the system cannot accept a connection, for example for lack of descriptors or memory.
const REST: Duration = Duration::from_millis(100);

/// Sets the backlog of a socket that already listens to [`BACKLOG`].
///
/// # Errors
/// If the socket does not listen.
pub fn deepen_backlog(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::listen(socket, BACKLOG)?)
}

/// Decides when an accept loop continues after a failure. Waiting connections raise no second edge-triggered event, so
/// the loop calls `accept` again itself at the end of the pause.
pub struct AcceptRest {
    door: String,
    until: Option<Instant>,
    shortages: Seldom,
}

impl AcceptRest {
    /// `door` names the listening socket in warnings.
    pub fn new(door: impl Into<String>) -> Self {
        Self { door: door.into(), until: None, shortages: Seldom::default() }
    }

    /// Records an error of `accept`. Returns whether to call `accept` again at once. If not, no connection is waiting,
    /// or the loop pauses.
    pub fn goes_on_after(&mut self, error: &io::Error) -> bool {
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
                self.rest(error);
                false
            }
        }
    }

    #[cold]
    fn rest(&mut self, error: &io::Error) {
        self.until = Some(Instant::now() + REST);
        if self.shortages.count().is_some() {
            tracing::warn!(
                "{}: new connections have to wait: accept failed: {error}; those that are open go on; close some, or \
                 raise the limit of open files (ulimit -n)",
                self.door
            );
        }
    }

    /// Returns the rest of the pause; `None` if the loop does not pause.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Returns whether a pause has ended, so that the loop must accept now.
    pub fn is_over(&mut self) -> bool {
        let is_over = self.left().is_some_and(|left| left.is_zero());
        if is_over {
            self.until = None;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_accepting_for_a_shortage_not_for_a_lost_connection() {
        let mut rest = AcceptRest::new("test");
        assert!(!rest.goes_on_after(&Errno::WOULDBLOCK.into()) && rest.left().is_none() && !rest.is_over());
        for gone in [Errno::CONNABORTED, Errno::PROTO, Errno::HOSTUNREACH, Errno::INTR] {
            assert!(rest.goes_on_after(&gone.into()) && rest.left().is_none(), "{gone}");
        }
        for shortage in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::PERM] {
            assert!(!rest.goes_on_after(&shortage.into()) && rest.left().is_some(), "{shortage}");
        }
        while !rest.is_over() {
            std::thread::yield_now();
        }
        assert!(rest.left().is_none() && !rest.is_over());
    }
}
