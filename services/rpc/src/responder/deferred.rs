//! The token of a deferred call, and the state that it shares with the server thread.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::buffered::{Buffered, BufferedTotal};
use super::deferred_ready::ReadyDeferredCalls;
use crate::config::ResponderConfig;
use crate::error::HandlerError;
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
    thread: DeferringThread,
    /// The tag of the call's session.
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

/// State that all deferred calls of a server thread share.
#[derive(Clone, Debug)]
pub(super) struct DeferringThread {
    /// Number of [`Pending`]s. Each counts until it is dropped.
    open: Arc<AtomicUsize>,
    result_bytes_max: usize,
    buffers_bytes_max: usize,
    buffered: BufferedTotal,
    /// Where the server thread is notified of answers.
    ready: Arc<ReadyDeferredCalls>,
}

impl DeferringThread {
    pub fn new(config: &ResponderConfig, buffered: BufferedTotal, ready: Arc<ReadyDeferredCalls>) -> Self {
        Self {
            open: Arc::default(),
            result_bytes_max: config.result_bytes_max as usize,
            buffers_bytes_max: config.buffers_bytes_max,
            buffered,
            ready,
        }
    }

    /// Returns the number of calls that may still be answered. If it is 0, all answers are visible to the caller.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Returns the object that notifies the server thread of answers.
    pub fn ready(&self) -> &ReadyDeferredCalls {
        &self.ready
    }

    /// Creates the token and the state of a call.
    pub fn defer(&self, session_tag: u32) -> (Deferred, Arc<Pending>) {
        self.open.fetch_add(1, Ordering::Relaxed);
        let pending = Arc::new(Pending {
            state: Mutex::default(),
            is_answered: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            thread: self.clone(),
            session_tag,
        });
        (Deferred(Arc::clone(&pending)), pending)
    }
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
            state.outcome = Some(Outcome { status, bytes: self.thread.buffered.count(bytes.to_vec()) });
        }
        self.is_answered.store(true, Ordering::Release);
        drop(state);
        self.thread.ready.push(self.session_tag);
    }

    fn within_limits<'a>(&self, status: Status, bytes: &'a [u8]) -> (Status, &'a [u8]) {
        let DeferringThread { result_bytes_max, buffers_bytes_max, buffered, .. } = &self.thread;
        if bytes.len() > *result_bytes_max {
            return (Status::RESULT_TOO_LARGE, b"an answer that came later");
        }
        if buffered.bytes() + bytes.len() > *buffers_bytes_max {
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
        // After the answer's other effects: see [`DeferringThread::open`].
        self.thread.open.fetch_sub(1, Ordering::Release);
    }
}
