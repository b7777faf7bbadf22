//! A thread that sleeps in poll for a connection.

use std::ffi::c_int;
use std::os::fd::RawFd;

use farcall_stats::PathReason;

use crate::sock::Sock;
use crate::{door, epoll, sleepers};

/// A thread that sleeps for a connection.
pub struct Sleeper<'a> {
    sock: &'a Sock,
    /// Descriptor by which the program has the connection.
    fd: c_int,
    /// Descriptor that wakes this thread; `None`: it polls the doorbell.
    follows_by: Option<RawFd>,
}

impl<'a> Sleeper<'a> {
    /// Enters. Returns the descriptor to poll, too; `None` if there is none, and then the connection returns to TCP.
    pub fn enter(fd: c_int, sock: &'a Sock) -> Option<(Self, RawFd)> {
        let door = &sock.link()?.door;
        let sleeping = &sock.sleeping;
        if sleeping.lead() {
            return Some((Self { sock, fd, follows_by: None }, door.fd()));
        }
        let Some(waker) = sleepers::own_waker() else {
            sock.demote(PathReason::NoResources);
            return None;
        };
        sleeping.follow(waker);
        // A leader that leaves sees this thread among its followers, or this one sees that it has left.
        if sleeping.lead() {
            sleeping.unfollow(waker);
            return Some((Self { sock, fd, follows_by: None }, door.fd()));
        }
        Some((Self { sock, fd, follows_by: Some(waker) }, waker))
    }

    /// Called after a poll that found the descriptor readable.
    pub fn was_woken(&self) {
        if let Some(waker) = self.follows_by {
            door::silence(waker);
        } else if let Some(link) = self.sock.link() {
            link.door.silence();
            // An epoll object may not have been notified yet of what this thread has consumed.
            epoll::check_again(self.fd);
        }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        match self.follows_by {
            Some(waker) => self.sock.sleeping.unfollow(waker),
            None => self.sock.sleeping.end_lead(),
        }
    }
}
