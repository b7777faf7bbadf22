//! State of one call: received data that is not read yet, and data to send.

use std::task::{Context, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http::uri::PathAndQuery;
use tonic::{Code, Status};

use crate::frame::metadata;

/// How the peer ended its side of a call.
pub(super) enum RemoteEnd {
    End,
    /// Trailers with nothing but the status of success.
    Success,
    Trailers(HeaderMap),
    Reset(Status),
}

impl RemoteEnd {
    /// Returns the trailers, if there are any.
    pub fn into_trailers(self) -> Result<Option<HeaderMap>, Status> {
        match self {
            Self::End => Ok(None),
            Self::Success => Ok(Some(metadata::success())),
            Self::Trailers(trailers) => Ok(Some(trailers)),
            Self::Reset(status) => Err(status),
        }
    }
}

/// First frame of this side of a call.
pub(crate) enum InitialHeaders {
    Call(PathAndQuery, HeaderMap),
    Response(u16, HeaderMap),
}

/// Orderly end of this side of a call.
pub(crate) enum LocalEnd {
    End,
    Trailers(HeaderMap),
}

/// The next part of this side of a call.
#[derive(Default)]
pub(crate) struct Submission {
    pub headers: Option<InitialHeaders>,
    pub data: Bytes,
    pub ending: Option<LocalEnd>,
}

/// Maximum capacity in bytes of the receive buffer that is kept for the next call with the same number.
const KEPT_BYTES_MAX: usize = 1 << 10;

#[derive(Default)]
pub(super) struct Inbox {
    pub answer: Option<(u16, HeaderMap)>,
    pub is_answered: bool,
    /// Unread bytes; never more than the window.
    pub bytes: Vec<u8>,
    pub ending: Option<RemoteEnd>,
    pub is_ended: bool,
    pub has_reader: bool,
    /// Number of bytes that the peer may still send.
    pub window_left: u32,
    /// Number of bytes read since the last window update was sent to the peer.
    pub unreported_bytes: u32,
    pub waker: Option<Waker>,
}

impl Inbox {
    /// Appends received data. The capacity never exceeds the window, as it could if the vector doubled it.
    pub fn append(&mut self, data: &[u8], window_bytes: u32) {
        let (len, capacity) = (self.bytes.len() + data.len(), self.bytes.capacity());
        if len > capacity {
            let doubled = (2 * capacity).min(window_bytes as usize).max(len);
            self.bytes.reserve_exact(doubled - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
    }

    /// Returns the initial state. The receive buffer is kept if it is small.
    fn cleared(&mut self) -> Self {
        self.discard_bytes();
        Self { bytes: std::mem::take(&mut self.bytes), ..Self::default() }
    }

    /// Discards the unread bytes. Returns their number.
    pub fn discard_bytes(&mut self) -> u32 {
        let len_bytes = self.bytes.len() as u32;
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        len_bytes
    }

    /// Records that the peer's side has ended. `ending` is ignored if this end has already set another one for its
    /// reader.
    pub fn end(&mut self, ending: RemoteEnd, wakes: &mut Vec<Waker>) {
        self.ending.get_or_insert(ending);
        self.is_ended = true;
        wakes.extend(self.waker.take());
    }

    pub fn wait(&mut self, context: &Context<'_>) {
        store_waker(&mut self.waker, context);
    }
}

#[derive(Default)]
pub(super) struct Outbox {
    /// `true` if this holds a part that was not sent completely.
    pub is_full: bool,
    pub headers: Option<InitialHeaders>,
    pub data: Bytes,
    pub ending: Option<LocalEnd>,
    pub reset: Option<(Code, String)>,
    /// `true` once the last frame of this side was composed.
    pub is_ended: bool,
    pub is_queued: bool,
    /// Number of bytes that the peer permits this end to send.
    pub window_left: u32,
    /// Number of bytes to grant to the peer in the next window update.
    pub credit: u32,
    /// The task that submits the parts.
    pub waker: Option<Waker>,
}

impl Outbox {
    pub fn submit(&mut self, submission: Submission) {
        self.is_full = true;
        self.headers = submission.headers;
        self.data = submission.data;
        self.ending = submission.ending;
    }

    pub fn wait(&mut self, context: &Context<'_>) {
        store_waker(&mut self.waker, context);
    }

    /// Returns whether the last part has been submitted.
    pub fn has_end(&self) -> bool {
        self.is_ended || self.ending.is_some() || self.reset.is_some()
    }

    pub fn clear(&mut self, wakes: &mut Vec<Waker>) {
        self.is_full = false;
        self.headers = None;
        self.data = Bytes::new();
        self.ending = None;
        wakes.extend(self.waker.take());
    }
}

fn store_waker(slot: &mut Option<Waker>, context: &Context<'_>) {
    if !slot.as_ref().is_some_and(|before| before.will_wake(context.waker())) {
        *slot = Some(context.waker().clone());
    }
}

#[derive(Default)]
pub(super) struct Call {
    pub generation: u32,
    /// `true` once the first frame of this side was composed.
    pub was_opened: bool,
    pub is_open: bool,
    pub inbox: Inbox,
    pub outbox: Outbox,
}

impl Call {
    /// Opens the call. A queued number stays queued, whichever call it now belongs to.
    pub fn begin(&mut self, ours: u32, theirs: u32) {
        let is_queued = self.outbox.is_queued;
        self.is_open = true;
        self.was_opened = false;
        self.inbox = Inbox { has_reader: true, window_left: ours, ..self.inbox.cleared() };
        self.outbox = Outbox { is_queued, window_left: theirs, ..Outbox::default() };
    }

    /// Returns whether the call was reset by the peer or by a lost connection.
    pub fn was_reset(&self) -> bool {
        matches!(self.inbox.ending, Some(RemoteEnd::Reset(_)))
    }

    pub fn release(&mut self, wakes: &mut Vec<Waker>) {
        self.is_open = false;
        self.generation = self.generation.wrapping_add(1);
        wakes.extend(self.inbox.waker.take());
        wakes.extend(self.outbox.waker.take());
        self.inbox = self.inbox.cleared();
        self.outbox = Outbox { is_queued: self.outbox.is_queued, ..Outbox::default() };
    }
}
