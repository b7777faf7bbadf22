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
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Progress, WaitSet};

use super::MemoryEndpoint;
use super::PIECE_PAGES;
use super::config::{IoError, OpenError, Request, SpaceStatus, Work};
use super::remote::Result;

/// Number of empty polls before the thread sleeps.
const POLLS: u32 = 2_000;
/// Maximum time for which a caller drives the engine: about the cost of a sleep and a wake-up.
const DRIVE_FOR: Duration = Duration::from_micros(50);
/// Maximum time for which a caller continues to drive the engine for other callers after its own request has
/// completed: less than the cost of waking the thread.
const DRIVE_FOR_OTHERS: Duration = Duration::from_micros(10);
/// Time after a caller has driven the engine during which the thread does not poll.
const LEFT_ALONE_FOR: Duration = Duration::from_millis(1);

type Answer = Result<Vec<u8>>;

/// A queued request, and the channel to its caller.
struct Asked {
    offset: u64,
    work: Work,
    ended: SyncSender<Answer>,
}

pub(super) struct Space {
    /// The thread that holds the lock drives the engine. A panic under the lock leaves it unusable.
    driven: Mutex<Driven>,
    /// Requests issued while another thread was driving.
    inbox: WakeQueue<Asked>,
    clock: MonotonicClock,
    callers_drive: bool,
    /// Time until which no other client can hold the volume, as far as is known.
    held_until: AtomicU64,
    /// `true` if this client has lost the volume.
    is_fenced: AtomicBool,
    /// `true` if the thread has ended and no longer drives the engine.
    has_ended: AtomicBool,
}

/// State of the driving thread.
struct Driven {
    memory: MemoryEndpoint,
    asked: BTreeMap<u64, SyncSender<Answer>>,
    /// Queued requests, at most one per calling thread.
    waiting: VecDeque<Asked>,
    last_token: u64,
    /// Token of the request of the driving caller; `own_answer` is its result.
    own: Option<u64>,
    own_answer: Option<Answer>,
    /// Number of requests that completed while their callers drove the engine.
    driven_by_callers: u64,
    /// Time until which the thread need not poll, because a caller drove the engine recently.
    left_alone_until: Nanos,
    /// Latest time passed to the engine; it never decreases.
    now: Nanos,
    is_closing: bool,
}

impl Space {
    pub fn new(memory: MemoryEndpoint, clock: MonotonicClock) -> Result<Self, OpenError> {
        let held_until = AtomicU64::new(memory.held_until().0);
        let callers_drive = memory.callers_drive();
        let driven = Driven {
            memory,
            asked: BTreeMap::new(),
            waiting: VecDeque::new(),
            last_token: 0,
            own: None,
            own_answer: None,
            driven_by_callers: 0,
            left_alone_until: Nanos(0),
            now: Nanos(0),
            is_closing: false,
        };
        Ok(Self {
            driven: Mutex::new(driven),
            inbox: WakeQueue::new()?,
            clock,
            callers_drive,
            held_until,
            is_fenced: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Starts the background thread, which ends some time after [`Space::close`].
    pub fn start(space: &Arc<Self>) -> Result<JoinHandle<()>, OpenError> {
        let (space, stop) = (Arc::clone(space), Stop::new()?);
        let run = move || {
            let mut driver = Driver::new(space.clock, WaitStrategy::Adaptive { max_retry: POLLS }, stop);
            let mut thread = Thread { space: &space, is_left_alone: false };
            // The thread cannot wait for its descriptors, so it cannot continue.
            if let Err(error) = driver.run_until(&mut thread, |thread| thread.space.is_over()) {
                tracing::error!("memory client: its thread ended: {error}");
            }
            space.give_up();
        };
        Ok(std::thread::Builder::new().name("memory-client".into()).spawn(run)?)
    }

    pub fn held_until(&self) -> Nanos {
        Nanos(self.held_until.load(Ordering::Acquire))
    }

    /// Returns whether the volume is permanently lost.
    pub fn is_lost(&self) -> bool {
        self.is_fenced.load(Ordering::Acquire) || self.has_ended.load(Ordering::SeqCst)
    }

    /// Executes a request and blocks until it completes.
    pub fn ask(&self, offset: u64, work: Work) -> Answer {
        // While threads compete for the processors, each wake-up of the thread and of the caller takes longer than the
        // I/O.
        let drives = self.callers_drive || sample_if_due();
        let waits = match self.driven.try_lock() {
            Ok(mut driven) if drives && driven.can_take() => {
                let guard = WakesIfPanicking(&self.inbox);
                let outcome = self.drive(&mut driven, offset, work);
                drop(guard);
                let has_more = driven.has_more() || self.inbox.has_any();
                drop(driven);
                if has_more {
                    self.inbox.wake();
                }
                match outcome {
                    Ok(answer) => return answer,
                    Err(receiver) => receiver,
                }
            }
            Err(TryLockError::Poisoned(_)) => return Err(IoError::Closed),
            Ok(_) | Err(TryLockError::WouldBlock) => {
                let (ended, receiver) = mpsc::sync_channel(1);
                self.inbox.push(Asked { offset, work, ended });
                if self.has_ended.load(Ordering::SeqCst) {
                    self.forget_asked();
                }
                receiver
            }
        };
        waits.recv().unwrap_or(Err(IoError::Closed))
    }

    /// Drives the engine until the request completes, for at most [`DRIVE_FOR`]. After that the thread continues, and
    /// the result arrives over the returned channel.
    fn drive(&self, driven: &mut Driven, offset: u64, work: Work) -> Result<Answer, Receiver<Answer>> {
        let begun = self.clock.now();
        let token = driven.next_token();
        let now = driven.at(begun);
        if driven.memory.submit(Request { token, offset, work }, now).is_err() {
            return Ok(Err(IoError::Closed));
        }
        driven.own = Some(token);
        let (mut now, mut until) = (begun, begun + DRIVE_FOR);
        let mut is_answered = false;
        while (!is_answered || driven.has_more()) && now < until {
            driven.turn(self, now);
            now = self.clock.now();
            if !is_answered && driven.own_answer.is_some() {
                is_answered = true;
                until = now + DRIVE_FOR_OTHERS;
            }
        }
        driven.own = None;
        driven.driven_by_callers += u64::from(is_answered);
        driven.left_alone_until = now + LEFT_ALONE_FOR;
        driven.own_answer.take().ok_or_else(|| {
            let (ended, receiver) = mpsc::sync_channel(1);
            driven.asked.insert(token, ended);
            receiver
        })
    }

    /// Adds a node.
    pub fn join(&self, address: &str) -> Result<bool, OpenError> {
        let Ok(mut driven) = self.driven.lock() else { return Ok(false) };
        let joined = driven.memory.join(address);
        drop(driven);
        self.inbox.wake();
        joined
    }

    pub fn status(&self) -> SpaceStatus {
        let Ok(driven) = self.driven.lock() else { return SpaceStatus::default() };
        let mut status = driven.memory.status();
        status.counts.driven_by_callers = driven.driven_by_callers;
        status
    }

    /// Begins to return all slabs and leases. Requests in progress fail with [`IoError::Closed`].
    pub fn close(&self) {
        if let Ok(mut driven) = self.driven.lock() {
            driven.is_closing = true;
            driven.forget();
            let now = driven.at(self.clock.now());
            driven.memory.close(now);
        }
        self.inbox.wake();
    }

    fn is_over(&self) -> bool {
        self.driven.lock().map_or(true, |driven| driven.memory.is_closed())
    }

    /// Fails all requests, since no thread drives the engine any more.
    fn give_up(&self) {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner).forget();
        // Pairs with the load in `ask`: requests queued before this store are discarded below, those queued after it
        // by their own threads.
        self.has_ended.store(true, Ordering::SeqCst);
        self.forget_asked();
    }

    fn forget_asked(&self) {
        while self.inbox.pop().is_some() {}
    }
}

/// Wakes the thread if the caller panics while driving. The thread then finds the lock poisoned and ends.
struct WakesIfPanicking<'a>(&'a WakeQueue<Asked>);

impl Drop for WakesIfPanicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.wake();
        }
    }
}

impl Driven {
    /// Returns whether a request can be submitted immediately: none is queued, and there is capacity.
    fn can_take(&self) -> bool {
        !self.is_closing && self.waiting.is_empty() && self.memory.has_room(PIECE_PAGES)
    }

    /// Returns whether other callers wait for requests.
    fn has_more(&self) -> bool {
        !self.asked.is_empty() || !self.waiting.is_empty()
    }

    const fn next_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    fn turn(&mut self, space: &Space, now: Nanos) -> Progress {
        let now = self.at(now);
        while !self.is_closing
            && let Some(asked) = space.inbox.pop()
        {
            self.waiting.push_back(asked);
        }
        let any = self.submit(now);
        let next = self.memory.progress(now);
        space.held_until.store(self.memory.held_until().0, Ordering::Release);
        if self.memory.is_fenced() {
            space.is_fenced.store(true, Ordering::Release);
        }
        while let Some(ended) = self.memory.next_ended() {
            if self.own == Some(ended.token) {
                self.own_answer = Some(ended.result);
            } else if let Some(to) = self.asked.remove(&ended.token) {
                // A send fails only if the receiver no longer exists.
                let _ = to.send(ended.result);
            }
        }
        if any { Progress::Again } else { next }
    }

    /// Returns `now`, or the latest time passed to the engine if that is later.
    fn at(&mut self, now: Nanos) -> Nanos {
        self.now = self.now.max(now);
        self.now
    }

    /// Fails all requests by dropping the channels to their callers.
    fn forget(&mut self) {
        self.asked.clear();
        self.waiting.clear();
    }

    /// Submits queued requests in order while there is capacity. Returns whether there were any.
    fn submit(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while self.memory.has_room(PIECE_PAGES)
            && let Some(Asked { offset, work, ended }) = self.waiting.pop_front()
        {
            any = true;
            let token = self.next_token();
            // The range was checked and there is capacity, so only a metadata write can be refused. Dropping `ended`
            // then fails the request.
            if self.memory.submit(Request { token, offset, work }, now).is_ok() {
                self.asked.insert(token, ended);
            }
        }
        any
    }

    /// Returns whether the thread may leave all work to callers.
    fn is_left_alone(&self, now: Nanos) -> bool {
        now < self.left_alone_until && !self.has_more() && !self.is_closing
    }
}

/// Endpoint of the background thread.
struct Thread<'a> {
    space: &'a Space,
    /// `true` while callers do all work.
    is_left_alone: bool,
}

impl Endpoint for Thread<'_> {
    fn progress(&mut self, now: Nanos) -> Progress {
        // Poisoned: a thread panicked while driving. This thread ends.
        let Ok(mut driven) = self.space.driven.lock() else { return Progress::IDLE };
        self.is_left_alone = driven.is_left_alone(now) && !self.space.inbox.has_any();
        if self.is_left_alone {
            return Progress::Idle { until: Some(driven.left_alone_until) };
        }
        driven.turn(self.space, now)
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.space.inbox.clear_wake();
        match self.space.driven.lock() {
            // An event for each completion of the callers' requests would be a spurious wake-up.
            Ok(driven) if driven.is_left_alone(self.space.clock.now()) => Ok(()),
            Ok(mut driven) => driven.memory.arm(),
            Err(_) => Ok(()),
        }
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.space.inbox.fd());
        // While callers do the work, the thread must not wait for events, which would wake it repeatedly.
        if !self.is_left_alone
            && let Ok(driven) = self.space.driven.lock()
        {
            driven.memory.wait_set(set);
        }
    }

    fn poll_weight(&self) -> u32 {
        if self.is_left_alone { POLLS } else { 1 }
    }
}
