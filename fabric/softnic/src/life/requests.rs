//! What was asked of a peer and is not yet answered to its asker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use farcall_shm::fork::DontForkFd;
use rustix::io::Errno;

use super::rendezvous::{Refusal, Reply, ReplyBody, Request, RequestBody, recv_frame, send_frame};

/// Answers that are taken in at once.
const ANSWERS_A_LOOK: usize = 64;

/// What an asker holds as long as it wants the answers: those that nobody wants any more are dropped, with the
/// descriptors that came with them.
#[derive(Clone, Default)]
pub(crate) struct Interest(Arc<AtomicBool>);

impl Interest {
    /// Whether an answer has come.
    pub(crate) fn is_answered(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What came of asking a peer.
pub(crate) enum Answer<T> {
    /// It answered.
    Granted(T),
    /// It said no; see [`Refusal::text`].
    Refused(Refusal),
    /// It has not answered yet; ask again.
    NotYet,
}

struct Outstanding {
    id: u32,
    asker: Weak<AtomicBool>,
    body: RequestBody,
    answer: Option<(ReplyBody, Vec<OwnedFd>)>,
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

    /// Whether an answer has come that its asker can go on with. One that says "not now" is none: a peer that is not
    /// ready would be asked without a pause.
    pub(super) fn has_news(&self) -> bool {
        self.outstanding.iter().any(|outstanding| match outstanding.answer {
            None => false,
            Some((ReplyBody::Refused(reason), _)) => reason.is_final(),
            Some(_) => true,
        })
    }

    /// Asks, unless that was asked already, and returns the question's number.
    pub(super) fn send(
        &mut self,
        interest: &Interest,
        body: RequestBody,
        fds: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<u32> {
        // The answer to what is not wanted any more is none to this: it may be older.
        self.drop_unwanted();
        let asker = Arc::downgrade(&interest.0);
        Ok(match self.outstanding.iter_mut().find(|o| o.body == body) {
            Some(outstanding) => {
                outstanding.asker = asker;
                outstanding.id
            }
            None => {
                self.next_id = self.next_id.wrapping_add(1);
                let request = Request { id: self.next_id, body };
                send_frame(self.socket.as_fd(), &request.encode(), fds)?;
                self.outstanding.push(Outstanding { id: request.id, asker, body, answer: None });
                request.id
            }
        })
    }

    /// As [`Requests::send`], and looks for the answer; never waits for it.
    pub(super) fn ask(
        &mut self,
        interest: &Interest,
        body: RequestBody,
        fds: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<Answer<(ReplyBody, Vec<OwnedFd>)>> {
        let id = self.send(interest, body, fds)?;
        self.receive()?;
        let at = self.outstanding.iter().position(|o| o.id == id && o.answer.is_some());
        Ok(match at.and_then(|at| self.outstanding.swap_remove(at).answer) {
            Some((ReplyBody::Refused(reason), _)) => Answer::Refused(reason),
            Some(granted) => Answer::Granted(granted),
            None => Answer::NotYet,
        })
    }

    /// Takes in what has come.
    ///
    /// # Errors
    /// If the peer has hung up, or says what is no reply.
    pub(super) fn receive(&mut self) -> rustix::io::Result<()> {
        // Who polls waits for our lock: a peer that never stops must not keep it. Epoll tells again of what is left.
        for _ in 0..ANSWERS_A_LOOK {
            match recv_frame(self.socket.as_fd()) {
                Ok(Some((frame, fds))) => {
                    // Of another version, or no peer at all.
                    let reply = Reply::decode(&frame).ok_or(Errno::PROTO)?;
                    if let Some(outstanding) = self.outstanding.iter_mut().find(|o| o.id == reply.id) {
                        outstanding.answer = Some((reply.body, fds));
                        if let Some(asker) = outstanding.asker.upgrade() {
                            asker.store(true, Ordering::Release);
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
        self.outstanding.retain(|outstanding| outstanding.asker.strong_count() > 0);
    }
}
