//! Completions on their way from a queue pair's application thread to that of its completion queue: a private ring with
//! one producer and one consumer, which may be two threads.

use farcall_verbs::{Wc, WcOpcode, WcStatus};

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::cell::UnsafeCell;

/// All fields share one cache line: each side reads the other's index at every step anyway, so two lines would cost two
/// misses.
pub struct WcRing {
    head: AtomicU64,
    tail: AtomicU64,
    /// Completions pushed before this index belong to an earlier incarnation of the queue pair. They are never returned
    /// and do not count as queued.
    discarded_before: AtomicU64,
    /// Twice the capacity: the second half is for completions of the previous incarnation that the consumer has not
    /// passed yet.
    slots: Box<[UnsafeCell<SendCompletion>]>,
    qp_num: u32,
}

/// The contents of a send completion except the queue pair number, in a third of the memory: a ring cycles through all
/// of its slots.
#[derive(Clone, Copy, Default)]
struct SendCompletion {
    wr_id: u64,
    byte_len: u32,
    status: u8,
    opcode: u8,
}

// Four completions per cache line; the indices and the address of the slots fit into the size of one line.
const _: () = assert!(size_of::<SendCompletion>() == 16 && (cfg!(loom) || size_of::<WcRing>() <= 64));

impl SendCompletion {
    #[inline]
    fn of(wc: &Wc) -> Self {
        let record = Self {
            wr_id: wc.wr_id,
            byte_len: wc.byte_len,
            status: wc.status.0 as u8,
            opcode: wc.opcode.0 as u8,
        };
        debug_assert_eq!(record.completion(wc.qp_num), *wc, "more than a completion of a send says");
        record
    }

    #[inline]
    fn completion(self, qp_num: u32) -> Wc {
        let (opcode, status) = (WcOpcode(self.opcode.into()), WcStatus(self.status.into()));
        Wc { byte_len: self.byte_len, ..Wc::ended(self.wr_id, qp_num, opcode, status) }
    }
}

// SAFETY: a slot between head and tail is accessed by the consumer only, any other by the producer only; release stores
// and acquire loads of the two indices transfer slots. `push` and `pop` require that at most one thread calls each.
unsafe impl Sync for WcRing {}
// SAFETY: `SendCompletion` is plain data.
unsafe impl Send for WcRing {}

impl WcRing {
    /// Creates a ring for at least `capacity` completions of sends of queue pair `qp_num`.
    pub fn new(qp_num: u32, capacity: usize) -> Self {
        let count = 2 * capacity.next_power_of_two();
        let slots = (0..count).map(|_| UnsafeCell::new(SendCompletion::default())).collect();
        Self {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            discarded_before: AtomicU64::new(0),
            slots,
            qp_num,
        }
    }

    /// Returns the number of queued completions; for the producer it is an upper bound.
    #[inline]
    pub fn len(&self) -> usize {
        let head = self.head.load(Acquire).max(self.discarded_before.load(Relaxed));
        (self.tail.load(Relaxed) - head) as usize
    }

    /// Discards the queued completions. If the consumer has not polled since the previous call, they may remain queued,
    /// because the second half of the slots is occupied.
    ///
    /// # Safety
    /// See [`WcRing::push`].
    pub unsafe fn discard(&self) {
        let tail = self.tail.load(Relaxed);
        if tail - self.head.load(Acquire) <= self.slots.len() as u64 / 2 {
            self.discarded_before.store(tail, Release);
        }
    }

    /// Returns the consumer's position, after the discarded completions.
    #[inline]
    fn next(&self) -> u64 {
        self.head.load(Relaxed).max(self.discarded_before.load(Acquire))
    }

    /// Adds the completion of a send.
    ///
    /// # Safety
    /// At most one thread at a time may be the producer, and `len()` must be below the capacity.
    #[inline]
    pub unsafe fn push(&self, wc: Wc) {
        let tail = self.tail.load(Relaxed);
        debug_assert!(self.len() < self.slots.len());
        // SAFETY: `len()` is below the capacity, by the contract of this function, so the slot is not between head and
        // tail and the consumer does not access it.
        self.slots[tail as usize & (self.slots.len() - 1)]
            .with_mut(|slot| unsafe { *slot = SendCompletion::of(&wc) });
        self.tail.store(tail + 1, Release);
    }

    /// Returns whether there is no completion to take.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let next = self.next();
        self.tail.load(Acquire) <= next
    }

    /// Takes the oldest completion.
    ///
    /// # Safety
    /// At most one thread at a time may be the consumer.
    #[inline]
    pub unsafe fn pop(&self) -> Option<Wc> {
        // SAFETY: this thread is the only consumer, by the contract of this function.
        unsafe { self.pop_if(|_| true) }
    }

    /// Takes the oldest completion if `is_such` returns true for it.
    ///
    /// # Safety
    /// At most one thread at a time may be the consumer.
    #[inline]
    pub unsafe fn pop_if(&self, is_such: impl Fn(&Wc) -> bool) -> Option<Wc> {
        let head = self.next();
        if self.tail.load(Acquire) == head {
            return None;
        }
        // SAFETY: the slot lies between head and tail, so the producer does not write to it.
        let record = self.slots[head as usize & (self.slots.len() - 1)].with(|slot| unsafe { *slot });
        let wc = record.completion(self.qp_num);
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

    /// Pushes the completions of one incarnation, which fill the queue.
    fn fill(ring: &WcRing, first: u64) {
        for wr_id in first..first + 2 {
            // SAFETY: this thread is the only producer, and the test checks that there is space.
            unsafe { ring.push(Wc::ended(wr_id, 1, WcOpcode::SEND, WcStatus::SUCCESS)) };
        }
    }

    #[test]
    fn ignores_completions_of_an_earlier_incarnation() {
        let ring = WcRing::new(1, 2);
        for life in 0..5 {
            fill(&ring, 10 * life);
            assert_eq!(ring.len(), 2);
            // SAFETY: the only producer.
            unsafe { ring.discard() };
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
    fn keeps_the_latest_completions_if_none_is_consumed() {
        let ring = WcRing::new(1, 2);
        for life in 0..2 {
            fill(&ring, 10 * life);
            // SAFETY: the only producer.
            unsafe { ring.discard() };
        }
        assert_eq!(ring.len(), 2, "no room to forget in");
        // SAFETY: the only consumer.
        assert_eq!(unsafe { ring.pop() }.map(|wc| wc.wr_id), Some(10));
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! The model was checked to fail: with either index stored relaxed, loom reports concurrent accesses to a slot.
    //!
    //! loom tracks one access per atomic, so a thread that reads an index before it writes it hides that another thread
    //! had read it; the model would be a single execution. Increments of a common counter, which order no memory, make
    //! loom explore all interleavings.

    use super::*;
    use loom::sync::Arc;

    /// Every completion is received once, complete and in order, over a lap of a ring of two.
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
                            let record = Wc::ended(sent, 1, WcOpcode::SEND, WcStatus::SUCCESS);
                            let wc = Wc { byte_len: sent as u32, ..record };
                            // SAFETY: this thread is the only producer, and `len()` is below the capacity.
                            unsafe { ring.push(wc) };
                            sent += 1;
                        }
                    }
                    sent
                })
            };
            let mut next = 0;
            let mut take = || {
                // SAFETY: this thread is the only consumer.
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
