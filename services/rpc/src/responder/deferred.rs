//! Deferred calls: the token that a handler holds, and the state of the server thread.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use farcall_verbs::Nanos;

use super::HandlerError;
use super::buffered::{Buffered, BufferedTotal};
use super::deferred_ready::ReadyDeferredCalls;
use super::session::Session;
use crate::config::ResponderConfig;
use crate::wire::Status;

/// The right and the duty to answer a call after its handler has returned: see [`super::Reply::defer`]. It may be
/// moved to another thread or task. Dropping it without an answer ends the call with an error
/// ([`Status::ANSWER_DROPPED`]).
///
/// Only the first answer counts. An answer to a cancelled call is discarded.
#[derive(Debug)]
pub struct Deferred(Arc<Pending>);

impl Deferred {
    /// Answers the call.
    pub fn answer(self, result: &[u8]) {
        self.0.end(Status::OK, result);
    }

    /// Answers the call with an error.
    pub fn refuse(self, error: &HandlerError) {
        self.0.end(error.status, error.message.as_bytes());
    }

    /// Returns whether no caller waits for the answer any more: the client cancelled the call, its deadline passed, or
    /// its session ended. A client that lost its connection may reconnect until the session ends.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// Completes when no caller waits for the answer any more. Only one task at a time can wait for it.
    pub async fn cancelled(&self) {
        poll_fn(|context| {
            // The waker is stored before the flag is checked. [`Pending::cancel`] uses the opposite order.
            self.0.state().waker = Some(context.waker().clone());
            if self.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if !self.0.is_answered() {
            self.0.end(Status::ANSWER_DROPPED, b"");
        }
    }
}

/// State of a call that the token and the server thread share.
#[derive(Debug)]
pub(crate) struct Pending {
    state: Mutex<State>,
    is_answered: AtomicBool,
    is_cancelled: AtomicBool,
    limits: Limits,
    buffered: BufferedTotal,
    /// Number of such calls of the thread. This object counts until it is dropped.
    open: Arc<AtomicUsize>,
    /// Where the server thread is notified of the answer, and the tag of the call's session.
    ready: Arc<ReadyDeferredCalls>,
    session_tag: u32,
}

#[derive(Debug, Default)]
struct State {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// Outcome of a call.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub status: Status,
    pub bytes: Buffered,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    result_bytes_max: usize,
    buffers_bytes_max: usize,
}

impl Pending {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Acquire)
    }

    fn end(&self, status: Status, bytes: &[u8]) {
        let (status, bytes) = self.within_limits(status, bytes);
        let mut state = self.state();
        if !self.is_answered() && !self.is_cancelled.load(Ordering::Acquire) {
            state.outcome = Some(Outcome { status, bytes: self.buffered.count(bytes.to_vec()) });
        }
        self.is_answered.store(true, Ordering::Release);
        drop(state);
        self.ready.push(self.session_tag);
    }

    fn within_limits<'a>(&self, status: Status, bytes: &'a [u8]) -> (Status, &'a [u8]) {
        let Limits { result_bytes_max, buffers_bytes_max } = self.limits;
        if bytes.len() > result_bytes_max {
            return (Status::RESULT_TOO_LARGE, b"an answer that came later");
        }
        if self.buffered.bytes() + bytes.len() > buffers_bytes_max {
            return (Status::RESULT_TOO_LARGE, b"the server keeps too many bytes for all clients");
        }
        (status, bytes)
    }

    /// Takes the outcome, once.
    pub fn take_outcome(&self) -> Option<Outcome> {
        self.state().outcome.take()
    }

    /// Records that no caller waits for the answer any more.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        let waker = {
            let mut state = self.state();
            state.outcome = None;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // After the answer's other effects: see `DeferredCalls::may_be_answered`.
        self.open.fetch_sub(1, Ordering::Release);
    }
}

/// State of a server thread for all its deferred calls.
pub(super) struct DeferredCalls {
    open: Arc<AtomicUsize>,
    open_max: usize,
    of_client_max: usize,
    limits: Limits,
    buffered: BufferedTotal,
    pub disposition: HandlerDisposition,
    pub ready: Arc<ReadyDeferredCalls>,
    /// Lower bound of the deadlines of deferred calls.
    pub next_deadline: Option<Nanos>,
}

/// Whether the handler has deferred the current call.
#[derive(Debug, Default)]
pub(super) enum HandlerDisposition {
    /// Not deferred: the handler answers it directly.
    #[default]
    Immediate,
    /// Deferred.
    Deferred(Arc<Pending>),
    /// The handler tried to defer it, and was refused.
    Refused,
}

impl DeferredCalls {
    pub fn new(config: &ResponderConfig, buffered: BufferedTotal, ready: Arc<ReadyDeferredCalls>) -> Self {
        Self {
            open: Arc::default(),
            open_max: config.deferred_max,
            of_client_max: config.deferred_of_client_max,
            limits: Limits {
                result_bytes_max: config.result_bytes_max as usize,
                buffers_bytes_max: config.buffers_bytes_max,
            },
            buffered,
            disposition: HandlerDisposition::Immediate,
            ready,
            next_deadline: None,
        }
    }

    /// Returns whether an answer may still be given. If not, all earlier answers are visible to the caller.
    pub fn may_be_answered(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Creates the token of the current call. `of_batch`: number of calls of its batch that were deferred before.
    ///
    /// # Errors
    /// Returns an error with a message if there are too many deferred calls, or the client cannot collect answers.
    #[cold]
    pub fn defer(&mut self, session: &Session, of_batch: usize) -> Result<Deferred, HandlerError> {
        if let Err(message) = self.may_defer(session, of_batch) {
            self.disposition = HandlerDisposition::Refused;
            return Err(HandlerError { status: Status::NOT_DEFERRED, message });
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        let pending = Arc::new(Pending {
            state: Mutex::default(),
            is_answered: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            limits: self.limits,
            buffered: self.buffered.clone(),
            open: Arc::clone(&self.open),
            ready: Arc::clone(&self.ready),
            session_tag: session.id.tag(),
        });
        self.disposition = HandlerDisposition::Deferred(Arc::clone(&pending));
        Ok(Deferred(pending))
    }

    fn may_defer(&self, session: &Session, of_batch: usize) -> Result<(), String> {
        if matches!(self.disposition, HandlerDisposition::Deferred(_)) {
            return Err("the call has a token already".into());
        }
        if !session.can_defer {
            return Err("the client is of a version that takes no answers that come later".into());
        }
        let (of_client, max) = (session.deferred_calls() + of_batch, self.of_client_max);
        if of_client >= max {
            return Err(format!("{of_client} calls of this client are to be answered later; at most {max}"));
        }
        let (open, max) = (self.open.load(Ordering::Relaxed), self.open_max);
        if open >= max {
            return Err(format!(
                "{open} calls of this server thread are to be answered later; at most {max}"
            ));
        }
        Ok(())
    }
}
