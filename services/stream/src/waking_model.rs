//! A loom model of going to sleep: checks every interleaving, and every value that a load may return.
//!
//! Both sides are the real state machines ([`Woken`], [`Waker`]) in the order of the driver and of [`crate::Stream`]:
//!
//! 1. A driver iteration.
//! 2. If it finds no work: consume old events, send the wake request, arm the completion queue, and run one more
//!    iteration.
//! 3. If that also finds no work and every further byte is certain to arrive with a wake-up: sleep.
//!
//! A control word is a store, and a wake-up is a completion after it. The completion queue itself loses no completion:
//! one that arrives while it is armed raises an event, one that arrives before is found by polling. The reader begins
//! as an end that polled and now wants to sleep; this is the state in which control words arrive without wake-ups.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::waking::{Waker, Woken};
use crate::words::{Promise, Wish};

#[derive(Default)]
struct CompletionQueue {
    /// Number of bytes written when each wake-up was posted.
    wakes: Vec<u64>,
    is_armed: bool,
    has_event: bool,
}

struct World {
    written: AtomicU64,
    promise: AtomicU64,
    wish: AtomicU64,
    cq: Mutex<CompletionQueue>,
    event: Condvar,
}

/// Condition on which the reader sleeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleeps {
    WhenItMay,
    /// Incorrect on purpose: bytes written before the writer reads the request do not wake the reader.
    WithoutPromise,
}

impl World {
    fn new(wish: Wish) -> Self {
        Self {
            written: AtomicU64::new(0),
            promise: AtomicU64::new(0),
            wish: AtomicU64::new(wish.encode()),
            cq: Mutex::default(),
            event: Condvar::new(),
        }
    }

    /// The writer WRITEs a word.
    fn say(&self, waker: &Waker, word: &AtomicU64, value: u64, written: u64) {
        word.store(value, Ordering::Release);
        if waker.wakes() {
            let mut cq = self.cq.lock().unwrap();
            cq.wakes.push(written);
            if cq.is_armed {
                cq.is_armed = false;
                cq.has_event = true;
                self.event.notify_one();
            }
        }
    }

    fn answer(&self, waker: &mut Waker, written: u64) {
        waker.hear(Wish::decode(self.wish.load(Ordering::Acquire)).unwrap());
        if let Some(promise) = waker.due(written) {
            self.say(waker, &self.promise, promise.encode(), written);
            waker.said();
        }
    }

    fn write(&self, mut waker: Waker, bytes: u64) {
        for written in 1..=bytes {
            self.answer(&mut waker, written - 1);
            self.say(&waker, &self.written, written, written);
        }
        // The writer is not driven after this point: later notifications must have been sent by now.
    }

    /// A driver iteration of the reader. Returns whether it found work.
    fn turn(&self, woken: &mut Woken, seen: &mut u64) -> bool {
        let wakes = std::mem::take(&mut self.cq.lock().unwrap().wakes);
        let mut any = !wakes.is_empty();
        for written in wakes.into_iter().chain([self.written.load(Ordering::Acquire)]) {
            any |= written > *seen;
            *seen = written.max(*seen);
        }
        let promise = self.promise.load(Ordering::Acquire);
        if promise != 0 {
            woken.promised(Promise::decode(promise, *seen));
        }
        any
    }

    fn read(&self, mut woken: Woken, bytes: u64, sleeps: Sleeps) {
        let mut seen = 0;
        while seen < bytes {
            if self.turn(&mut woken, &mut seen) {
                continue;
            }
            self.cq.lock().unwrap().has_event = false;
            woken.wants_sleep();
            if let Some(wish) = woken.due() {
                self.wish.store(wish.encode(), Ordering::Release);
                woken.said();
            }
            self.cq.lock().unwrap().is_armed = true;
            if self.turn(&mut woken, &mut seen) {
                continue;
            }
            let may_sleep = match sleeps {
                Sleeps::WhenItMay => woken.may_sleep(seen),
                Sleeps::WithoutPromise => true,
            };
            if !may_sleep {
                // Stands for a sleep with a timeout.
                thread::yield_now();
                continue;
            }
            let mut cq = self.cq.lock().unwrap();
            while !cq.has_event {
                cq = self.event.wait(cq).unwrap();
            }
        }
    }
}

fn check(bytes: u64, sleeps: Sleeps) {
    let mut model = loom::model::Builder::new();
    // A higher bound in release builds, in which it takes no more time.
    model.preemption_bound = Some(if cfg!(debug_assertions) { 2 } else { 3 });
    model.check(move || {
        let (woken, waker) = (Woken::that_polls(), Waker::told(Woken::that_polls().wish()));
        let world = Arc::new(World::new(woken.wish()));
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.write(waker, bytes))
        };
        world.read(woken, bytes, sleeps);
        writer.join().unwrap();
    });
}

#[test]
fn no_byte_is_slept_through() {
    check(2, Sleeps::WhenItMay);
}

/// Checks that the model detects a lost wake-up.
#[test]
#[should_panic(expected = "deadlock")]
fn a_reader_without_a_promise_sleeps_through_a_byte() {
    check(2, Sleeps::WithoutPromise);
}
