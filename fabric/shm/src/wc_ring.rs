//! Completions on their way from a queue pair's owner to its completion queue's: a private ring, one producer, one
//! consumer, who may be two threads.

use farcall_verbs::{Wc, WcOpcode, WcStatus};

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::cell::UnsafeCell;

/// All of it together: each side reads the other's index with every step anyway, so two lines would be two misses.
pub struct WcRing {
    head: AtomicU64,
    tail: AtomicU64,
    /// What was pushed before this is of an earlier life: it is never taken, and takes no place of the queue.
    forgotten: AtomicU64,
    /// Twice the capacity: as many again for those of the last life, until the consumer has passed them.
    slots: Box<[UnsafeCell<Ended>]>,
    qp_num: u32,
}

/// What a completion of a send says beside its queue pair, in a third of the memory: a ring goes round all of its
/// slots.
#[derive(Clone, Copy, Default)]
struct Ended {
    wr_id: u64,
    byte_len: u32,
    status: u8,
    opcode: u8,
}

// Four completions in a cache line; indices and slots' address in one, wherever it begins.
const _: () = assert!(size_of::<Ended>() == 16 && (cfg!(loom) || size_of::<WcRing>() <= 64));

impl Ended {
    #[inline]
    fn of(wc: &Wc) -> Self {
        let ended = Self {
            wr_id: wc.wr_id,
            byte_len: wc.byte_len,
            status: wc.status.0 as u8,
            opcode: wc.opcode.0 as u8,
        };
        debug_assert_eq!(ended.completion(wc.qp_num), *wc, "more than a completion of a send says");
        ended
    }

    #[inline]
    fn completion(self, qp_num: u32) -> Wc {
        let (opcode, status) = (WcOpcode(self.opcode.into()), WcStatus(self.status.into()));
        Wc { byte_len: self.byte_len, ..Wc::ended(self.wr_id, qp_num, opcode, status) }
    }
}

// SAFETY: a slot between head and tail belongs to the consumer, any other to the producer; the two indices hand slots
// over with release and acquire. `push` and `pop` name who may call them.
unsafe impl Sync for WcRing {}
// SAFETY: `Ended` is plain data.
unsafe impl Send for WcRing {}

impl WcRing {
    /// A ring of at least `capacity` completions of sends of queue pair `qp_num`.
    pub fn new(qp_num: u32, capacity: usize) -> Self {
        let count = 2 * capacity.next_power_of_two();
        let slots = (0..count).map(|_| UnsafeCell::new(Ended::default())).collect();
        Self { head: AtomicU64::new(0), tail: AtomicU64::new(0), forgotten: AtomicU64::new(0), slots, qp_num }
    }

    /// Completions not yet taken; exact for the producer as an upper bound.
    #[inline]
    pub fn len(&self) -> usize {
        let head = self.head.load(Acquire).max(self.forgotten.load(Relaxed));
        (self.tail.load(Relaxed) - head) as usize
    }

    /// Drops what was not taken. A consumer who never looks keeps it, from the second time on.
    ///
    /// # Safety
    /// As [`WcRing::push`].
    pub unsafe fn forget(&self) {
        let tail = self.tail.load(Relaxed);
        if tail - self.head.load(Acquire) <= self.slots.len() as u64 / 2 {
            self.forgotten.store(tail, Release);
        }
    }

    /// Where the consumer stands: past what was forgotten.
    #[inline]
    fn next(&self) -> u64 {
        self.head.load(Relaxed).max(self.forgotten.load(Acquire))
    }

    /// Adds the completion of a send.
    ///
    /// # Safety
    /// One thread at a time, and only if `len()` is below the capacity.
    #[inline]
    pub unsafe fn push(&self, wc: Wc) {
        let tail = self.tail.load(Relaxed);
        debug_assert!(self.len() < self.slots.len());
        // SAFETY: the slot is the producer's because the ring is not full, as the caller promises.
        self.slots[tail as usize & (self.slots.len() - 1)].with_mut(|slot| unsafe { *slot = Ended::of(&wc) });
        self.tail.store(tail + 1, Release);
    }

    /// Whether there is nothing to take.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let next = self.next();
        self.tail.load(Acquire) <= next
    }

    /// Takes the oldest completion.
    ///
    /// # Safety
    /// One thread at a time.
    #[inline]
    pub unsafe fn pop(&self) -> Option<Wc> {
        // SAFETY: the caller's promise.
        unsafe { self.pop_if(|_| true) }
    }

    /// Takes the oldest completion if it is such a one.
    ///
    /// # Safety
    /// One thread at a time.
    #[inline]
    pub unsafe fn pop_if(&self, is_such: impl Fn(&Wc) -> bool) -> Option<Wc> {
        let head = self.next();
        if self.tail.load(Acquire) == head {
            return None;
        }
        // SAFETY: the slot lies between head and tail, so it is the consumer's.
        let ended = self.slots[head as usize & (self.slots.len() - 1)].with(|slot| unsafe { *slot });
        let wc = ended.completion(self.qp_num);
        if !is_such(&wc) {
            return None;
        }
        self.head.store(head + 1, Release);
        Some(wc)
    }
}

#[cfg(all(test, not(loom)))]
mod forgetting {
    use super::*;

    /// A life's completions, pushed into all of its places.
    fn fill(ring: &WcRing, first: u64) {
        for wr_id in first..first + 2 {
            // SAFETY: the only producer, and there is room, as the test checks.
            unsafe { ring.push(Wc::ended(wr_id, 1, WcOpcode::SEND, WcStatus::SUCCESS)) };
        }
    }

    #[test]
    fn an_earlier_life_takes_no_place_and_is_not_taken() {
        let ring = WcRing::new(1, 2);
        for life in 0..5 {
            fill(&ring, 10 * life);
            assert_eq!(ring.len(), 2);
            // SAFETY: the only producer.
            unsafe { ring.forget() };
            assert!(ring.is_empty(), "life {life}");
            fill(&ring, 10 * life + 5);
            // SAFETY: the only consumer.
            let taken = [unsafe { ring.pop() }, unsafe { ring.pop() }, unsafe { ring.pop() }];
            assert_eq!(
                taken.map(|wc| wc.map(|wc| wc.wr_id)),
                [Some(10 * life + 5), Some(10 * life + 6), None]
            );
        }
    }

    #[test]
    fn a_consumer_who_never_looks_keeps_the_last() {
        let ring = WcRing::new(1, 2);
        for life in 0..2 {
            fill(&ring, 10 * life);
            // SAFETY: the only producer.
            unsafe { ring.forget() };
        }
        assert_eq!(ring.len(), 2, "no room to forget in");
        // SAFETY: the only consumer.
        assert_eq!(unsafe { ring.pop() }.map(|wc| wc.wr_id), Some(10));
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! That the model can fail was tried by hand: with either index stored relaxed, loom finds a slot in two hands.
    //!
    //! loom remembers one access to each atomic, so a thread that reads an index before it writes it hides that another
    //! had read it, and the model would be a single execution. Steps on a common counter, which order no memory, make
    //! it try all the turns.

    use super::*;
    use loom::sync::Arc;

    /// Every completion comes once, whole and in order, over a lap of a ring of two.
    #[test]
    fn completions_come_whole_and_in_order() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let (ring, turns) = (Arc::new(WcRing::new(1, 2)), Arc::new(AtomicU64::new(0)));
            let producer = {
                let (ring, turns) = (ring.clone(), turns.clone());
                loom::thread::spawn(move || {
                    let mut sent = 0;
                    for _ in 0..4 {
                        turns.fetch_add(1, Relaxed);
                        if ring.len() < 2 {
                            let ended = Wc::ended(sent, 1, WcOpcode::SEND, WcStatus::SUCCESS);
                            let wc = Wc { byte_len: sent as u32, ..ended };
                            // SAFETY: the only producer, and there is room.
                            unsafe { ring.push(wc) };
                            sent += 1;
                        }
                    }
                    sent
                })
            };
            let mut next = 0;
            let mut take = || {
                // SAFETY: the only consumer.
                while let Some(wc) = unsafe { ring.pop() } {
                    assert_eq!((wc.wr_id, u64::from(wc.byte_len)), (next, next));
                    next += 1;
                }
                next
            };
            for _ in 0..2 {
                turns.fetch_add(1, Relaxed);
                take();
            }
            let sent = producer.join().unwrap();
            assert_eq!(take(), sent);
        });
    }
}
