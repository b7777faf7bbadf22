//! Readiness of a completion queue: a bitmap of the queue pairs to poll, and a control word that indicates whether the
//! application thread (the owner) sleeps.
//!
//! A set bit means that the owner will poll that queue pair; a producer that finds the bit set does not write to the
//! cache line. The owner clears only bits of queue pairs that have been idle, and scans once more afterwards. Bits and
//! sleep word form a Dekker protocol with the producer's publication: the producer pays a light fence and the owner a
//! heavy one. Both are hints: a wrong bit costs an empty poll, a wrong wake-up costs one driver iteration.
//!
//! Only completions raise an event. A producer that delivers other data (credit for a waiting request, a message that
//! the receiver must match) requests service from the owner's service thread ([`Readiness::request_service`]). If the
//! owner sleeps, the service thread processes the delivery, and the resulting completion raises the event.

use crate::SharedMem;
use crate::fence;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const MAGIC: u64 = u64::from_le_bytes(*b"farccq03");
const AT_MAGIC: usize = 0;
const ARMED: usize = 64;
const SERVICE: usize = 72;
const BITS: usize = 128;
/// Bitmap of the queue pairs for which service was requested. (Models have few words.)
const SERVICE_BITS: usize = BITS + if cfg!(loom) { 8 } else { MAX_BITS / 8 };

/// Maximum number of queue pairs that can be attached to one completion queue: as many bits as fit into its segment of
/// one page. A process cannot have that many mappings.
pub const MAX_BITS: usize = 15_872;

// The cache line that the owner writes before it sleeps is separate from the bits that producers set with messages, and
// those are separate from the service requests.
const _: () = assert!(ARMED / 64 == SERVICE / 64 && ARMED / 64 != BITS / 64 && BITS.is_multiple_of(64));
const _: () = assert!(cfg!(loom) || SERVICE_BITS.is_multiple_of(64) && LEN_BYTES == 4_096);

/// Length of a completion queue's segment in bytes.
pub const LEN_BYTES: usize = BITS + 2 * (MAX_BITS / 8);

// The sleep word. Its low bits contain the kind of completion that the owner waits for. The rest counts how often it
// was armed, so that a producer that was stopped in between cannot mistake a later sleep for an earlier one.
const IDLE: u64 = 0;
const ARMED_ANY: u64 = 1;
const ARMED_SOLICITED: u64 = 2;
/// A producer has undertaken to wake the owner and has not done so yet. It may be stopped there forever, so other
/// producers wake the owner too in the meantime.
const WAKING: u64 = 3;
const STATE_MASK: u64 = 3;

// The service request. Its low bits contain its progress. The rest is a counter, so that a producer that was stopped in
// between does not finish the request of another one.
const DELIVERING: u64 = 1;
/// The service thread's descriptor was written to, and the service thread has not polled since.
const DELIVERED: u64 = 2;

/// One process's view of a completion queue's readiness segment.
#[derive(Clone)]
pub struct Readiness {
    mem: SharedMem,
}

impl Readiness {
    /// Initialises zeroed memory of [`LEN_BYTES`] as a readiness segment.
    pub fn create(mem: SharedMem) -> Self {
        mem.store(AT_MAGIC, MAGIC, Release);
        Self { mem }
    }

    /// Opens a peer's segment; `None` if it is not a readiness segment.
    pub fn open(mem: SharedMem) -> Option<Self> {
        (mem.len_bytes() >= LEN_BYTES && mem.load(AT_MAGIC, Relaxed) == MAGIC).then_some(Self { mem })
    }

    const fn bit_position(bit: u32) -> (usize, u64) {
        (BITS + (bit / 64) as usize * 8, 1 << (bit % 64))
    }

    /// Producer, after publishing a completion: sets the bit and wakes the owner if it sleeps.
    #[inline]
    pub fn announce(&self, bit: u32, solicited: bool, wake: impl FnOnce()) {
        self.set_bit(bit);
        self.wake_if_armed(solicited, wake);
    }

    /// Sets the bit, after publishing or leaving work behind.
    #[inline]
    fn set_bit(&self, bit: u32) {
        fence::light();
        let (word, mask) = Self::bit_position(bit);
        if self.mem.load(word, Relaxed) & mask == 0 {
            self.mem.fetch_or(word, mask, Release);
            // Second Dekker pair: an owner that arms now sees the bit, or this thread sees that the owner sleeps.
            fence::light();
        }
    }

    /// Like `announce`, for a completion that other threads announce too. If the owner has consumed it and sleeps
    /// again, `is_due` returns false and no event is raised.
    pub fn announce_due(&self, bit: u32, solicited: bool, is_due: impl Fn() -> bool, wake: impl FnOnce()) {
        if !self.keep(bit) {
            return;
        }
        let armed = self.mem.load(ARMED, Acquire);
        // If the owner has not consumed it yet, it does so before it arms again, if at all: once it has armed again,
        // the sleep word differs from `armed`.
        if armed & STATE_MASK != IDLE && is_due() {
            self.wake_once(armed, solicited, wake);
        }
    }

    /// Wakes the owner if it sleeps. The bit must be set already.
    #[inline]
    pub fn wake_if_armed(&self, solicited: bool, wake: impl FnOnce()) {
        let armed = self.mem.load(ARMED, Relaxed);
        if armed & STATE_MASK != IDLE {
            self.wake_owner(armed, solicited, wake);
        }
    }

    /// Owner's process, after leaving work behind: sets the bit. Returns whether the owner sleeps.
    #[inline]
    pub fn keep(&self, bit: u32) -> bool {
        self.set_bit(bit);
        self.mem.load(ARMED, Relaxed) & STATE_MASK != IDLE
    }

    /// Producer, after a delivery that is not a completion: requests service. The owner polls the bit, or if it sleeps,
    /// its service thread does, which `wake` wakes.
    pub fn request_service(&self, bit: u32, wake: impl FnOnce()) {
        if !self.keep(bit) {
            return;
        }
        let (word, mask) = (SERVICE_BITS + (bit / 64) as usize * 8, 1 << (bit % 64));
        // Also if the bit is set: a thread that clears it after this operation sees the delivery.
        self.mem.fetch_or(word, mask, Release);
        fence::light();
        let mine = loop {
            let seen = self.mem.load(SERVICE, Relaxed);
            if seen & STATE_MASK == DELIVERED {
                return;
            }
            // Also if another producer is delivering, because it may be stopped there forever.
            let mine = ((seen & !STATE_MASK) + STATE_MASK + 1) | DELIVERING;
            if self.mem.compare_exchange(SERVICE, seen, mine) {
                break mine;
            }
        };
        wake();
        let _ = self.mem.compare_exchange(SERVICE, mine, (mine & !STATE_MASK) | DELIVERED);
    }

    /// Owner's process: returns whether there are service requests.
    pub fn has_service_request(&self) -> bool {
        self.mem.load(SERVICE, Acquire) & STATE_MASK != 0
    }

    /// Owner's process, after it made the service thread's descriptor unreadable: calls `poll` with the bit of each
    /// service request. These calls find all earlier deliveries; later deliveries wake the service thread again.
    pub fn take_service_requests(&self, mut poll: impl FnMut(u32)) {
        loop {
            let seen = self.mem.load(SERVICE, Relaxed);
            if seen & STATE_MASK == 0 {
                return;
            }
            if self.mem.compare_exchange(SERVICE, seen, seen & !STATE_MASK) {
                break;
            }
        }
        // Pairs with the fence of `request_service`: a producer that still reads DELIVERED has set its bit before. (In
        // the models the producer's fence is a full one.)
        fence::heavy();
        let words = if cfg!(loom) { 1 } else { MAX_BITS / 64 };
        for index in 0..words {
            let at = SERVICE_BITS + index * 8;
            if self.mem.load(at, Relaxed) == 0 {
                continue;
            }
            let mut bits = self.mem.fetch_and(at, 0, AcqRel);
            while bits != 0 {
                poll(index as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Wakes the owner only if it still is in the sleep that `armed` describes.
    fn wake_once(&self, armed: u64, solicited: bool, wake: impl FnOnce()) {
        let is_meant = match armed & STATE_MASK {
            WAKING => true,
            ARMED_ANY => self.mem.compare_exchange(ARMED, armed, armed | WAKING),
            _ => solicited && self.mem.compare_exchange(ARMED, armed, armed | WAKING),
        };
        if is_meant {
            wake();
            let _ = self.mem.compare_exchange(ARMED, armed | WAKING, (armed | WAKING) & !STATE_MASK);
        }
    }

    #[cold]
    fn wake_owner(&self, mut armed: u64, solicited: bool, wake: impl FnOnce()) {
        let waking = loop {
            match armed & STATE_MASK {
                WAKING => break armed,
                ARMED_ANY | ARMED_SOLICITED if armed & STATE_MASK == ARMED_ANY || solicited => {
                    if self.mem.compare_exchange(ARMED, armed, armed | WAKING) {
                        break armed | WAKING;
                    }
                }
                _ => return,
            }
            armed = self.mem.load(ARMED, Relaxed);
        };
        wake();
        // Only after the wake-up may other producers rely on it. If the exchange fails, another producer has done it,
        // or the owner has armed again.
        let _ = self.mem.compare_exchange(ARMED, waking, waking & !STATE_MASK);
    }

    /// Owner: requests a wake-up. A scan after this call finds everything published before it; everything published
    /// after it wakes the owner. Returns whether the queue was still armed, that is, no producer had undertaken to wake
    /// the owner.
    pub fn arm(&self, solicited_only: bool) -> bool {
        let was_armed = loop {
            let armed = self.mem.load(ARMED, Relaxed);
            if solicited_only && armed & STATE_MASK == ARMED_ANY {
                // A request for any completion remains in force until its event occurs (IBA 11.4.2.2).
                return true;
            }
            let round = (armed & !STATE_MASK).wrapping_add(STATE_MASK + 1);
            let what = if solicited_only { ARMED_SOLICITED } else { ARMED_ANY };
            if self.mem.compare_exchange(ARMED, armed, round | what) {
                break matches!(armed & STATE_MASK, ARMED_ANY | ARMED_SOLICITED);
            }
        };
        fence::heavy();
        was_armed
    }

    /// Owner: returns whether the queue is still armed, that is, no producer has undertaken to wake the owner.
    pub fn is_armed(&self) -> bool {
        matches!(self.mem.load(ARMED, Acquire) & STATE_MASK, ARMED_ANY | ARMED_SOLICITED)
    }

    /// Owner's process: returns the 64 bits that begin at bit `64 * index`.
    #[inline]
    pub fn bits(&self, index: usize) -> u64 {
        self.mem.load(BITS + index * 8, Acquire)
    }

    /// Owner: sets the bit, which means that it polls this queue pair.
    pub fn set_polled(&self, bit: u32) {
        let (word, mask) = Self::bit_position(bit);
        self.mem.fetch_or(word, mask, AcqRel);
    }

    /// Owner: clears the bits of all queue pairs that are not in `active`, and clears `active`. Sets a bit again if
    /// `may_have_completions` reports that a producer has delivered something in the meantime. `cleared` is scratch
    /// space of the same length.
    pub fn clear_idle(
        &self,
        active: &mut [u64],
        cleared: &mut [u64],
        may_have_completions: impl Fn(u32) -> bool,
    ) {
        for (index, (active, cleared)) in active.iter_mut().zip(&mut *cleared).enumerate() {
            *cleared = self.bits(index) & !std::mem::take(active);
            if *cleared != 0 {
                self.mem.fetch_and(BITS + index * 8, !*cleared, AcqRel);
            }
        }
        if cleared.iter().all(|mask| *mask == 0) {
            return;
        }
        // If a producer found its bit still set, the check below sees its delivery; otherwise the producer sets the
        // bit.
        fence::heavy();
        for (index, mut mask) in cleared.iter().copied().enumerate() {
            while mask != 0 {
                let bit = index as u32 * 64 + mask.trailing_zeros();
                mask &= mask - 1;
                if may_have_completions(bit) {
                    self.set_polled(bit);
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! Each of these models was checked to fail: without the fence after the bit is set, without `fence::heavy` in
    //! `arm` or in `clear_idle`, without the check after it, with `wake_owner` going to IDLE before it wakes, with a
    //! service request marked as delivered before it is, or with another producer's request marked.

    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64};

    /// A producer's publication, the event descriptor, and the readiness segment between them.
    struct Scene {
        readiness: Readiness,
        published: [AtomicU64; 2],
        event: AtomicBool,
    }

    impl Scene {
        fn new() -> Arc<Self> {
            let readiness = Readiness::create(SharedMem::model(SERVICE_BITS + 8));
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

        /// Delivers something that is not a completion.
        fn deliver(&self, bit: u32) {
            self.published[bit as usize].store(1, Release);
            self.readiness.request_service(bit, || self.event.store(true, Release));
        }

        /// The service thread polls only if the event descriptor is readable.
        fn service_thread_polls(&self, seen: &mut [bool; 2]) {
            // Not a swap: loom may order a failed one after a store that it did not see.
            if self.event.compare_exchange(true, false, AcqRel, Relaxed).is_ok() {
                self.readiness.take_service_requests(|bit| {
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
            assert!(seen || scene.event.load(Acquire), "the owner sleeps and no thread wakes it");
        });
    }

    #[test]
    fn clearing_idle_bits_loses_no_completion() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.set_polled(0);
            let producer = {
                let scene = scene.clone();
                loom::thread::spawn(move || scene.publish(0))
            };
            let may_have_completions = |bit: u32| scene.published[bit as usize].load(Acquire) != 0;
            scene.readiness.clear_idle(&mut [0], &mut [0], may_have_completions);
            producer.join().unwrap();
            assert!(scene.sees(0), "published, and no bit says so");
        });
    }

    /// A producer undertakes to wake the owner and is stopped there forever: another producer's message still wakes it.
    #[test]
    fn a_producer_stopped_inside_its_duty_does_not_silence_others() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.arm(false);
            let stopped = {
                let scene = scene.clone();
                loom::thread::spawn(move || {
                    scene.published[1].store(1, Release);
                    // Stops inside `wake`: the closure never returns, so the code after it never runs.
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

    /// The owner sleeps, is woken, polls, and sleeps again while two producers deliver.
    #[test]
    fn loses_no_service_request_between_a_poll_and_the_next_sleep() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.arm(false);
            let givers = [0, 1].map(|bit| {
                let scene = scene.clone();
                loom::thread::spawn(move || scene.deliver(bit))
            });
            let mut seen = [false; 2];
            scene.service_thread_polls(&mut seen);
            for giver in givers {
                giver.join().unwrap();
            }
            scene.service_thread_polls(&mut seen);
            assert_eq!(seen, [true; 2], "given, and the owner sleeps");
            assert!(scene.readiness.is_armed(), "a service request is no event");
        });
    }

    /// A producer continues after its service request was handled and another producer's has begun and stopped: it does
    /// not mark that one as delivered.
    #[test]
    fn does_not_finish_the_service_request_of_another() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.arm(false);
            scene.readiness.request_service(0, || {
                scene.readiness.take_service_requests(|_| {});
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    scene.readiness.request_service(1, || std::panic::resume_unwind(Box::new(())));
                }));
            });
            scene.deliver(0);
            assert!(scene.event.load(Acquire), "a service request that was not delivered silenced another");
        });
    }

    /// A completion that several threads announce raises one event: the owner has consumed it when it sleeps again.
    #[test]
    fn raises_no_second_event_for_a_consumed_completion() {
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

    /// A producer that is stopped before it has woken the service thread does not keep another one from doing so.
    #[test]
    fn a_producer_stopped_in_a_request_does_not_silence_others() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.arm(false);
            let stopped = {
                let scene = scene.clone();
                loom::thread::spawn(move || {
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        scene.readiness.request_service(1, || std::panic::resume_unwind(Box::new(())));
                    }));
                })
            };
            let mut seen = [false; 2];
            scene.service_thread_polls(&mut seen);
            scene.deliver(0);
            stopped.join().unwrap();
            scene.service_thread_polls(&mut seen);
            assert!(seen[0], "a stopped producer silenced another");
        });
    }

    #[test]
    fn ignores_unsolicited_messages_and_keeps_a_later_arming() {
        check(|| {
            let scene = Scene::new();
            scene.readiness.arm(true);
            scene.publish(0);
            assert!(!scene.event.load(Acquire) && scene.readiness.is_armed());
            scene.readiness.announce(0, true, || {
                scene.event.store(true, Release);
                // The owner wakes and sleeps again before the producer continues.
                scene.readiness.arm(false);
            });
            assert!(
                scene.event.load(Acquire) && scene.readiness.is_armed(),
                "the second sleep was taken away"
            );
        });
    }
}
