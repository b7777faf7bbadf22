//! Completion queues. A queue holds nothing itself: it looks at the queue pairs that its readiness bitmap names and
//! writes their completions straight into the caller's array. So it cannot overrun.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farcall_verbs::{Error, Notify, RawCq, Result, Wc};

use crate::channel::{Channel, Waker};
use crate::fork::{self, Born, Orphan};
use crate::qp::QpCore;
use crate::readiness::{LEN_BYTES, MAX_BITS, Readiness};
use crate::shared::Segment;

/// Up to so many fruitless looks of a poll are no waste: promises are withdrawn only from larger crowds.
const ALWAYS_SCANNED: u32 = 16;

/// Looks wasted on pairs that had nothing, between two withdrawals: so many cost a few times what a withdrawal does, with
/// its barrier, and with what producers pay to set the bits of pairs that wake up.
const FRUITLESS_MAX: u32 = 2048;

pub(crate) struct CqCore {
    id: u32,
    segment: Segment,
    readiness: Readiness,
    waker: Option<Arc<Waker>>,
    /// Armed by the owner, and the event not yet taken from the channel.
    expects_event: AtomicBool,
    /// An event came, was not taken, and the queue was armed again: it is there still.
    unclaimed_event: AtomicBool,
    /// A pair in error has failures for when there is nothing else.
    holds_back: AtomicBool,
    attached: Mutex<Vec<Place>>,
    /// Changes whenever `attached` does.
    epoch: AtomicU64,
    born: Born,
}

/// A connected queue pair at a completion queue, and which of its completions come here.
#[derive(Clone)]
struct Attached {
    qp: Arc<QpCore>,
    sends: bool,
    receives: bool,
}

impl Attached {
    fn has_something(&self) -> bool {
        self.qp.has_something(self.sends, self.receives)
    }
}

/// Anything else whose completions come to a completion queue: what datagram queue pairs are made of.
pub(crate) trait Source: Send + Sync {
    /// Delivers completions; called by the owner of the completion queue.
    fn poll(&self, wc: &mut [Wc]) -> usize;

    /// Delivers what [`CqCore::hold_back`] was called for.
    fn poll_failures(&self, _wc: &mut [Wc]) -> usize {
        0
    }

    /// Whether a poll may find something; called by the owner of the completion queue.
    fn has_something(&self) -> bool;

    /// Goes on with what peers have given, for an owner who sleeps; called by the service thread.
    fn look_after(&self) {}
}

/// What is at a bit of the readiness bitmap.
#[derive(Clone)]
enum Place {
    Free,
    Reserved,
    Connected(Attached),
    Source(Arc<dyn Source>),
}

/// So many completions of others may keep failures waiting: enough for what peers did before they died, and no more,
/// however busy the others are.
const OVERTAKING_MAX: usize = 1024;

impl CqCore {
    pub(crate) fn new(id: u32, channel: Option<&Channel>) -> Result<Arc<Self>> {
        let segment = Segment::create("farcall-cq", LEN_BYTES)?;
        let core = Arc::new(Self {
            id,
            readiness: Readiness::create(segment.memory()),
            segment,
            waker: channel.map(|channel| channel.waker().clone()),
            expects_event: AtomicBool::new(false),
            unclaimed_event: AtomicBool::new(false),
            holds_back: AtomicBool::new(false),
            attached: Mutex::default(),
            epoch: AtomicU64::new(0),
            born: Born::here(),
        });
        let weak: Weak<Self> = Arc::downgrade(&core);
        fork::add_queue(weak);
        if let Some(channel) = channel {
            channel.attach(&core);
        }
        Ok(core)
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn segment_fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    pub(crate) fn waker_fd(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().map(|waker| waker.fd())
    }

    /// Reserves a bit, to be attached or detached.
    pub(crate) fn reserve_bit(&self) -> Result<u32> {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let free = attached.iter().position(|place| matches!(place, Place::Free)).unwrap_or(attached.len());
        if free >= MAX_BITS {
            return Err(Error::Exhausted {
                operation: "create a queue pair",
                what: "places at its completion queue",
                limit: MAX_BITS as u64,
                remedy: "use another completion queue",
            });
        }
        if free == attached.len() {
            attached.push(Place::Free);
        }
        attached[free] = Place::Reserved;
        Ok(free as u32)
    }

    /// Puts a connected queue pair at a reserved bit.
    pub(crate) fn attach(&self, bit: u32, qp: &Arc<QpCore>, sends: bool, receives: bool) {
        self.put(bit, Place::Connected(Attached { qp: qp.clone(), sends, receives }));
    }

    /// Puts anything else at a reserved bit.
    pub(crate) fn attach_source(&self, bit: u32, source: Arc<dyn Source>) {
        self.put(bit, Place::Source(source));
    }

    fn put(&self, bit: u32, place: Place) {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached[bit as usize] = place;
        self.readiness.promise(bit);
        self.epoch.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn detach(&self, bit: u32) {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached[bit as usize] = Place::Free;
        while attached.last().is_some_and(|place| matches!(place, Place::Free)) {
            attached.pop();
        }
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// A producer of this process published something for `bit`.
    #[inline]
    pub(crate) fn announce(&self, bit: u32, solicited: bool) {
        self.readiness.announce(bit, solicited, || self.wake());
    }

    /// A producer of this process, or another, published something for `bit`; `is_due` while it was not taken.
    pub(crate) fn announce_due(&self, bit: u32, solicited: bool, is_due: impl Fn() -> bool) {
        self.readiness.announce_due(bit, solicited, is_due, || self.wake());
    }

    pub(crate) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    #[cold]
    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// A pair in error has failures for when there is nothing else.
    pub(crate) fn hold_back(&self) {
        self.holds_back.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn holds_back(&self) -> bool {
        self.holds_back.load(Ordering::Relaxed)
    }

    /// Failures come when a poll finds nothing else. A program that ends when it has the successes never meets those that
    /// the end of its peer caused; one that takes a poll not filled for the last (ibv_poll_cq(3)) has an event for them.
    #[cold]
    fn tell_failures(&self) {
        // Failures count as solicited (IBA 11.4.2.2).
        self.readiness.fire_if_armed(true, || self.wake());
    }

    /// Whether a poll that found nothing else asks for failures. Only the owner's polls set it and take it.
    #[inline]
    fn takes_held_back(&self) -> bool {
        self.holds_back.load(Ordering::Relaxed) && self.holds_back.swap(false, Ordering::Relaxed)
    }

    /// Whether there is something to look after.
    pub(crate) fn is_nudged(&self) -> bool {
        self.readiness.is_nudged()
    }

    /// Goes on with what peers have given to an owner who sleeps; what completes makes his event. For the service thread.
    pub(crate) fn look_after(&self) {
        self.readiness.take_nudges(|bit| {
            let attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
            let place = attached.get(bit as usize).cloned();
            drop(attached);
            match place {
                Some(Place::Connected(pair)) => pair.qp.look_after_sends(),
                Some(Place::Source(source)) => source.look_after(),
                _ => {}
            }
        });
    }

    /// Whether an event is waiting to be taken from the channel.
    pub(crate) fn has_fired(&self) -> bool {
        self.unclaimed_event.load(Ordering::Acquire)
            || (self.expects_event.load(Ordering::Acquire) && !self.readiness.is_armed())
    }

    /// The event was taken; if there was one from before it was armed again, that one.
    pub(crate) fn acknowledge(&self) {
        if !self.unclaimed_event.swap(false, Ordering::AcqRel) {
            self.expects_event.store(false, Ordering::Release);
        }
    }
}

impl Orphan for CqCore {
    fn orphan(&self) {
        // Whoever polls looks at the list again, and finds whose it is.
        self.epoch.fetch_add(1 << 32, Ordering::Relaxed);
    }
}

/// The owner's handle.
pub(crate) struct Cq {
    core: Arc<CqCore>,
    epoch: u64,
    /// What is attached: the connected pairs among it, which are most of it, and the rest.
    entries: Vec<Option<Attached>>,
    sources: Vec<Option<Arc<dyn Source>>>,
    /// Queue pairs that had completions since promises were last withdrawn.
    active: Vec<u64>,
    /// Where the next poll begins, for fairness.
    start: usize,
    /// Looks at pairs that had nothing, in this poll, and wasted since promises were last withdrawn.
    looks: u32,
    fruitless: u32,
    /// Room for a withdrawal.
    withdrawn: Vec<u64>,
    /// Completions that were taken while failures were held back.
    overtaking: usize,
}

impl Cq {
    pub(crate) fn new(core: Arc<CqCore>) -> Self {
        Self {
            core,
            epoch: u64::MAX,
            entries: Vec::new(),
            sources: Vec::new(),
            active: Vec::new(),
            start: 0,
            looks: 0,
            fruitless: 0,
            withdrawn: Vec::new(),
            overtaking: 0,
        }
    }

    pub(crate) fn core(&self) -> &Arc<CqCore> {
        &self.core
    }

    fn name(&self) -> String {
        format!("completion queue {}", self.core.id)
    }

    #[cold]
    fn refresh(&mut self) -> Result<()> {
        self.core.born.require_here("poll_cq", &self.name())?;
        let attached = self.core.attached.lock().unwrap_or_else(PoisonError::into_inner);
        self.epoch = self.core.epoch.load(Ordering::Acquire);
        self.entries.clear();
        self.sources.clear();
        self.active.resize(attached.len().div_ceil(64), 0);
        self.withdrawn.resize(self.active.len(), 0);
        for (at, place) in attached.iter().enumerate() {
            let (pair, source) = match place {
                Place::Free | Place::Reserved => (None, None),
                Place::Connected(pair) => (Some(pair.clone()), None),
                Place::Source(source) => (None, Some(source.clone())),
            };
            // A poll under way when it was attached may have withdrawn its bit without knowing it.
            if pair.is_some() || source.is_some() {
                self.core.readiness.promise(at as u32);
            }
            self.entries.push(pair);
            self.sources.push(source);
        }
        self.start = 0;
        Ok(())
    }

    /// Polls the queue pairs of one bitmap word whose index is in `among`. Returns how many completions there were.
    #[inline]
    fn poll_word(&mut self, word: usize, among: u64, wc: &mut [Wc]) -> usize {
        let mut bits = self.core.readiness.bits(word) & among;
        let mut taken = 0;
        while bits != 0 && taken < wc.len() {
            let bit = bits.trailing_zeros();
            bits &= bits - 1;
            let at = word * 64 + bit as usize;
            if let Some(Some(next)) = self.entries.get(word * 64 + bits.trailing_zeros() as usize) {
                next.qp.prefetch_for_poll();
            }
            let got = match self.entries.get(at) {
                Some(Some(entry)) => entry.qp.poll(entry.sends, entry.receives, &mut wc[taken..]),
                _ => self.poll_source(at, &mut wc[taken..]),
            };
            if got > 0 {
                self.active[word] |= 1 << bit;
                taken += got;
                self.start = at + 1;
            } else {
                self.looks += 1;
            }
        }
        taken
    }

    /// Failures of pairs in error, now that no pair has anything else.
    #[cold]
    fn poll_failures(&self, wc: &mut [Wc]) -> usize {
        let mut taken = 0;
        for (pair, source) in self.entries.iter().zip(&self.sources) {
            if taken == wc.len() {
                break;
            }
            taken += match (pair, source) {
                (Some(entry), _) => entry.qp.poll_failures(entry.sends, entry.receives, &mut wc[taken..]),
                (_, Some(source)) => source.poll_failures(&mut wc[taken..]),
                _ => 0,
            };
        }
        taken
    }

    #[inline(never)]
    fn poll_source(&self, at: usize, wc: &mut [Wc]) -> usize {
        match self.sources.get(at) {
            Some(Some(source)) => source.poll(wc),
            _ => 0,
        }
    }

    /// Takes back promises to look at pairs that were quiet, so that a poll of a large crowd costs a few words.
    #[cold]
    fn withdraw_quiet(&mut self) {
        let Self { core, entries, sources, active, withdrawn, .. } = self;
        core.readiness.withdraw_quiet(active, withdrawn, |bit| has_something(entries, sources, bit as usize));
    }
}

/// Whether a poll may find something at a bit.
fn has_something(pairs: &[Option<Attached>], sources: &[Option<Arc<dyn Source>>], at: usize) -> bool {
    match (pairs.get(at), sources.get(at)) {
        (Some(Some(pair)), _) => pair.has_something(),
        (_, Some(Some(source))) => source.has_something(),
        _ => false,
    }
}

impl RawCq for Cq {
    fn id(&self) -> u32 {
        self.core.id
    }

    #[inline]
    fn poll(&mut self, wc: &mut [Wc]) -> Result<usize> {
        if self.core.epoch.load(Ordering::Acquire) != self.epoch {
            self.refresh()?;
        }
        let words = self.active.len();
        if words == 0 || wc.is_empty() {
            return Ok(0);
        }
        // From `start` to the end of its word, the other words in turn, then the beginning of the first again.
        if self.start >= self.entries.len() {
            self.start = 0;
        }
        let (first, later) = (self.start / 64, !0 << (self.start % 64));
        let mut taken = 0;
        if self.overtaking >= OVERTAKING_MAX {
            self.overtaking = 0;
            taken = self.poll_failures(wc);
        }
        taken += self.poll_word(first, later, &mut wc[taken..]);
        for word in (first + 1..words).chain(0..first) {
            if self.core.readiness.bits(word) != 0 {
                taken += self.poll_word(word, !0, &mut wc[taken..]);
            }
        }
        if later != !0 {
            taken += self.poll_word(first, !later, &mut wc[taken..]);
        }
        if taken > 0 {
            if self.core.holds_back() {
                self.overtaking += taken;
                self.core.tell_failures();
            }
        } else if self.core.takes_held_back() {
            self.overtaking = 0;
            taken = self.poll_failures(wc);
        }
        let looks = std::mem::take(&mut self.looks);
        if looks > ALWAYS_SCANNED {
            self.fruitless += looks;
            if self.fruitless >= FRUITLESS_MAX {
                self.fruitless = 0;
                self.withdraw_quiet();
            }
        }
        Ok(taken)
    }

    fn req_notify(&mut self, notify: Notify) -> Result<()> {
        if self.core.waker.is_none() {
            return Err(Error::InvalidState {
                operation: "req_notify_cq",
                object: format!("completion queue {}", self.core.id),
                state: "without a completion channel".into(),
                remedy: "create it with a channel",
            });
        }
        self.core.born.require_here("req_notify_cq", &self.name())?;
        let was_expected = self.core.expects_event.swap(true, Ordering::AcqRel);
        if !self.core.readiness.arm(notify == Notify::Solicited) && was_expected {
            self.core.unclaimed_event.store(true, Ordering::Release);
        }
        // Again: another thread may have taken the last event between the two.
        self.core.expects_event.store(true, Ordering::Release);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
