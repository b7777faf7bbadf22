//! Readiness of a completion queue: a bitmap that says where to look, and a word that says that its owner sleeps.
//!
//! A set bit is a promise of the owner to look at that queue pair; a producer that finds it set leaves the line alone.
//! The owner clears bits only of pairs that have been quiet, and scans once more after it did. Both the bit and the
//! sleep word cross with the producer's publication (Dekker), so the producer pays a light fence and the owner a heavy
//! one. All of it is a hint: a wrong bit costs a look, a wrong wake-up a turn of the loop.
//!
//! An event is owed for completions only. Who gives what is none by itself (something that a request has waited for, a
//! message whose receive is found at the owner) makes none: it *nudges* the owner's service thread, which goes on with
//! it if the owner sleeps; what that completes makes the event.

use crate::SharedMem;
use crate::fence;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const MAGIC: u64 = u64::from_le_bytes(*b"farccq03");
const AT_MAGIC: usize = 0;
const ARMED: usize = 64;
const NUDGE: usize = 72;
const BITS: usize = 128;
/// Which queue pairs the owner was nudged for. (Models have few words.)
const NUDGED: usize = BITS + if cfg!(loom) { 8 } else { MAX_BITS / 8 };

/// Queue pairs that can be attached to one completion queue: as many as its segment has bits for in a page, and more
/// than a process has mappings for.
pub const MAX_BITS: usize = 15_872;

// What the owner writes to sleep lies apart from what producers set with messages, and that from the nudges.
const _: () = assert!(ARMED / 64 == NUDGE / 64 && ARMED / 64 != BITS / 64 && BITS.is_multiple_of(64));
const _: () = assert!(cfg!(loom) || NUDGED.is_multiple_of(64) && LEN_BYTES == 4_096);

/// Bytes of a completion queue's segment.
pub const LEN_BYTES: usize = BITS + 2 * (MAX_BITS / 8);

// The sleep word: its low bits say what its owner waits for, the rest counts how often it was armed, so that a producer
// that was stopped in between cannot take a later sleep for the one it knew.
const IDLE: u64 = 0;
const ARMED_ANY: u64 = 1;
const ARMED_SOLICITED: u64 = 2;
/// A producer has taken the duty to wake and has not done so yet. It may be stopped there for ever: whoever else comes
/// meanwhile wakes too.
const FIRING: u64 = 3;
const WHAT: u64 = 3;

// The nudge: its low bits say how far it has come, the rest counts, so that a producer that was stopped in between
// does not finish another's.
const DELIVERING: u64 = 1;
/// The service thread's descriptor was written to, and it has not looked yet.
const DELIVERED: u64 = 2;

/// One side's view of a completion queue's readiness segment.
#[derive(Clone)]
pub struct Readiness {
    mem: SharedMem,
}

impl Readiness {
    /// Makes zeroed memory of [`LEN_BYTES`] a readiness segment.
    pub fn create(mem: SharedMem) -> Self {
        mem.store(AT_MAGIC, MAGIC, Release);
        Self { mem }
    }

    /// A peer's segment, if it is one.
    pub fn open(mem: SharedMem) -> Option<Self> {
        (mem.len_bytes() >= LEN_BYTES && mem.load(AT_MAGIC, Relaxed) == MAGIC).then_some(Self { mem })
    }

    const fn place(bit: u32) -> (usize, u64) {
        (BITS + (bit / 64) as usize * 8, 1 << (bit % 64))
    }

    /// Producer, after publishing: sets the bit and wakes the owner if it sleeps.
    #[inline]
    pub fn announce(&self, bit: u32, solicited: bool, wake: impl FnOnce()) {
        self.set_bit(bit);
        self.fire_if_armed(solicited, wake);
    }

    /// After publishing, or leaving something behind.
    #[inline]
    fn set_bit(&self, bit: u32) {
        fence::light();
        let (word, mask) = Self::place(bit);
        if self.mem.load(word, Relaxed) & mask == 0 {
            self.mem.fetch_or(word, mask, Release);
            // An owner that arms now must see the bit, or we that it sleeps: the setting of the bit crosses too.
            fence::light();
        }
    }

    /// As `announce`, of something that others announce, too: an owner that has taken it and sleeps anew, when
    /// `is_due` says false, is owed no event.
    pub fn announce_due(&self, bit: u32, solicited: bool, is_due: impl Fn() -> bool, wake: impl FnOnce()) {
        if !self.keep(bit) {
            return;
        }
        let armed = self.mem.load(ARMED, Acquire);
        // What it has not taken now it takes in this round, if at all: in another, `armed` is not what stands there.
        if armed & WHAT != IDLE && is_due() {
            self.fire_round(armed, solicited, wake);
        }
    }

    /// Wakes the owner if it sleeps, whose bit is set.
    #[inline]
    pub fn fire_if_armed(&self, solicited: bool, wake: impl FnOnce()) {
        let armed = self.mem.load(ARMED, Relaxed);
        if armed & WHAT != IDLE {
            self.fire(armed, solicited, wake);
        }
    }

    /// Owner's side, after leaving something behind: sets the bit. Returns whether the owner sleeps.
    #[inline]
    pub fn keep(&self, bit: u32) -> bool {
        self.set_bit(bit);
        self.mem.load(ARMED, Relaxed) & WHAT != IDLE
    }

    /// Producer, after giving what is no completion: the owner looks at the bit, or if it sleeps its service thread
    /// does, which `wake` wakes.
    pub fn nudge(&self, bit: u32, wake: impl FnOnce()) {
        if !self.keep(bit) {
            return;
        }
        let (word, mask) = (NUDGED + (bit / 64) as usize * 8, 1 << (bit % 64));
        // Also where it is set: whoever clears it after this sees what was given.
        self.mem.fetch_or(word, mask, Release);
        fence::light();
        let mine = loop {
            let seen = self.mem.load(NUDGE, Relaxed);
            if seen & WHAT == DELIVERED {
                return;
            }
            // Also where another delivers, who may be stopped at it for ever.
            let mine = ((seen & !WHAT) + WHAT + 1) | DELIVERING;
            if self.mem.compare_exchange(NUDGE, seen, mine) {
                break mine;
            }
        };
        wake();
        let _ = self.mem.compare_exchange(NUDGE, mine, (mine & !WHAT) | DELIVERED);
    }

    /// Owner: whether there are nudges to take.
    pub fn is_nudged(&self) -> bool {
        self.mem.load(NUDGE, Acquire) & WHAT != 0
    }

    /// Owner, after it made the service thread's descriptor unreadable: tells `look` what it was nudged for. Whatever
    /// was given before is found by these looks; what is given after them wakes again.
    pub fn take_nudges(&self, mut look: impl FnMut(u32)) {
        loop {
            let seen = self.mem.load(NUDGE, Relaxed);
            if seen & WHAT == 0 {
                return;
            }
            if self.mem.compare_exchange(NUDGE, seen, seen & !WHAT) {
                break;
            }
        }
        // Whoever still takes the nudge for delivered has set its bit. (In the models the producer's fence is a full
        // one.)
        fence::heavy();
        let words = if cfg!(loom) { 1 } else { MAX_BITS / 64 };
        for index in 0..words {
            let at = NUDGED + index * 8;
            if self.mem.load(at, Relaxed) == 0 {
                continue;
            }
            let mut bits = self.mem.fetch_and(at, 0, AcqRel);
            while bits != 0 {
                look(index as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Wakes the owner of one round of sleep only.
    fn fire_round(&self, armed: u64, solicited: bool, wake: impl FnOnce()) {
        let is_meant = match armed & WHAT {
            FIRING => true,
            ARMED_ANY => self.mem.compare_exchange(ARMED, armed, armed | FIRING),
            _ => solicited && self.mem.compare_exchange(ARMED, armed, armed | FIRING),
        };
        if is_meant {
            wake();
            let _ = self.mem.compare_exchange(ARMED, armed | FIRING, (armed | FIRING) & !WHAT);
        }
    }

    #[cold]
    fn fire(&self, mut armed: u64, solicited: bool, wake: impl FnOnce()) {
        let firing = loop {
            match armed & WHAT {
                FIRING => break armed,
                ARMED_ANY | ARMED_SOLICITED if armed & WHAT == ARMED_ANY || solicited => {
                    if self.mem.compare_exchange(ARMED, armed, armed | FIRING) {
                        break armed | FIRING;
                    }
                }
                _ => return,
            }
            armed = self.mem.load(ARMED, Relaxed);
        };
        wake();
        // Only now may others rely on it. If it fails, another has done it, or the owner has armed anew.
        let _ = self.mem.compare_exchange(ARMED, firing, firing & !WHAT);
    }

    /// Owner: asks to be woken. Whatever was published before is found by a scan after this call; whatever is published
    /// after it wakes. Returns whether it was armed still, that is, no producer had taken the duty to wake.
    pub fn arm(&self, solicited_only: bool) -> bool {
        let was_armed = loop {
            let armed = self.mem.load(ARMED, Relaxed);
            if solicited_only && armed & WHAT == ARMED_ANY {
                // Asked for any already: that holds until it comes (IBA 11.4.2.2).
                return true;
            }
            let round = (armed & !WHAT).wrapping_add(WHAT + 1);
            let what = if solicited_only { ARMED_SOLICITED } else { ARMED_ANY };
            if self.mem.compare_exchange(ARMED, armed, round | what) {
                break matches!(armed & WHAT, ARMED_ANY | ARMED_SOLICITED);
            }
        };
        fence::heavy();
        was_armed
    }

    /// Owner: whether it is still armed, that is, no producer has taken the duty to wake it.
    pub fn is_armed(&self) -> bool {
        matches!(self.mem.load(ARMED, Acquire) & WHAT, ARMED_ANY | ARMED_SOLICITED)
    }

    /// The owner's process: 64 bits beginning at `64 * index`.
    #[inline]
    pub fn bits(&self, index: usize) -> u64 {
        self.mem.load(BITS + index * 8, Acquire)
    }

    /// Owner: promises to look at this pair.
    pub fn promise(&self, bit: u32) {
        let (word, mask) = Self::place(bit);
        self.mem.fetch_or(word, mask, AcqRel);
    }

    /// Owner: takes back the promises of all pairs that are not `active`, and clears that; promises anew to look at
    /// those that `has_something` says a producer has given something meanwhile. `withdrawn` is room for as many
    /// words.
    pub fn withdraw_quiet(
        &self,
        active: &mut [u64],
        withdrawn: &mut [u64],
        has_something: impl Fn(u32) -> bool,
    ) {
        for (index, (active, withdrawn)) in active.iter_mut().zip(&mut *withdrawn).enumerate() {
            *withdrawn = self.bits(index) & !std::mem::take(active);
            if *withdrawn != 0 {
                self.mem.fetch_and(BITS + index * 8, !*withdrawn, AcqRel);
            }
        }
        if withdrawn.iter().all(|mask| *mask == 0) {
            return;
        }
        // A producer that found its bit still set is seen by the look below; any other sets it.
        fence::heavy();
        for (index, mut mask) in withdrawn.iter().copied().enumerate() {
            while mask != 0 {
                let bit = index as u32 * 64 + mask.trailing_zeros();
                mask &= mask - 1;
                if has_something(bit) {
                    self.promise(bit);
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! That these models can fail was tried by hand: without the fence after the bit is set, without `fence::heavy` in
    //! `arm` or in `withdraw_quiet`, without the look after it, with `fire` going to IDLE before it wakes, with a
    //! nudge told as delivered before it is, or as another's, the model for it fails.

    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64};

    /// A producer's publication, the event descriptor, and the readiness between them.
    struct Scene {
        readiness: Readiness,
        published: [AtomicU64; 2],
        event: AtomicBool,
    }

    impl Scene {
        fn new() -> Arc<Self> {
            let readiness = Readiness::create(SharedMem::model(NUDGED + 8));
            Arc::new(Self {
                readiness,
                published: [AtomicU64::new(0), AtomicU64::new(0)],
                event: AtomicBool::new(false),
            })
        }

        fn publish(&self, bit: u32) {
            self.published[bit as usize].store(1, Release);
            self.readiness.announce(bit, false, || self.event.store(true, Release));
        }

        /// Something that is no completion.
        fn give(&self, bit: u32) {
            self.published[bit as usize].store(1, Release);
            self.readiness.nudge(bit, || self.event.store(true, Release));
        }

        /// Who sleeps looks only if the event descriptor is readable.
        fn sleeper_looks(&self, seen: &mut [bool; 2]) {
            // Not a swap: loom may order a failed one after what it did not see.
            if self.event.compare_exchange(true, false, AcqRel, Relaxed).is_ok() {
                self.readiness.take_nudges(|bit| {
                    seen[bit as usize] |= self.published[bit as usize].load(Acquire) != 0;
                });
            }
        }

        fn sees(&self, bit: u32) -> bool {
            self.readiness.bits(0) & 1 << bit != 0 && self.published[bit as usize].load(Acquire) != 0
        }
    }

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    #[test]
    fn no_wake_up_is_lost_between_the_last_scan_and_the_sleep() {
        check(|| {
            let scene = Scene::new();
            let producer = {
                let scene = scene.clone();
                loom::thread::spawn(move || scene.publish(0))
            };
            scene.readiness.arm(false);
            let seen = scene.sees(0);
            producer.join().unwrap();
            assert!(seen || scene.event.load(Acquire), "the owner sleeps and nobody wakes it");
        });
    }

    #[test]
    fn a_withdrawn_promise_loses_nothing() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.promise(0);
            let producer = {
                let scene = scene.clone();
                loom::thread::spawn(move || scene.publish(0))
            };
            let has_something = |bit: u32| scene.published[bit as usize].load(Acquire) != 0;
            scene.readiness.withdraw_quiet(&mut [0], &mut [0], has_something);
            producer.join().unwrap();
            assert!(scene.sees(0), "published, and no bit says so");
        });
    }

    /// A producer takes the duty to wake and is stopped there for ever: the other's message still wakes.
    #[test]
    fn a_producer_stopped_inside_its_duty_does_not_silence_others() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.arm(false);
            let stopped = {
                let scene = scene.clone();
                loom::thread::spawn(move || {
                    scene.published[1].store(1, Release);
                    // Stops inside `wake`: the closure never returns, so what follows it never happens.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        scene.readiness.announce(1, false, || std::panic::resume_unwind(Box::new(())));
                    }));
                })
            };
            scene.publish(0);
            stopped.join().unwrap();
            assert!(scene.event.load(Acquire), "a stopped producer silenced another");
        });
    }

    /// The owner sleeps, is woken, looks, and sleeps again while two give.
    #[test]
    fn no_nudge_is_lost_between_a_look_and_the_next_sleep() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.arm(false);
            let givers = [0, 1].map(|bit| {
                let scene = scene.clone();
                loom::thread::spawn(move || scene.give(bit))
            });
            let mut seen = [false; 2];
            scene.sleeper_looks(&mut seen);
            for giver in givers {
                giver.join().unwrap();
            }
            scene.sleeper_looks(&mut seen);
            assert_eq!(seen, [true; 2], "given, and the owner sleeps");
            assert!(scene.readiness.is_armed(), "a nudge is no event");
        });
    }

    /// A producer goes on after its nudge was taken and another's begun, and stopped: it does not finish that one.
    #[test]
    fn a_nudge_of_another_is_not_finished() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.arm(false);
            scene.readiness.nudge(0, || {
                scene.readiness.take_nudges(|_| {});
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    scene.readiness.nudge(1, || std::panic::resume_unwind(Box::new(())));
                }));
            });
            scene.give(0);
            assert!(scene.event.load(Acquire), "a nudge that was not delivered silenced another");
        });
    }

    /// What others announce, too, makes one event: its owner has taken it when it sleeps anew.
    #[test]
    fn what_was_taken_meanwhile_is_no_second_event() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.arm(false);
            let announce = |is_due: bool| {
                scene.readiness.announce_due(0, false, || is_due, || scene.event.store(true, Release));
            };
            announce(false);
            assert!(!scene.event.load(Acquire) && scene.readiness.is_armed());
            announce(true);
            assert!(scene.event.load(Acquire) && !scene.readiness.is_armed());
        });
    }

    /// A producer that is stopped before it has woken the owner does not silence another.
    #[test]
    fn a_producer_stopped_inside_a_nudge_does_not_silence_others() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.arm(false);
            let stopped = {
                let scene = scene.clone();
                loom::thread::spawn(move || {
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        scene.readiness.nudge(1, || std::panic::resume_unwind(Box::new(())));
                    }));
                })
            };
            let mut seen = [false; 2];
            scene.sleeper_looks(&mut seen);
            scene.give(0);
            stopped.join().unwrap();
            scene.sleeper_looks(&mut seen);
            assert!(seen[0], "a stopped producer silenced another");
        });
    }

    #[test]
    fn a_solicited_sleep_ignores_other_messages_and_a_new_round_is_not_the_old_one() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.arm(true);
            scene.publish(0);
            assert!(!scene.event.load(Acquire) && scene.readiness.is_armed());
            scene.readiness.announce(0, true, || {
                scene.event.store(true, Release);
                // The owner wakes and sleeps again before the producer goes on.
                scene.readiness.arm(false);
            });
            assert!(
                scene.event.load(Acquire) && scene.readiness.is_armed(),
                "the second sleep was taken away"
            );
        });
    }
}
