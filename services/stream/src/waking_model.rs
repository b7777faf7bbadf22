//! A loom model of going to sleep: checks every interleaving, and every value that a load may return.
//!
//! Both sides are the real state machines ([`WakeReceiver`], [`WakeSender`]) in the order of the driver and of
//! [`crate::Stream`]:
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

use crate::waking::{WakeReceiver, WakeSender};
use crate::words::{WakeAck, WakeRequest};

#[derive(Default)]
struct CompletionQueue {
    /// Number of bytes written when each wake-up was posted.
    wakes: Vec<u64>,
    is_armed: bool,
    has_event: bool,
}

struct World {
    written: AtomicU64,
    ack: AtomicU64,
    wake_request: AtomicU64,
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
    fn new(request: WakeRequest) -> Self {
        Self {
            written: AtomicU64::new(0),
            ack: AtomicU64::new(0),
            wake_request: AtomicU64::new(request.encode()),
            cq: Mutex::default(),
            event: Condvar::new(),
        }
    }

    /// The writer WRITEs a word.
    fn write_word(&self, sender: &WakeSender, word: &AtomicU64, value: u64, written: u64) {
        word.store(value, Ordering::Release);
        if sender.wakes() {
            let mut cq = self.cq.lock().unwrap();
            cq.wakes.push(written);
            if cq.is_armed {
                cq.is_armed = false;
                cq.has_event = true;
                self.event.notify_one();
            }
        }
    }

    fn acknowledge(&self, sender: &mut WakeSender, written: u64) {
        sender.on_request(WakeRequest::decode(self.wake_request.load(Ordering::Acquire)).unwrap());
        if let Some(ack) = sender.due(written) {
            self.write_word(sender, &self.ack, ack.encode(), written);
            sender.on_sent();
        }
    }

    fn write(&self, mut sender: WakeSender, bytes: u64) {
        for written in 1..=bytes {
            self.acknowledge(&mut sender, written - 1);
            self.write_word(&sender, &self.written, written, written);
        }
        // The writer is not driven after this point: later notifications must have been sent by now.
    }

    /// A driver iteration of the reader. Returns whether it found work.
    fn turn(&self, receiver: &mut WakeReceiver, seen: &mut u64) -> bool {
        let wakes = std::mem::take(&mut self.cq.lock().unwrap().wakes);
        let mut any = !wakes.is_empty();
        for written in wakes.into_iter().chain([self.written.load(Ordering::Acquire)]) {
            any |= written > *seen;
            *seen = written.max(*seen);
        }
        let ack = self.ack.load(Ordering::Acquire);
        if ack != 0 {
            receiver.on_ack(WakeAck::decode(ack, *seen));
        }
        any
    }

    fn read(&self, mut receiver: WakeReceiver, bytes: u64, sleeps: Sleeps) {
        let mut seen = 0;
        while seen < bytes {
            if self.turn(&mut receiver, &mut seen) {
                continue;
            }
            self.cq.lock().unwrap().has_event = false;
            receiver.on_wants_sleep();
            if let Some(request) = receiver.due() {
                self.wake_request.store(request.encode(), Ordering::Release);
                receiver.on_sent();
            }
            self.cq.lock().unwrap().is_armed = true;
            if self.turn(&mut receiver, &mut seen) {
                continue;
            }
            let may_sleep = match sleeps {
                Sleeps::WhenItMay => receiver.may_sleep(seen),
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
        let (receiver, sender) =
            (WakeReceiver::polling(), WakeSender::after_request(WakeReceiver::polling().wake_request()));
        let world = Arc::new(World::new(receiver.wake_request()));
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.write(sender, bytes))
        };
        world.read(receiver, bytes, sleeps);
        writer.join().unwrap();
    });
}

#[test]
fn loses_no_wake_up_for_a_byte() {
    check(2, Sleeps::WhenItMay);
}

/// Checks that the model detects a lost wake-up.
#[test]
#[should_panic(expected = "deadlock")]
fn detects_a_reader_that_sleeps_without_acknowledgement() {
    check(2, Sleeps::WithoutPromise);
}
