//! Where threads leave messages, and one of them, whoever comes first, takes them all.

use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::{UnsafeCell, spin_loop};

/// Messages on their way to whoever has the turn. One word says all: that nobody has the turn, that somebody has it and
/// knows all messages, or which message came last. So the turn cannot be given back while a message lies there, and no
/// message can come in between unseen.
///
/// Leaving a message waits for nobody; a thread that stops while it does stops no other. What a thread that stops
/// *with* the turn has not taken yet waits for it.
pub struct Arrivals<T> {
    last: AtomicU32,
    places: Box<[Place<T>]>,
    /// A bit for each place that is free.
    free: Box<[AtomicU64]>,
}

struct Place<T> {
    /// The message that came before.
    before: AtomicU32,
    message: UnsafeCell<Option<T>>,
}

/// Nobody has the turn, and there is no message.
const IDLE: u32 = u32::MAX;
/// Somebody has the turn, and nothing has come since he looked.
const TAKEN: u32 = u32::MAX - 1;
/// No message came before.
const FIRST: u32 = u32::MAX - 2;

// SAFETY: a message is only touched by the thread that claimed its place, until it is linked, and then by the one that
// has the turn, until it frees the place: both hand over by release and acquire.
unsafe impl<T: Send> Send for Arrivals<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Arrivals<T> {}

/// The right, and the duty, to take what has come. One thread has it at a time. It must end with [`Turn::give_back`]:
/// if it is dropped otherwise, as by a panic, no message is ever taken again.
#[must_use = "messages lie here until the turn is given back"]
pub struct Turn<'a, T>(&'a Arrivals<T>);

impl<T> Arrivals<T> {
    /// Room for `capacity` messages.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity < FIRST as usize, "{capacity} places");
        let place = |_| Place { before: AtomicU32::new(FIRST), message: UnsafeCell::new(None) };
        let bits = |word: usize| match capacity - 64 * word {
            all @ 0..64 => (1 << all) - 1,
            _ => u64::MAX,
        };
        Self {
            last: AtomicU32::new(IDLE),
            places: (0..capacity).map(place).collect(),
            free: (0..capacity.div_ceil(64)).map(|word| AtomicU64::new(bits(word))).collect(),
        }
    }

    /// Leaves a message. Whoever gets a turn must take what has come; for the others somebody does.
    ///
    /// Callers see to it that no more messages than `capacity` lie here: this looks for a place until there is one.
    #[inline]
    pub fn leave(&self, message: T) -> Option<Turn<'_, T>> {
        let at = self.claim();
        let place = &self.places[at as usize];
        // SAFETY: the place is claimed: nobody else touches it.
        place.message.with_mut(|cell| unsafe { *cell = Some(message) });
        let mut last = self.last.load(Relaxed);
        loop {
            let before = if matches!(last, IDLE | TAKEN) { FIRST } else { last };
            place.before.store(before, Relaxed);
            match self.last.compare_exchange_weak(last, at, AcqRel, Relaxed) {
                Ok(IDLE) => return Some(Turn(self)),
                Ok(_) => return None,
                Err(other) => last = other,
            }
        }
    }

    #[inline]
    fn claim(&self) -> u32 {
        loop {
            for (word, free) in self.free.iter().enumerate() {
                let mut bits = free.load(Relaxed);
                while bits != 0 {
                    let bit = bits.trailing_zeros();
                    // Acquire: whoever freed it has moved his message out.
                    bits = free.fetch_and(!(1 << bit), Acquire);
                    if bits & 1 << bit != 0 {
                        return 64 * word as u32 + bit;
                    }
                }
            }
            // Somebody took a place and somebody freed one while we looked: there is one again.
            spin_loop();
        }
    }
}

impl<T> Turn<'_, T> {
    /// Takes what has come since the last look, in the order in which it came.
    #[inline]
    pub fn take(&mut self, mut each: impl FnMut(T)) {
        let last = self.0.last.swap(TAKEN, AcqRel);
        if last == TAKEN {
            return;
        }
        let place = |at: u32| &self.0.places[at as usize];
        // The list is from the last to the first: turn it round.
        let (mut first, mut at) = (FIRST, last);
        while at != FIRST {
            let before = place(at).before.load(Relaxed);
            place(at).before.store(first, Relaxed);
            (first, at) = (at, before);
        }
        at = first;
        while at != FIRST {
            let after = place(at).before.load(Relaxed);
            // SAFETY: the message is linked, and we have the turn: nobody else touches it.
            let message = place(at).message.with_mut(|cell| unsafe { (*cell).take() });
            self.0.free[at as usize / 64].fetch_or(1 << (at % 64), Release);
            message.into_iter().for_each(&mut each);
            at = after;
        }
    }

    /// Gives the turn back, unless something has come since the last look: then there is more to take.
    #[inline]
    pub fn give_back(self) -> Option<Self> {
        match self.0.last.compare_exchange(TAKEN, IDLE, AcqRel, Relaxed) {
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
    fn the_first_takes_what_the_later_ones_leave() {
        let arrivals = Arrivals::new(4);
        let mut turn = arrivals.leave(1).unwrap();
        assert!(arrivals.leave(2).is_none());
        let mut taken = Vec::new();
        turn.take(|message| taken.push(message));
        assert_eq!(taken, [1, 2]);
        assert!(arrivals.leave(3).is_none(), "the turn is not over");
        let mut turn = turn.give_back().expect("there is more");
        turn.take(|message| taken.push(message));
        assert!(turn.give_back().is_none());
        assert_eq!(taken, [1, 2, 3]);
        assert!(arrivals.leave(4).is_some(), "the turn was given back");
    }

    #[test]
    fn places_are_used_again_and_what_lies_there_is_dropped() {
        let arrivals = Arrivals::new(65);
        let message = std::sync::Arc::new(());
        for _ in 0..200 {
            let mut turn = arrivals.leave(message.clone()).unwrap();
            (0..64).for_each(|_| assert!(arrivals.leave(message.clone()).is_none()));
            let mut count = 0;
            turn.take(|_| count += 1);
            assert_eq!(count, 65);
            assert!(turn.give_back().is_none());
        }
        let turn = arrivals.leave(message.clone());
        assert!(turn.is_some());
        drop(arrivals);
        assert_eq!(std::sync::Arc::strong_count(&message), 1);
    }

    #[test]
    fn every_message_is_taken_once_and_in_the_order_of_its_thread() {
        const EACH: u64 = 20_000;
        let arrivals = Arrivals::new(8);
        let next: [Number; 4] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (arrivals, next) = (&arrivals, &next);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let mut turn = arrivals.leave((thread, number));
                        while let Some(mut has) = turn {
                            has.take(|(thread, number)| {
                                // A load and a store: only one thread may be here.
                                let expected = next[thread as usize].load(SeqCst);
                                assert_eq!(expected, number);
                                next[thread as usize].store(number + 1, SeqCst);
                            });
                            turn = has.give_back();
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
    //! That these models can fail was tried by hand: see the patches of `.ci/mutations/io` that name them.

    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// What whoever has the turn works on; loom reports two threads inside.
    struct Shared {
        arrivals: Arrivals<u32>,
        taken: UnsafeCell<Vec<u32>>,
    }

    // SAFETY: the cell is entered by whoever has the turn alone; loom checks it.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    fn leave(shared: &Shared, message: u32) {
        let mut turn = shared.arrivals.leave(message);
        while let Some(mut has) = turn {
            // SAFETY: we have the turn.
            has.take(|message| shared.taken.with_mut(|taken| unsafe { (*taken).push(message) }));
            turn = has.give_back();
        }
    }

    fn check(capacity: usize, threads: &'static [&'static [u32]]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared =
                Arc::new(Shared { arrivals: Arrivals::new(capacity), taken: UnsafeCell::new(Vec::new()) });
            let handles: Vec<_> = threads[1..]
                .iter()
                .map(|messages| {
                    let shared = shared.clone();
                    thread::spawn(move || messages.iter().for_each(|message| leave(&shared, *message)))
                })
                .collect();
            threads[0].iter().for_each(|message| leave(&shared, *message));
            handles.into_iter().for_each(|handle| handle.join().unwrap());
            // Nobody is inside any more: all was taken, once, in the order of each thread.
            // SAFETY: the threads have ended.
            let taken = shared.taken.with_mut(|taken| unsafe { std::mem::take(&mut *taken) });
            assert_eq!(taken.len(), threads.iter().map(|messages| messages.len()).sum::<usize>());
            for messages in threads {
                let of_thread: Vec<u32> =
                    taken.iter().copied().filter(|message| messages.contains(message)).collect();
                assert_eq!(of_thread, *messages);
            }
            assert_eq!(shared.arrivals.last.load(Relaxed), IDLE);
        });
    }

    #[test]
    fn nothing_is_lost_between_three_threads() {
        check(3, &[&[1], &[2], &[3]]);
    }

    #[test]
    fn places_are_used_again_while_others_leave() {
        // While the first has the turn with one message, the other leaves both of his.
        check(3, &[&[1, 2], &[11, 12]]);
    }
}
