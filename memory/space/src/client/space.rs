//! An address space shared by threads. A thread that issues a request drives the engine until the request completes,
//! unless another thread is already driving it. A page that arrives quickly therefore costs no thread wake-up. After a
//! short time, or if another thread is driving, the background thread of the space takes over, and the caller sleeps.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_drive::contention::sample_if_due;
use farcall_drive::{Driver, Stop, WakeQueue};
use farcall_link::WaitStrategy;
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Progress, WaitSet, with_sources};

use super::MemoryEndpoint;
use super::PART_PAGES;
use super::config::{IoError, OpenError, Request, Result, SpaceStatus, Work};

/// Number of empty polls before the thread sleeps.
const POLLS: u32 = 2_000;
/// Maximum time for which a caller drives the engine: about the cost of a sleep and a wake-up.
const DRIVE_FOR: Duration = Duration::from_micros(50);
/// Maximum time for which a caller continues to drive the engine for other callers after its own request has
/// completed: less than the cost of waking the thread.
const DRIVE_FOR_OTHERS: Duration = Duration::from_micros(10);
/// Time after a caller has driven the engine during which the thread does not poll.
const POLL_PAUSE: Duration = Duration::from_millis(1);

type RequestResult = Result<Vec<u8>>;

/// A queued request, and the channel to its caller.
struct QueuedRequest {
    offset: u64,
    work: Work,
    reply_to: SyncSender<RequestResult>,
}

pub(super) struct Space {
    /// The thread that holds the lock drives the engine. A panic under the lock leaves it unusable.
    state: Mutex<EngineState>,
    /// Requests issued while another thread was driving.
    inbox: WakeQueue<QueuedRequest>,
    clock: MonotonicClock,
    caller_polling: bool,
    /// Time until which no other client can hold the volume, as far as is known.
    exclusive_until: AtomicU64,
    /// `true` if this client has lost the volume.
    is_fenced: AtomicBool,
    /// `true` if the thread has ended and no longer drives the engine.
    has_ended: AtomicBool,
}

/// State of the driving thread.
struct EngineState {
    memory: MemoryEndpoint,
    submitted: BTreeMap<u64, SyncSender<RequestResult>>,
    /// Queued requests, at most one per calling thread.
    waiting: VecDeque<QueuedRequest>,
    last_token: u64,
    /// Token of the request of the driving caller; `own_result` is its result.
    own_token: Option<u64>,
    own_result: Option<RequestResult>,
    /// Number of requests that completed while their callers drove the engine.
    driven_by_callers: u64,
    /// Time until which the thread need not poll, because a caller drove the engine recently.
    poll_paused_until: Nanos,
    /// Latest time passed to the engine; it never decreases.
    now: Nanos,
    is_closing: bool,
}

impl Space {
    pub fn new(memory: MemoryEndpoint, clock: MonotonicClock) -> Result<Self, OpenError> {
        let exclusive_until = AtomicU64::new(memory.exclusive_until().0);
        let caller_polling = memory.caller_polling();
        let state = EngineState {
            memory,
            submitted: BTreeMap::new(),
            waiting: VecDeque::new(),
            last_token: 0,
            own_token: None,
            own_result: None,
            driven_by_callers: 0,
            poll_paused_until: Nanos(0),
            now: Nanos(0),
            is_closing: false,
        };
        Ok(Self {
            state: Mutex::new(state),
            inbox: WakeQueue::new()?,
            clock,
            caller_polling,
            exclusive_until,
            is_fenced: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Starts the background thread, which ends some time after [`Space::close`].
    pub fn start(space: &Arc<Self>) -> Result<JoinHandle<()>, OpenError> {
        let (space, stop) = (Arc::clone(space), Stop::new()?);
        let run = move || {
            let mut driver = Driver::new(space.clock, WaitStrategy::Adaptive { max_retry: POLLS }, stop);
            let mut thread = EngineThread { space: &space, may_skip_polling: false };
            // The thread cannot wait for its descriptors, so it cannot continue.
            if let Err(error) = driver.run_until(&mut thread, |thread| thread.space.is_closed()) {
                tracing::error!("memory client: its thread ended: {}", with_sources(&error));
            }
            space.fail_all();
        };
        Ok(std::thread::Builder::new().name("memory-client".into()).spawn(run)?)
    }

    pub fn exclusive_until(&self) -> Nanos {
        Nanos(self.exclusive_until.load(Ordering::Acquire))
    }

    /// Returns whether the volume is permanently lost.
    pub fn is_lost(&self) -> bool {
        self.is_fenced.load(Ordering::Acquire) || self.has_ended.load(Ordering::SeqCst)
    }

    /// Executes a request and blocks until it completes.
    pub fn execute(&self, offset: u64, work: Work) -> RequestResult {
        // While threads compete for the processors, each wake-up of the thread and of the caller takes longer than the
        // I/O.
        let drives = self.caller_polling || sample_if_due();
        let waits = match self.state.try_lock() {
            Ok(mut state) if drives && state.can_submit() => {
                let guard = WakeOnPanic(&self.inbox);
                let outcome = self.drive(&mut state, offset, work);
                drop(guard);
                let has_requests = state.has_requests() || self.inbox.has_any();
                drop(state);
                if has_requests {
                    self.inbox.wake();
                }
                match outcome {
                    Ok(result) => return result,
                    Err(receiver) => receiver,
                }
            }
            Err(TryLockError::Poisoned(_)) => return Err(IoError::Closed),
            Ok(_) | Err(TryLockError::WouldBlock) => {
                let (reply_to, receiver) = mpsc::sync_channel(1);
                self.inbox.push(QueuedRequest { offset, work, reply_to });
                if self.has_ended.load(Ordering::SeqCst) {
                    self.discard_inbox();
                }
                receiver
            }
        };
        waits.recv().unwrap_or(Err(IoError::Closed))
    }

    /// Drives the engine until the request completes, for at most [`DRIVE_FOR`]. After that the thread continues, and
    /// the result arrives over the returned channel.
    fn drive(
        &self,
        state: &mut EngineState,
        offset: u64,
        work: Work,
    ) -> Result<RequestResult, Receiver<RequestResult>> {
        let begun = self.clock.now();
        let token = state.next_token();
        let now = state.advance_clock(begun);
        if state.memory.submit(Request { token, offset, work }, now).is_err() {
            return Ok(Err(IoError::Closed));
        }
        state.own_token = Some(token);
        let (mut now, mut until) = (begun, begun + DRIVE_FOR);
        let mut is_completed = false;
        while (!is_completed || state.has_requests()) && now < until {
            state.drive_once(self, now);
            now = self.clock.now();
            if !is_completed && state.own_result.is_some() {
                is_completed = true;
                until = now + DRIVE_FOR_OTHERS;
            }
        }
        state.own_token = None;
        state.driven_by_callers += u64::from(is_completed);
        state.poll_paused_until = now + POLL_PAUSE;
        state.own_result.take().ok_or_else(|| {
            let (reply_to, receiver) = mpsc::sync_channel(1);
            state.submitted.insert(token, reply_to);
            receiver
        })
    }

    /// Adds a node.
    pub fn join(&self, address: &str) -> Result<bool, OpenError> {
        let Ok(mut state) = self.state.lock() else { return Ok(false) };
        let joined = state.memory.join(address);
        drop(state);
        self.inbox.wake();
        joined
    }

    pub fn status(&self) -> SpaceStatus {
        let Ok(state) = self.state.lock() else { return SpaceStatus::default() };
        let mut status = state.memory.status();
        status.counts.driven_by_callers = state.driven_by_callers;
        status
    }

    /// Begins to return all slabs and leases. Requests in progress fail with [`IoError::Closed`].
    pub fn close(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.is_closing = true;
            state.discard_requests();
            let now = state.advance_clock(self.clock.now());
            state.memory.close(now);
        }
        self.inbox.wake();
    }

    fn is_closed(&self) -> bool {
        self.state.lock().map_or(true, |state| state.memory.is_closed())
    }

    /// Fails all requests, since no thread drives the engine any more.
    fn fail_all(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).discard_requests();
        // Pairs with the load in `execute`: requests queued before this store are discarded below, those queued after
        // it by their own threads.
        self.has_ended.store(true, Ordering::SeqCst);
        self.discard_inbox();
    }

    fn discard_inbox(&self) {
        while self.inbox.pop().is_some() {}
    }
}

/// Wakes the thread if the caller panics while driving. The thread then finds the lock poisoned and ends.
struct WakeOnPanic<'a>(&'a WakeQueue<QueuedRequest>);

impl Drop for WakeOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.wake();
        }
    }
}

impl EngineState {
    /// Returns whether a request can be submitted immediately: none is queued, and there is capacity.
    fn can_submit(&self) -> bool {
        !self.is_closing && self.waiting.is_empty() && self.memory.has_room(PART_PAGES)
    }

    /// Returns whether other callers wait for requests.
    fn has_requests(&self) -> bool {
        !self.submitted.is_empty() || !self.waiting.is_empty()
    }

    const fn next_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    fn drive_once(&mut self, space: &Space, now: Nanos) -> Progress {
        let now = self.advance_clock(now);
        while !self.is_closing
            && let Some(submitted) = space.inbox.pop()
        {
            self.waiting.push_back(submitted);
        }
        let any = self.submit(now);
        let next = self.memory.progress(now);
        space.exclusive_until.store(self.memory.exclusive_until().0, Ordering::Release);
        if self.memory.is_fenced() {
            space.is_fenced.store(true, Ordering::Release);
        }
        while let Some(completed) = self.memory.next_completed() {
            if self.own_token == Some(completed.token) {
                self.own_result = Some(completed.result);
            } else if let Some(to) = self.submitted.remove(&completed.token) {
                // A send fails only if the receiver no longer exists.
                let _ = to.send(completed.result);
            }
        }
        if any { Progress::Again } else { next }
    }

    /// Returns `now`, or the latest time passed to the engine if that is later.
    fn advance_clock(&mut self, now: Nanos) -> Nanos {
        self.now = self.now.max(now);
        self.now
    }

    /// Fails all requests by dropping the channels to their callers.
    fn discard_requests(&mut self) {
        self.submitted.clear();
        self.waiting.clear();
    }

    /// Submits queued requests in order while there is capacity. Returns whether there were any.
    fn submit(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while self.memory.has_room(PART_PAGES)
            && let Some(QueuedRequest { offset, work, reply_to }) = self.waiting.pop_front()
        {
            any = true;
            let token = self.next_token();
            // The range was checked and there is capacity, so only a metadata write can be refused. Dropping `reply_to`
            // then fails the request.
            if self.memory.submit(Request { token, offset, work }, now).is_ok() {
                self.submitted.insert(token, reply_to);
            }
        }
        any
    }

    /// Returns whether the thread may leave all work to callers.
    fn may_skip_polling(&self, now: Nanos) -> bool {
        now < self.poll_paused_until && !self.has_requests() && !self.is_closing
    }
}

/// Endpoint of the background thread.
struct EngineThread<'a> {
    space: &'a Space,
    /// `true` while callers do all work.
    may_skip_polling: bool,
}

impl Endpoint for EngineThread<'_> {
    fn progress(&mut self, now: Nanos) -> Progress {
        // Poisoned: a thread panicked while driving. This thread ends.
        let Ok(mut state) = self.space.state.lock() else { return Progress::IDLE };
        self.may_skip_polling = state.may_skip_polling(now) && !self.space.inbox.has_any();
        if self.may_skip_polling {
            return Progress::Idle { until: Some(state.poll_paused_until) };
        }
        state.drive_once(self.space, now)
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.space.inbox.clear_wake();
        match self.space.state.lock() {
            // An event for each completion of the callers' requests would be a spurious wake-up.
            Ok(state) if state.may_skip_polling(self.space.clock.now()) => Ok(()),
            Ok(mut state) => state.memory.arm(),
            Err(_) => Ok(()),
        }
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.space.inbox.fd());
        // While callers do the work, the thread must not wait for events, which would wake it repeatedly.
        if !self.may_skip_polling
            && let Ok(state) = self.space.state.lock()
        {
            state.memory.wait_set(set);
        }
    }

    fn poll_weight(&self) -> u32 {
        if self.may_skip_polling { POLLS } else { 1 }
    }
}
