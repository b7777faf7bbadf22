//! Doors: listening sockets that are accepted from without blocking, and what their loop does when the system refuses.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::Seldom;

/// Connections that the kernel holds for a door before they are accepted.
pub const BACKLOG: i32 = 1024;

/// How long a loop rests when the system gives it no connection, for lack of descriptors or memory, say.
const REST: Duration = Duration::from_millis(100);

/// Lets the kernel hold [`BACKLOG`] connections for a socket that listens already.
///
/// # Errors
/// If it is no such socket.
pub fn deepen_backlog(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::listen(socket, BACKLOG)?)
}

/// Tells an accept loop when to go on after a failure. Connections that wait make no second edge, so that the loop
/// calls `accept` again by itself when its rest is over.
pub struct AcceptRest {
    door: String,
    until: Option<Instant>,
    shortages: Seldom,
}

impl AcceptRest {
    /// `door` names the loop in its warnings.
    pub fn new(door: impl Into<String>) -> Self {
        Self { door: door.into(), until: None, shortages: Seldom::default() }
    }

    /// Takes in why `accept` gave no connection; returns whether to call it again at once. If not, either none waits,
    /// or the loop rests.
    pub fn goes_on_after(&mut self, error: &io::Error) -> bool {
        match Errno::from_io_error(error) {
            Some(Errno::WOULDBLOCK) => false,
            Some(
                Errno::INTR
                | Errno::CONNABORTED
                // Of the connection, which is gone by that (accept(2), "Error handling").
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

    /// How long the loop is to rest; `None` if it does not.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Whether a rest is over: the loop is to accept now.
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
    fn a_loop_rests_for_a_shortage_and_not_for_a_connection_that_is_gone() {
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
