//! An address space that threads share. Who asks drives the engine until the answer is there, if nobody else does: no
//! thread has to be woken for a page that comes at once. After a while, or if somebody else drives, a thread of the
//! space's own goes on, and who asked sleeps.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_drive::contention::sample_if_due;
use farcall_drive::{Driver, Stop, WakeQueue};
use farcall_link::Waiting;
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Next, WaitSet};

use super::MemoryEndpoint;
use super::PIECE_PAGES;
use super::config::{IoError, OpenError, Request, SpaceStatus, Work};
use super::remote::Result;

/// Empty looks before the thread sleeps.
const POLLS: u32 = 2_000;
/// Who asks drives for so long: about what a sleep and a wake-up cost.
const DRIVE_FOR: Duration = Duration::from_micros(50);
/// Who has an answer drives on for so long for others who ask: less than what waking the thread costs.
const DRIVE_FOR_OTHERS: Duration = Duration::from_micros(10);
/// While others drive the thread looks no more often than that.
const LEFT_ALONE_FOR: Duration = Duration::from_millis(1);

type Answer = Result<Vec<u8>>;

/// A request, and who waits for it.
struct Asked {
    offset: u64,
    work: Work,
    ended: SyncSender<Answer>,
}

pub(super) struct Space {
    /// Whoever has it drives. A thread that panicked while it had it leaves nothing to go on with.
    driven: Mutex<Driven>,
    /// What was asked while somebody else drove.
    inbox: WakeQueue<Asked>,
    clock: MonotonicClock,
    callers_drive: bool,
    /// Until when nobody else can have the volume, as far as is known.
    held_until: AtomicU64,
    /// The volume is lost to this client.
    is_fenced: AtomicBool,
    /// The thread has ended: nothing goes on.
    has_ended: AtomicBool,
}

/// What the engine's driver has.
struct Driven {
    memory: MemoryEndpoint,
    asked: BTreeMap<u64, SyncSender<Answer>>,
    /// One for each thread that asks, at most.
    waiting: VecDeque<Asked>,
    last_token: u64,
    /// The request of whoever drives, and its answer.
    own: Option<u64>,
    own_answer: Option<Answer>,
    /// Requests whose callers drove until they were over.
    driven_by_callers: u64,
    /// Somebody who asks drove a moment ago: until then the thread need not look.
    left_alone_until: Nanos,
    /// No time before it is told of any more.
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

    /// Starts the thread of its own, which ends some time after [`Space::close`].
    pub fn start(space: &Arc<Self>) -> Result<JoinHandle<()>, OpenError> {
        let (space, stop) = (Arc::clone(space), Stop::new()?);
        let run = move || {
            let mut driver = Driver::new(space.clock, Waiting::Adaptive { max_retry: POLLS }, stop);
            let mut thread = Thread { space: &space, is_left_alone: false };
            // The system cannot sleep on a descriptor: nothing can go on.
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

    /// Whether the volume is not held any more, and never will be.
    pub fn is_lost(&self) -> bool {
        self.is_fenced.load(Ordering::Acquire) || self.has_ended.load(Ordering::SeqCst)
    }

    /// Asks, and waits.
    pub fn ask(&self, offset: u64, work: Work) -> Answer {
        // While threads compete for the processors, each wake-up of the thread and of the caller takes longer than the I/O.
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

    /// Drives until a request is over; for long only the thread does, and the answer comes from there.
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

    /// From now on there is another node.
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

    /// Gives everything back. What is not over is closed.
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

    /// Nobody drives any more: who waits is told.
    fn give_up(&self) {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner).forget();
        // Whoever asks after that looks for it.
        self.has_ended.store(true, Ordering::SeqCst);
        self.forget_asked();
    }

    fn forget_asked(&self) {
        while self.inbox.pop().is_some() {}
    }
}

/// Has the thread see that the space is lost.
struct WakesIfPanicking<'a>(&'a WakeQueue<Asked>);

impl Drop for WakesIfPanicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.wake();
        }
    }
}

impl Driven {
    /// Whether a request can be handed over at once: none waits, and there is room.
    fn can_take(&self) -> bool {
        !self.is_closing && self.waiting.is_empty() && self.memory.has_room(PIECE_PAGES)
    }

    /// Whether somebody waits for what is under way.
    fn has_more(&self) -> bool {
        !self.asked.is_empty() || !self.waiting.is_empty()
    }

    const fn next_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    fn turn(&mut self, space: &Space, now: Nanos) -> Next {
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
                // Nobody waits for it any more if this fails; so below.
                let _ = to.send(ended.result);
            }
        }
        if any { Next::Again } else { next }
    }

    /// A time, not before those that were told of.
    fn at(&mut self, now: Nanos) -> Nanos {
        self.now = self.now.max(now);
        self.now
    }

    /// Whoever waits hears that nothing comes.
    fn forget(&mut self) {
        self.asked.clear();
        self.waiting.clear();
    }

    /// Hands over what there is room for, in order.
    fn submit(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while self.memory.has_room(PIECE_PAGES)
            && let Some(Asked { offset, work, ended }) = self.waiting.pop_front()
        {
            any = true;
            let token = self.next_token();
            // The range was checked, and there is room: it is taken, but for notes. Who asked hears of that.
            if self.memory.submit(Request { token, offset, work }, now).is_ok() {
                self.asked.insert(token, ended);
            }
        }
        any
    }

    /// Whether the thread may leave all to those who ask.
    fn is_left_alone(&self, now: Nanos) -> bool {
        now < self.left_alone_until && !self.has_more() && !self.is_closing
    }
}

/// What the thread runs.
struct Thread<'a> {
    space: &'a Space,
    /// Those who ask do all there is to do.
    is_left_alone: bool,
}

impl Endpoint for Thread<'_> {
    fn progress(&mut self, now: Nanos) -> Next {
        // Who panicked had it: the thread ends.
        let Ok(mut driven) = self.space.driven.lock() else { return Next::IDLE };
        self.is_left_alone = driven.is_left_alone(now) && !self.space.inbox.has_any();
        if self.is_left_alone {
            return Next::Idle { until: Some(driven.left_alone_until) };
        }
        driven.turn(self.space, now)
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.space.inbox.clear_wake();
        match self.space.driven.lock() {
            // An event for each of their completions would wake us for nothing.
            Ok(driven) if driven.is_left_alone(self.space.clock.now()) => Ok(()),
            Ok(mut driven) => driven.memory.arm(),
            Err(_) => Ok(()),
        }
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.space.inbox.fd());
        // Left alone, it does not take events, which would wake it again and again.
        if !self.is_left_alone
            && let Ok(driven) = self.space.driven.lock()
        {
            driven.memory.wait_set(set);
        }
    }

    fn looks(&self) -> u32 {
        if self.is_left_alone { POLLS } else { 1 }
    }
}
