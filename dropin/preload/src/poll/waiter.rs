//! A thread that sleeps in poll for a connection.

use std::ffi::c_int;
use std::os::fd::RawFd;

use farcall_stats::PathReason;

use crate::sock::Sock;
use crate::{doorbell, epoll, waiters};

/// A thread that sleeps for a connection.
pub struct Waiter<'a> {
    sock: &'a Sock,
    /// Descriptor by which the program has the connection.
    fd: c_int,
    /// Descriptor that wakes this thread; `None`: it polls the doorbell.
    follower_fd: Option<RawFd>,
}

impl<'a> Waiter<'a> {
    /// Enters. Returns the descriptor to poll, too; `None` if there is none, and then the connection returns to TCP.
    pub fn enter(fd: c_int, sock: &'a Sock) -> Option<(Self, RawFd)> {
        let doorbell = &sock.link()?.doorbell;
        let waiters = &sock.waiters;
        if waiters.lead() {
            return Some((Self { sock, fd, follower_fd: None }, doorbell.fd()));
        }
        let Some(waker) = waiters::own_waker() else {
            sock.demote(PathReason::NoResources);
            return None;
        };
        waiters.follow(waker);
        // A leader that leaves sees this thread among its followers, or this one sees that it has left.
        if waiters.lead() {
            waiters.unfollow(waker);
            return Some((Self { sock, fd, follower_fd: None }, doorbell.fd()));
        }
        Some((Self { sock, fd, follower_fd: Some(waker) }, waker))
    }

    /// Called after a poll that found the descriptor readable.
    pub fn was_woken(&self) {
        if let Some(waker) = self.follower_fd {
            doorbell::drain(waker);
        } else if let Some(link) = self.sock.link() {
            link.doorbell.drain();
            // An epoll object may not have been notified yet of what this thread has consumed.
            epoll::recheck(self.fd);
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        match self.follower_fd {
            Some(waker) => self.sock.waiters.unfollow(waker),
            None => self.sock.waiters.end_lead(),
        }
    }
}
