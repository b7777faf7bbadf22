//! A thread that submits requests in bursts and waits for each burst.

use super::admission::Seen;
use super::chooser::Chooser;
use super::pages::{Pages, Version, Written, check_read};
use super::task::{Arrival, RemioTask};
use crate::experiments::ExperimentError;
use crate::measure::LatencyRecorder;
use farcall_io::{
    Attached, Buffer, Direction, Handler, Poller, Request, Session, TransferCompletion, TransferFailure,
};
use farcall_verbs::{Endpoint, Nanos};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Time after which requests that have not completed count as lost.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Interval at which a sleeping thread reads the clock.
const NAP: Duration = Duration::from_millis(500);

/// Phases of a measurement.
pub(super) const WARM_UP: u8 = 0;
pub(super) const RECORDED: u8 = 1;
pub(super) const OVER: u8 = 2;

/// Context of a request.
pub(super) struct RequestContext {
    thread: usize,
    slot: usize,
    page: u64,
    reads: bool,
    was_written: bool,
    start: Instant,
}

/// A completed request.
struct CompletedRequest {
    context: RequestContext,
    buffer: Buffer,
    result: Result<(), TransferFailure>,
    took: Duration,
}

/// Queue of a thread's completed requests.
#[derive(Default)]
struct Inbox {
    over: Mutex<Vec<CompletedRequest>>,
    /// Requests of its burst that have not completed.
    left: AtomicUsize,
    owner: OnceLock<Thread>,
}

/// Queues of all threads; every session delivers to the same ones.
#[derive(Clone)]
pub(super) struct Inboxes(Arc<[Inbox]>);

impl Inboxes {
    pub(super) fn new(threads: u32) -> Self {
        Self((0..threads).map(|_| Inbox::default()).collect())
    }
}

impl Handler for Inboxes {
    type Context = RequestContext;

    fn on_completion(&self, completion: TransferCompletion<RequestContext>) {
        let TransferCompletion { context, buffer, result } = completion;
        let took = context.start.elapsed();
        let inbox = &self.0[context.thread];
        let mut over = inbox.over.lock().unwrap_or_else(PoisonError::into_inner);
        over.push(CompletedRequest { context, buffer, result, took });
        drop(over);
        if inbox.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            inbox.owner.get().into_iter().for_each(Thread::unpark);
        }
    }
}

/// State shared by all threads of a measurement.
pub(super) struct SharedContext<'a> {
    pub(super) task: &'a RemioTask,
    pub(super) pages: Pages,
    /// One element per session, each with one memory server.
    pub(super) written: &'a [Written],
    pub(super) seen: &'a [Arc<Seen>],
    pub(super) phase: &'a AtomicU8,
    pub(super) inboxes: &'a Inboxes,
}

/// Results of a thread in the recorded period.
pub(super) struct UserSample {
    pub(super) per_second: f64,
    pub(super) requests: u64,
    pub(super) latencies: LatencyRecorder,
}

pub(super) struct User<'a> {
    number: usize,
    context: &'a SharedContext<'a>,
    sessions: &'a [Session<Inboxes>],
    /// One element per session, if requests use registered memory.
    attached: &'a [Attached],
    chooser: Chooser<'a>,
    /// One buffer per position in a burst.
    buffers: Vec<Vec<u8>>,
    /// Poller, if this thread polls for completions itself.
    poller: Option<Poller<Inboxes>>,
    over: Vec<CompletedRequest>,
    latencies: LatencyRecorder,
}

impl<'a> User<'a> {
    pub(super) fn new(
        number: usize,
        context: &'a SharedContext<'a>,
        sessions: &'a [Session<Inboxes>],
        attached: &'a [Attached],
        chooser: Chooser<'a>,
        poller: Option<Poller<Inboxes>>,
    ) -> Self {
        let burst = context.task.burst as usize;
        let buffers = (0..burst).map(|_| vec![0; context.pages.len_bytes]).collect();
        let latencies = LatencyRecorder::default();
        Self { number, context, sessions, attached, chooser, buffers, poller, over: Vec::new(), latencies }
    }

    /// Submits bursts until the measurement ends, at least one of them recorded. Also returns the poller.
    pub(super) fn run(mut self) -> Result<(UserSample, Option<Poller<Inboxes>>), ExperimentError> {
        let _ = self.inbox().owner.set(thread::current());
        let (mut start, mut requests, mut bursts) = (None, 0, self.number);
        loop {
            let phase = self.context.phase.load(Ordering::Acquire);
            if phase == OVER && requests > 0 {
                break;
            }
            if phase >= RECORDED && start.is_none() {
                start = Some(Instant::now());
            }
            self.burst(bursts % self.sessions.len(), start.is_some())?;
            bursts += 1;
            if start.is_some() {
                requests += u64::from(self.context.task.burst);
            }
        }
        let elapsed = start.map_or(Duration::ZERO, |start| start.elapsed());
        let per_second = requests as f64 / elapsed.as_secs_f64().max(1e-9);
        Ok((UserSample { per_second, requests, latencies: self.latencies }, self.poller))
    }

    fn inbox(&self) -> &'a Inbox {
        &self.context.inboxes.0[self.number]
    }

    fn burst(&mut self, session: usize, is_recorded: bool) -> Result<(), ExperimentError> {
        let task = self.context.task;
        self.inbox().left.store(task.burst as usize, Ordering::Release);
        let stacks = task.arrival == Arrival::Stacked;
        if stacks {
            self.context.seen[session].close(true);
        }
        for slot in 0..task.burst as usize {
            self.submit(session, slot)?;
        }
        if stacks {
            self.context.seen[session].close(false);
        }
        self.wait()?;
        let mut over = std::mem::take(&mut self.over);
        over.append(&mut self.inbox().over.lock().unwrap_or_else(PoisonError::into_inner));
        for request in over.drain(..) {
            self.check(session, request, is_recorded)?;
        }
        self.over = over;
        Ok(())
    }

    /// Returns the offset in attached memory of a position in a burst.
    fn offset(&self, slot: usize) -> usize {
        self.context.pages.offset((self.number * self.context.task.burst as usize + slot) as u64)
    }

    fn submit(&mut self, session: usize, slot: usize) -> Result<(), ExperimentError> {
        let (page, reads) = (self.chooser.page(), self.chooser.reads());
        let SharedContext { pages, written, .. } = self.context;
        let was_written = written[session].has(page);
        let buffer: Buffer = match self.attached.get(session) {
            None => {
                let mut bytes = std::mem::take(&mut self.buffers[slot]);
                if reads {
                    pages.spoil(&mut bytes);
                } else {
                    pages.fill(page, Version::Written, &mut bytes);
                }
                bytes.into()
            }
            Some(attached) => {
                let offset = self.offset(slot);
                if reads {
                    pages.spoil_region(attached.region(), offset);
                } else {
                    pages.fill_region(page, Version::Written, attached.region(), offset);
                }
                attached.slice(offset, pages.len_bytes).into()
            }
        };
        let direction = if reads { Direction::Read } else { Direction::Write };
        let start = Instant::now();
        let context = RequestContext { thread: self.number, slot, page, reads, was_written, start };
        let request = Request { direction, grant: 0, offset: pages.offset(page) as u64, buffer, context };
        self.sessions[session]
            .submit(request)
            .map_err(|refused| format!("a request was not taken: {}", refused.why).into())
    }

    /// Waits until all requests of the burst have completed.
    fn wait(&mut self) -> Result<(), ExperimentError> {
        let (left, start) = (&self.inbox().left, Instant::now());
        while left.load(Ordering::Acquire) > 0 {
            match &mut self.poller {
                Some(poller) => _ = poller.progress(Nanos(0)),
                None => thread::park_timeout(NAP),
            }
            if start.elapsed() > SILENCE_MAX {
                let left = left.load(Ordering::Acquire);
                return Err(format!("{left} requests are not over after {SILENCE_MAX:?}").into());
            }
        }
        Ok(())
    }

    fn check(
        &mut self,
        session: usize,
        request: CompletedRequest,
        is_recorded: bool,
    ) -> Result<(), ExperimentError> {
        let CompletedRequest { context, buffer, result, took } = request;
        let RequestContext { slot, page, reads, was_written, .. } = context;
        result.map_err(|failure| format!("a request failed: {failure}"))?;
        let SharedContext { pages, written, .. } = self.context;
        if !reads {
            written[session].add(page);
        }
        let found = match buffer {
            Buffer::Owned(bytes) => {
                let found = if reads { pages.version(page, &bytes) } else { None };
                self.buffers[slot] = bytes;
                found
            }
            Buffer::Registered(_) if reads => {
                pages.version_in_region(page, self.attached[session].region(), self.offset(slot))
            }
            Buffer::Shared(_) | Buffer::Registered(_) => None,
        };
        if reads {
            check_read(found, page, was_written)?;
        }
        if is_recorded {
            self.latencies.record_ns(took.as_nanos() as u64);
        }
        Ok(())
    }
}
