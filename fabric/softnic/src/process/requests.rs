//! Requests to a peer whose replies have not been delivered to the requester.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use farcall_shm::fork::DontForkFd;
use rustix::io::Errno;

use super::rendezvous::{Refusal, Reply, ReplyBody, Request, RequestBody, recv_frame, send_frame};

/// Maximum number of replies received at a time.
const REPLIES_PER_RECEIVE: usize = 64;

/// Held by a requester as long as it wants the replies. Unwanted replies are dropped, together with their descriptors.
#[derive(Clone, Default)]
pub(crate) struct ReplyInterest(Arc<AtomicBool>);

impl ReplyInterest {
    /// Returns whether a reply has arrived.
    pub(crate) fn has_reply(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Result of a request to a peer.
pub(crate) enum PeerReply<T> {
    /// The peer has granted the request.
    Granted(T),
    /// The peer has refused the request; see [`Refusal::text`].
    Refused(Refusal),
    /// The peer has not replied yet. The request must be repeated.
    Pending,
}

struct Outstanding {
    id: u32,
    interest: Weak<AtomicBool>,
    body: RequestBody,
    reply: Option<(ReplyBody, Vec<OwnedFd>)>,
}

pub(super) struct Requests {
    pub(super) socket: Arc<DontForkFd>,
    next_id: u32,
    outstanding: Vec<Outstanding>,
}

impl Requests {
    pub(super) fn new(socket: Arc<DontForkFd>) -> Self {
        Self { socket, next_id: 0, outstanding: Vec::new() }
    }

    /// Returns whether a reply has arrived with which its requester can continue. A temporary refusal does not count: a
    /// peer that is not ready would receive requests without a pause.
    pub(super) fn has_replies(&self) -> bool {
        self.outstanding.iter().any(|outstanding| match outstanding.reply {
            None => false,
            Some((ReplyBody::Refused(reason), _)) => reason.is_final(),
            Some(_) => true,
        })
    }

    /// Sends a request unless it was sent already, and returns its number.
    pub(super) fn send(
        &mut self,
        interest: &ReplyInterest,
        body: RequestBody,
        fds: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<u32> {
        // The reply to an abandoned request is not taken for one to this request, because it may be older.
        self.drop_unwanted();
        let interest = Arc::downgrade(&interest.0);
        Ok(match self.outstanding.iter_mut().find(|o| o.body == body) {
            Some(outstanding) => {
                outstanding.interest = interest;
                outstanding.id
            }
            None => {
                self.next_id = self.next_id.wrapping_add(1);
                let request = Request { id: self.next_id, body };
                send_frame(self.socket.as_fd(), &request.encode(), fds)?;
                self.outstanding.push(Outstanding { id: request.id, interest, body, reply: None });
                request.id
            }
        })
    }

    /// Like [`Requests::send`], and checks for the reply. Never blocks.
    pub(super) fn request(
        &mut self,
        interest: &ReplyInterest,
        body: RequestBody,
        fds: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<PeerReply<(ReplyBody, Vec<OwnedFd>)>> {
        let id = self.send(interest, body, fds)?;
        self.receive()?;
        let at = self.outstanding.iter().position(|o| o.id == id && o.reply.is_some());
        Ok(match at.and_then(|at| self.outstanding.swap_remove(at).reply) {
            Some((ReplyBody::Refused(reason), _)) => PeerReply::Refused(reason),
            Some(granted) => PeerReply::Granted(granted),
            None => PeerReply::Pending,
        })
    }

    /// Receives the replies that have arrived.
    ///
    /// # Errors
    /// Returns an error if the peer has closed the connection, or has sent an invalid reply.
    pub(super) fn receive(&mut self) -> rustix::io::Result<()> {
        // Polling threads wait for the lock of the requests, so a peer that sends continuously must not hold it up.
        // Epoll reports the remaining replies again.
        for _ in 0..REPLIES_PER_RECEIVE {
            match recv_frame(self.socket.as_fd()) {
                Ok(Some((frame, fds))) => {
                    // From another version, or not from a peer at all.
                    let reply = Reply::decode(&frame).ok_or(Errno::PROTO)?;
                    if let Some(outstanding) = self.outstanding.iter_mut().find(|o| o.id == reply.id) {
                        outstanding.reply = Some((reply.body, fds));
                        if let Some(interest) = outstanding.interest.upgrade() {
                            interest.store(true, Ordering::Release);
                        }
                    }
                }
                Ok(None) => return Err(Errno::CONNRESET),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        self.drop_unwanted();
        Ok(())
    }

    fn drop_unwanted(&mut self) {
        self.outstanding.retain(|outstanding| outstanding.interest.strong_count() > 0);
    }
}
