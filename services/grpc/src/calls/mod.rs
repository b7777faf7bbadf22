//! The calls of a connection: received frames, frames to send, and the tasks that wait for either. This module uses
//! neither the stream nor a clock.
//!
//! Submodules: [`call`] (state of one call), [`incoming`] (received frames), [`outgoing`] (frames to send),
//! [`reading`] (tasks that wait for received data), [`short_messages`] (encoded and decoded in place), [`paths`]
//! (numbers of methods).

mod call;
mod incoming;
mod outgoing;
mod paths;
mod reading;
mod short_messages;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};
use tokio::sync::Semaphore;
use tonic::{Code, Status};

use crate::frame::Hello;
use crate::frame::metadata::{METADATA_BYTES_MAX, weight};
use crate::options::WINDOW_BYTES_MAX;
use call::{Call, RemoteEnd};
pub(crate) use call::{InitialHeaders, LocalEnd, Submission};
pub(crate) use outgoing::Outbound;
pub(crate) use paths::DirectPaths;
use paths::{PathNumbers, PathTable};
pub(crate) use reading::Answer;
pub(crate) use short_messages::{CompleteResponse, ResponseWait};

/// Identifies a call. Numbers are reused; the generation distinguishes the calls that had the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId {
    number: u16,
    generation: u32,
}

/// Role of this end, with its role-specific state.
enum Role {
    Client {
        free: Vec<u16>,
        numbers: PathNumbers,
        /// One permit for each call that may be opened.
        permits: Arc<Semaphore>,
    },
    Server {
        known: PathTable,
        /// Calls that have begun and wait to be answered.
        accepted: Vec<Accepted>,
        /// Number of calls whose methods are running, including cancelled ones.
        running: usize,
    },
}

/// A call that has begun at a server.
pub(crate) struct Accepted {
    pub id: CallId,
    pub uri: Uri,
    pub metadata: HeaderMap,
    /// The request, if it is complete and no direct method answers it.
    pub request: Option<Bytes>,
    /// Index of the direct method that answers it. Its request is complete and is decoded in the receive buffer.
    pub method: Option<usize>,
}

/// State of all calls of a connection; see the module documentation.
pub(crate) struct Calls {
    role: Role,
    ours: Hello,
    theirs: Hello,
    table: Vec<Call>,
    open: usize,
    /// Calls that have data to send, in round-robin order.
    queued: VecDeque<u16>,
    /// Reason of the `GOODBYE` frame, until that is sent.
    goodbye: Option<String>,
    /// `true` once the server accepts no more calls.
    is_draining: bool,
    broken: Option<Status>,
    /// Tasks to wake after the lock has been released.
    pub wakes: Vec<Waker>,
}

impl Calls {
    pub fn of_client(ours: Hello, theirs: Hello) -> (Self, Arc<Semaphore>) {
        let calls_max = ours.calls_max.min(theirs.calls_max);
        let permits = Arc::new(Semaphore::new(calls_max.into()));
        let free = (0..calls_max).rev().collect();
        let role = Role::Client { free, numbers: PathNumbers::default(), permits: Arc::clone(&permits) };
        (Self::new(role, ours, theirs), permits)
    }

    pub fn of_server(ours: Hello, theirs: Hello, direct: Arc<DirectPaths>) -> Self {
        let role = Role::Server { known: PathTable::new(direct), accepted: Vec::new(), running: 0 };
        Self::new(role, ours, theirs)
    }

    fn new(role: Role, ours: Hello, theirs: Hello) -> Self {
        Self {
            role,
            ours,
            theirs,
            table: Vec::new(),
            open: 0,
            queued: VecDeque::new(),
            goodbye: None,
            is_draining: false,
            broken: None,
            wakes: Vec::new(),
        }
    }

    /// Opens a call. The caller must have acquired a permit for it. The parts of the call are submitted next.
    pub fn open(&mut self) -> Result<CallId, Status> {
        if let Some(why) = self.refuses_calls() {
            self.release_permit();
            return Err(why);
        }
        let Role::Client { free, .. } = &mut self.role else {
            return Err(Status::internal("a server's end"));
        };
        let number = free.pop().ok_or_else(|| Status::internal("a permit without a number"))?;
        Ok(self.begin(number))
    }

    fn begin(&mut self, number: u16) -> CallId {
        let place = usize::from(number);
        if self.table.len() <= place {
            self.table.resize_with(place + 1, Call::default);
        }
        let call = &mut self.table[place];
        call.begin(self.ours.window_bytes, self.theirs.window_bytes.min(WINDOW_BYTES_MAX));
        self.open += 1;
        CallId { number, generation: call.generation }
    }

    fn release_permit(&self) {
        if let Role::Client { permits, .. } = &self.role {
            permits.add_permits(1);
        }
    }

    /// Returns the reason if no more calls can be opened on this connection.
    pub fn refuses_calls(&self) -> Option<Status> {
        let leaving = || Status::unavailable("the server takes no more calls over this connection");
        self.broken.clone().or_else(|| self.is_draining.then(leaving))
    }

    pub fn has_any_open(&self) -> bool {
        self.open > 0
    }

    /// Returns whether the connection ends as soon as the open calls have ended.
    pub fn is_ending(&self) -> bool {
        self.is_draining || self.broken.is_some()
    }

    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Returns the tasks to wake.
    pub fn take_wakes(&mut self) -> Vec<Waker> {
        if self.wakes.is_empty() { Vec::new() } else { std::mem::take(&mut self.wakes) }
    }

    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty() || self.goodbye.is_some()
    }

    fn call(&mut self, id: CallId) -> Option<&mut Call> {
        let call = self.table.get_mut(usize::from(id.number))?;
        (call.is_open && call.generation == id.generation).then_some(call)
    }

    /// Submits the next part of a call, to be sent when there is space. Ready when the part before has been sent.
    pub fn poll_submit(
        &mut self,
        id: CallId,
        context: &Context<'_>,
        submission: &mut Option<Submission>,
    ) -> Poll<Result<(), Status>> {
        let Some(call) = self.call(id) else { return Poll::Ready(Err(self.lost_status())) };
        let outbox = &mut call.outbox;
        if outbox.is_ended || outbox.reset.is_some() {
            return Poll::Ready(Err(self.lost_status()));
        }
        if outbox.is_full {
            outbox.wait(context);
            return Poll::Pending;
        }
        if let Some(submission) = submission.take() {
            outbox.submit(submission);
            self.queue(id.number);
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when a call has ended, whichever side ended it. The task that answers the call is woken then.
    pub fn poll_ended(&mut self, id: CallId, context: &Context<'_>) -> Poll<()> {
        match self.call(id) {
            Some(call) if call.outbox.reset.is_none() => {
                call.outbox.wait(context);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Resets this side of a call with a reason, regardless of how much of it has been sent.
    pub fn reset(&mut self, id: CallId, code: Code, reason: &str) {
        if self.call(id).is_none() {
            return;
        }
        let is_client = matches!(self.role, Role::Client { .. });
        let call = &mut self.table[usize::from(id.number)];
        call.inbox.has_reader = false;
        call.inbox.bytes = Vec::new();
        self.wakes.extend(call.inbox.waker.take());
        call.outbox.clear(&mut self.wakes);
        if is_client && !call.was_opened {
            // The server has received no frame of this call.
            call.inbox.is_ended = true;
            call.outbox.is_ended = true;
        } else if !call.inbox.is_ended || !call.outbox.is_ended {
            call.outbox.reset = Some((code, reason.to_owned()));
            self.queue(id.number);
        }
        self.release_if_ended(id.number);
    }

    /// Ends this side of a call with a status, which is returned to the reader at a client, and sent to the client at
    /// a server. Does nothing if this side has ended.
    pub fn fail(&mut self, id: CallId, why: &Status) {
        if self.call(id).is_none_or(|call| call.outbox.is_ended || call.outbox.reset.is_some()) {
            return;
        }
        let call = &mut self.table[usize::from(id.number)];
        if matches!(self.role, Role::Client { .. }) {
            call.outbox.clear(&mut self.wakes);
            let ending = RemoteEnd::Reset(why.clone());
            if !call.was_opened {
                // The server has received no frame of this call.
                call.outbox.is_ended = true;
                call.inbox.end(ending, &mut self.wakes);
                return self.release_if_ended(id.number);
            }
            // The reader receives this status. The end of the peer's side is still received.
            call.inbox.ending = Some(ending);
            self.wakes.extend(call.inbox.waker.take());
            call.outbox.reset = Some((Code::Cancelled, String::new()));
            return self.queue(id.number);
        }
        let is_silent = !call.was_opened && !call.outbox.is_full;
        let mut map = HeaderMap::new();
        let fits = why.add_header(&mut map).is_ok() && weight(&map) <= METADATA_BYTES_MAX;
        if is_silent && fits {
            let (headers, ending) =
                (InitialHeaders::Response(200, map), LocalEnd::Trailers(HeaderMap::new()));
            let ending = Some(ending);
            call.outbox.submit(Submission { headers: Some(headers), ending, ..Submission::default() });
            self.queue(id.number);
        } else {
            self.reset(id, why.code(), why.message());
        }
    }

    /// Ends all calls because the connection was lost.
    pub fn fail_all(&mut self, why: &Status) {
        if self.broken.is_some() {
            return;
        }
        self.broken = Some(why.clone());
        self.queued.clear();
        self.goodbye = None;
        for number in 0..self.table.len() {
            let call = &mut self.table[number];
            if !call.is_open {
                continue;
            }
            if !call.inbox.is_ended {
                call.inbox.end(RemoteEnd::Reset(why.clone()), &mut self.wakes);
            }
            call.outbox.clear(&mut self.wakes);
            call.outbox.is_ended = true;
            self.release_if_ended(number as u16);
        }
        if let Role::Client { permits, .. } = &self.role {
            permits.close();
        }
    }

    /// Stops this server from accepting calls. Running calls continue.
    pub fn stop_accepting(&mut self, reason: &str) {
        if !self.is_draining {
            self.is_draining = true;
            self.goodbye = Some(reason.to_owned());
        }
    }

    /// Moves the calls that have begun since the last time into `into`, where they are answered.
    pub fn take_accepted(&mut self, into: &mut Vec<Accepted>) {
        if let Role::Server { accepted, running, .. } = &mut self.role {
            *running += accepted.len();
            into.append(accepted);
        }
    }

    /// Called when the task that sends this side of the call has ended. If the side is incomplete, the call is reset.
    pub fn on_sender_stopped(&mut self, id: CallId) {
        let is_unfinished = self.call(id).is_some_and(|call| !call.outbox.has_end());
        if let Role::Server { running, .. } = &mut self.role {
            *running -= 1;
            if is_unfinished {
                self.reset(id, Code::Unknown, "the method ended without an answer");
            }
        } else if is_unfinished {
            self.fail(id, &Status::cancelled("the stream of requests stopped before its end"));
        }
    }

    fn queue(&mut self, number: u16) {
        let outbox = &mut self.table[usize::from(number)].outbox;
        if !std::mem::replace(&mut outbox.is_queued, true) {
            self.queued.push_back(number);
        }
    }

    /// Releases the call's number if both sides have ended and, at a client, the response is no longer read.
    fn release_if_ended(&mut self, number: u16) {
        let call = &mut self.table[usize::from(number)];
        let is_over = call.is_open && call.inbox.is_ended && call.outbox.is_ended;
        match &mut self.role {
            Role::Client { free, permits, .. } if is_over && !call.inbox.has_reader => {
                free.push(number);
                call.release(&mut self.wakes);
                self.open -= 1;
                permits.add_permits(1);
            }
            Role::Server { .. } if is_over => {
                call.release(&mut self.wakes);
                self.open -= 1;
            }
            _ => {}
        }
    }
}

/// Returns the path of a request, if it can be sent.
pub(crate) fn path_of(uri: &Uri) -> Result<PathAndQuery, Status> {
    let path = uri.path_and_query().ok_or_else(|| Status::internal("the request names no method"))?;
    let len = path.as_str().len();
    if len > crate::frame::PATH_BYTES_MAX {
        let most = crate::frame::PATH_BYTES_MAX;
        return Err(Status::internal(format!("the method's path has {len} bytes, more than {most}")));
    }
    if !path.as_str().starts_with('/') {
        return Err(Status::internal(format!("the method's path does not begin with a slash: {path}")));
    }
    Ok(path.clone())
}

#[cfg(test)]
mod tests;
