//! Lock-free queue with flat combining: every thread may enqueue, and one of them at a time dequeues for all.

use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::{UnsafeCell, spin_loop};

/// Queue of messages to the thread that holds the combiner role. One atomic word contains the complete state: the role
/// is free, the role is held and the queue is empty, or the index of the newest message. The role therefore cannot be
/// released while the queue holds a message, and no message is missed between the last dequeue and the release.
///
/// Enqueueing never waits for another thread: a thread that is preempted while it enqueues delays no other. A thread
/// that is preempted while it *holds* the role delays the messages that it has not dequeued yet.
pub struct CombiningQueue<T> {
    /// [`ROLE_FREE`], [`ROLE_HELD`], or the slot of the newest message.
    last: AtomicU32,
    slots: Box<[Slot<T>]>,
    /// One bit per slot, set if the slot is free.
    free: Box<[AtomicU64]>,
}

struct Slot<T> {
    /// Slot of the message enqueued before this one; [`LIST_END`] if there is none. [`CombinerGuard::dequeue_all`]
    /// reverses the links.
    previous: AtomicU32,
    message: UnsafeCell<Option<T>>,
}

/// The combiner role is free, and the queue is empty.
const ROLE_FREE: u32 = u32::MAX;
/// The combiner role is held, and no message has arrived since its holder last dequeued.
const ROLE_HELD: u32 = u32::MAX - 1;
/// End of the linked list of messages.
const LIST_END: u32 = u32::MAX - 2;

// SAFETY: a `CombiningQueue` owns its messages, which are `Send`; its other fields are atomics.
unsafe impl<T: Send> Send for CombiningQueue<T> {}
// SAFETY: one thread at a time accesses the message of a slot: the thread that claimed the slot, until it links the
// message in `last` (release); then the holder of the combiner role, which reads `last` (acquire), until it sets the
// bit in `free` (release), which `claim` reads (acquire). Messages move between threads by this, and they are `Send`.
unsafe impl<T: Send> Sync for CombiningQueue<T> {}

/// The combiner role: the right and the obligation to dequeue messages. At most one thread holds it. It must end with
/// [`CombinerGuard::release`]: if it is dropped otherwise, for example by a panic, no message is ever dequeued again.
#[must_use = "no message is dequeued until the role is released"]
pub struct CombinerGuard<'a, T>(&'a CombiningQueue<T>);

impl<T> CombiningQueue<T> {
    /// Creates a queue with room for `capacity` messages.
    ///
    /// # Panics
    /// If `capacity` is not below the reserved values of `last`.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity < LIST_END as usize, "{capacity} slots");
        let slot = |_| Slot { previous: AtomicU32::new(LIST_END), message: UnsafeCell::new(None) };
        let bits = |word: usize| match capacity - 64 * word {
            all @ 0..64 => (1 << all) - 1,
            _ => u64::MAX,
        };
        Self {
            last: AtomicU32::new(ROLE_FREE),
            slots: (0..capacity).map(slot).collect(),
            free: (0..capacity.div_ceil(64)).map(|word| AtomicU64::new(bits(word))).collect(),
        }
    }

    /// Enqueues a message. Returns the combiner role if it was free; the caller must then dequeue messages. Otherwise
    /// the thread that holds the role dequeues this message.
    ///
    /// The caller must bound the number of queued messages by `capacity`: this function spins until a slot is free.
    #[inline]
    pub fn enqueue(&self, message: T) -> Option<CombinerGuard<'_, T>> {
        let at = self.claim();
        let slot = &self.slots[at as usize];
        // SAFETY: `claim` returned this slot, so no other thread accesses it until the message is linked below.
        slot.message.with_mut(|cell| unsafe { *cell = Some(message) });
        let mut last = self.last.load(Relaxed);
        loop {
            let previous = if matches!(last, ROLE_FREE | ROLE_HELD) { LIST_END } else { last };
            slot.previous.store(previous, Relaxed);
            match self.last.compare_exchange_weak(last, at, AcqRel, Relaxed) {
                Ok(ROLE_FREE) => return Some(CombinerGuard(self)),
                Ok(_) => return None,
                Err(other) => last = other,
            }
        }
    }

    /// Claims a free slot; spins until there is one.
    #[inline]
    fn claim(&self) -> u32 {
        loop {
            for (word, free) in self.free.iter().enumerate() {
                let mut bits = free.load(Relaxed);
                while bits != 0 {
                    let bit = bits.trailing_zeros();
                    // Acquire: pairs with the release in `CombinerGuard::dequeue_all`, which moved the previous message
                    // out before.
                    bits = free.fetch_and(!(1 << bit), Acquire);
                    if bits & 1 << bit != 0 {
                        return 64 * word as u32 + bit;
                    }
                }
            }
            // Other threads claimed and freed slots during the search, so a slot is free again.
            spin_loop();
        }
    }
}

impl<T> CombinerGuard<'_, T> {
    /// Dequeues all messages that have arrived since the last call, in the order in which they were enqueued.
    #[inline]
    pub fn dequeue_all(&mut self, mut each: impl FnMut(T)) {
        let last = self.0.last.swap(ROLE_HELD, AcqRel);
        if last == ROLE_HELD {
            return;
        }
        let slot = |at: u32| &self.0.slots[at as usize];
        // The list is linked from the newest message to the oldest: reverse it.
        let (mut first, mut at) = (LIST_END, last);
        while at != LIST_END {
            let previous = slot(at).previous.load(Relaxed);
            slot(at).previous.store(first, Relaxed);
            (first, at) = (at, previous);
        }
        at = first;
        while at != LIST_END {
            let next = slot(at).previous.load(Relaxed);
            // SAFETY: `last` led to this slot, so its message is complete and its enqueuer no longer accesses it. Only
            // the holder of the combiner role, of which `self` is the proof, accesses linked messages.
            let message = slot(at).message.with_mut(|cell| unsafe { (*cell).take() });
            self.0.free[at as usize / 64].fetch_or(1 << (at % 64), Release);
            message.into_iter().for_each(&mut each);
            at = next;
        }
    }

    /// Releases the combiner role. If messages have arrived since the last [`CombinerGuard::dequeue_all`], it returns
    /// the role instead, and the caller must dequeue them.
    #[inline]
    pub fn release(self) -> Option<Self> {
        match self.0.last.compare_exchange(ROLE_HELD, ROLE_FREE, AcqRel, Relaxed) {
            Ok(_) => None,
            Err(_) => Some(self),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64 as Number, Ordering::SeqCst};

    #[test]
    fn first_thread_dequeues_messages_of_later_ones() {
        let queue = CombiningQueue::new(4);
        let mut combiner = queue.enqueue(1).unwrap();
        assert!(queue.enqueue(2).is_none());
        let mut dequeued = Vec::new();
        combiner.dequeue_all(|message| dequeued.push(message));
        assert_eq!(dequeued, [1, 2]);
        assert!(queue.enqueue(3).is_none(), "the role is held");
        let mut combiner = combiner.release().expect("there is more");
        combiner.dequeue_all(|message| dequeued.push(message));
        assert!(combiner.release().is_none());
        assert_eq!(dequeued, [1, 2, 3]);
        assert!(queue.enqueue(4).is_some(), "the role was released");
    }

    #[test]
    fn reuses_slots_and_drops_queued_messages() {
        let queue = CombiningQueue::new(65);
        let message = std::sync::Arc::new(());
        for _ in 0..200 {
            let mut combiner = queue.enqueue(message.clone()).unwrap();
            (0..64).for_each(|_| assert!(queue.enqueue(message.clone()).is_none()));
            let mut count = 0;
            combiner.dequeue_all(|_| count += 1);
            assert_eq!(count, 65);
            assert!(combiner.release().is_none());
        }
        let combiner = queue.enqueue(message.clone());
        assert!(combiner.is_some());
        drop(queue);
        assert_eq!(std::sync::Arc::strong_count(&message), 1);
    }

    #[test]
    fn every_message_is_taken_once_and_in_the_order_of_its_thread() {
        const EACH: u64 = 20_000;
        let queue = CombiningQueue::new(8);
        let next: [Number; 4] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (queue, next) = (&queue, &next);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let mut combiner = queue.enqueue((thread, number));
                        while let Some(mut has) = combiner {
                            has.dequeue_all(|(thread, number)| {
                                // A load and a store suffice, since only the holder of the role runs this.
                                let expected = next[thread as usize].load(SeqCst);
                                assert_eq!(expected, number);
                                next[thread as usize].store(number + 1, SeqCst);
                            });
                            combiner = has.release();
                        }
                    }
                });
            }
        });
        assert!(next.iter().all(|next| next.load(SeqCst) == EACH));
    }
}

#[cfg(all(test, loom))]
mod models {
    //! The patches in `.ci/mutations/io` that name these models check that they can fail.

    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Data that only the holder of the combiner role accesses; loom reports concurrent accesses.
    struct Shared {
        queue: CombiningQueue<u32>,
        dequeued: UnsafeCell<Vec<u32>>,
    }

    // SAFETY: only the holder of the combiner role enters the cell, one thread at a time; loom checks it.
    unsafe impl Sync for Shared {}
    // SAFETY: the fields own their data, `u32` numbers, which may be accessed from any thread.
    unsafe impl Send for Shared {}

    fn enqueue(shared: &Shared, message: u32) {
        let mut combiner = shared.queue.enqueue(message);
        while let Some(mut has) = combiner {
            // SAFETY: `has` is the combiner role, which only one thread holds.
            has.dequeue_all(|message| {
                shared.dequeued.with_mut(|dequeued| unsafe { (*dequeued).push(message) })
            });
            combiner = has.release();
        }
    }

    fn check(capacity: usize, threads: &'static [&'static [u32]]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared = Arc::new(Shared {
                queue: CombiningQueue::new(capacity),
                dequeued: UnsafeCell::new(Vec::new()),
            });
            let handles: Vec<_> = threads[1..]
                .iter()
                .map(|messages| {
                    let shared = shared.clone();
                    thread::spawn(move || messages.iter().for_each(|message| enqueue(&shared, *message)))
                })
                .collect();
            threads[0].iter().for_each(|message| enqueue(&shared, *message));
            handles.into_iter().for_each(|handle| handle.join().unwrap());
            // Every message was dequeued once, in the order of its thread.
            // SAFETY: the threads were joined above, so no other thread accesses the cell.
            let dequeued = shared.dequeued.with_mut(|dequeued| unsafe { std::mem::take(&mut *dequeued) });
            assert_eq!(dequeued.len(), threads.iter().map(|messages| messages.len()).sum::<usize>());
            for messages in threads {
                let of_thread: Vec<u32> =
                    dequeued.iter().copied().filter(|message| messages.contains(message)).collect();
                assert_eq!(of_thread, *messages);
            }
            assert_eq!(shared.queue.last.load(Relaxed), ROLE_FREE);
        });
    }

    #[test]
    fn loses_no_message_between_three_threads() {
        check(3, &[&[1], &[2], &[3]]);
    }

    #[test]
    fn reuses_slots_while_others_enqueue() {
        // While the first thread holds the role with one message, the second enqueues both of its messages.
        check(3, &[&[1, 2], &[11, 12]]);
    }
}
