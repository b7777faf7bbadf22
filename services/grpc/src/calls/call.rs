//! One call: what came and is not read yet, what is to go.

use std::task::{Context, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http::uri::PathAndQuery;
use tonic::{Code, Status};

use crate::frame::metadata;

/// How the peer's side of a call ended.
pub(super) enum Ending {
    End,
    /// Trailers that say nothing but that the call succeeded.
    Success,
    Trailers(HeaderMap),
    Reset(Status),
}

impl Ending {
    /// The trailers, if it has any.
    pub fn into_trailers(self) -> Result<Option<HeaderMap>, Status> {
        match self {
            Self::End => Ok(None),
            Self::Success => Ok(Some(metadata::success())),
            Self::Trailers(trailers) => Ok(Some(trailers)),
            Self::Reset(status) => Err(status),
        }
    }
}

/// How this end begins.
pub(crate) enum Opening {
    Call(PathAndQuery, HeaderMap),
    Response(u16, HeaderMap),
}

/// How this end ends.
pub(crate) enum Going {
    End,
    Trailers(HeaderMap),
}

/// The next part of what this end sends.
#[derive(Default)]
pub(crate) struct Submission {
    pub opening: Option<Opening>,
    pub data: Bytes,
    pub ending: Option<Going>,
}

/// The memory of what came is kept for the next call up to here.
const KEPT_BYTES_MAX: usize = 1 << 10;

#[derive(Default)]
pub(super) struct Inbox {
    pub answer: Option<(u16, HeaderMap)>,
    pub is_answered: bool,
    /// What nobody has read yet: never longer than the window.
    pub bytes: Vec<u8>,
    pub ending: Option<Ending>,
    pub is_ended: bool,
    pub has_reader: bool,
    /// What the peer may still send.
    pub window_left: u32,
    /// What was read since the peer was told that it may send more.
    pub owed: u32,
    pub waker: Option<Waker>,
}

impl Inbox {
    /// Appends what came. Its memory does not outgrow the window, as that of a vector that doubles would.
    pub fn append(&mut self, data: &[u8], window_bytes: u32) {
        let (len, capacity) = (self.bytes.len() + data.len(), self.bytes.capacity());
        if len > capacity {
            let doubled = (2 * capacity).min(window_bytes as usize).max(len);
            self.bytes.reserve_exact(doubled - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
    }

    /// As at first, with the memory of what came if that is little.
    fn cleared(&mut self) -> Self {
        self.forget_bytes();
        Self { bytes: std::mem::take(&mut self.bytes), ..Self::default() }
    }

    /// Nobody reads what came. Returns how many bytes that was.
    pub fn forget_bytes(&mut self) -> u32 {
        let len_bytes = self.bytes.len() as u32;
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        len_bytes
    }

    /// The peer's side ends: so, unless this end has told its reader something else already.
    pub fn end(&mut self, ending: Ending, wakes: &mut Vec<Waker>) {
        self.ending.get_or_insert(ending);
        self.is_ended = true;
        wakes.extend(self.waker.take());
    }

    pub fn wait(&mut self, context: &Context<'_>) {
        keep(&mut self.waker, context);
    }
}

#[derive(Default)]
pub(super) struct Outbox {
    /// Whether a part is kept here that was not sent whole.
    pub is_full: bool,
    pub opening: Option<Opening>,
    pub data: Bytes,
    pub ending: Option<Going>,
    pub reset: Option<(Code, String)>,
    /// The last frame of this side was made.
    pub is_ended: bool,
    pub is_queued: bool,
    /// What the peer lets this end send.
    pub window_left: u32,
    /// What the peer will be told that it may send in addition.
    pub credit: u32,
    /// Who submits the parts.
    pub waker: Option<Waker>,
}

impl Outbox {
    pub fn submit(&mut self, submission: Submission) {
        self.is_full = true;
        self.opening = submission.opening;
        self.data = submission.data;
        self.ending = submission.ending;
    }

    pub fn wait(&mut self, context: &Context<'_>) {
        keep(&mut self.waker, context);
    }

    /// Whether the last part has been submitted.
    pub fn has_end(&self) -> bool {
        self.is_ended || self.ending.is_some() || self.reset.is_some()
    }

    pub fn clear(&mut self, wakes: &mut Vec<Waker>) {
        self.is_full = false;
        self.opening = None;
        self.data = Bytes::new();
        self.ending = None;
        wakes.extend(self.waker.take());
    }
}

fn keep(slot: &mut Option<Waker>, context: &Context<'_>) {
    if !slot.as_ref().is_some_and(|before| before.will_wake(context.waker())) {
        *slot = Some(context.waker().clone());
    }
}

#[derive(Default)]
pub(super) struct Call {
    pub generation: u32,
    /// The first frame of this side was made.
    pub was_opened: bool,
    pub is_open: bool,
    pub inbox: Inbox,
    pub outbox: Outbox,
}

impl Call {
    /// A queued number stays queued, whichever call it belongs to.
    pub fn begin(&mut self, ours: u32, theirs: u32) {
        let is_queued = self.outbox.is_queued;
        self.is_open = true;
        self.was_opened = false;
        self.inbox = Inbox { has_reader: true, window_left: ours, ..self.inbox.cleared() };
        self.outbox = Outbox { is_queued, window_left: theirs, ..Outbox::default() };
    }

    /// Whether the peer gave it up.
    pub fn has_come_to_nothing(&self) -> bool {
        matches!(self.inbox.ending, Some(Ending::Reset(_)))
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
