//! A loom model of the sleep protocol and KICK: every interleaving, and every value that a load may return.
//!
//! The server is the real state machine ([`Sleep`]) in the order of the driver and of [`super::Responder`]. It makes
//! an iteration; if that finds nothing, it sets the flag, drains old events, arms, and makes another iteration; if
//! that finds nothing either, it sleeps. The client writes a request and fetches until the response is there. It sends
//! one KICK per message, when a fetch finds the flag. The completion queue does not lose completions: one that arrives
//! while it is armed raises an event, and an earlier one is found by polling.

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::sleep::Sleep;

#[derive(Default)]
struct CompletionQueue {
    kicks: u32,
    is_armed: bool,
    has_event: bool,
}

struct World {
    /// Number of the newest request.
    mailbox: AtomicU32,
    /// Number of the newest response.
    response: AtomicU32,
    /// The flag in the next response's slot.
    is_marked: AtomicBool,
    cq: Mutex<CompletionQueue>,
    event: Condvar,
}

/// When the completion queue is armed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arming {
    BeforeTheLastLook,
    /// Wrong: a KICK between the poll and arming is not found.
    AfterTheLastLook,
}

impl World {
    fn arm(&self) {
        self.cq.lock().unwrap().is_armed = true;
    }

    fn kick(&self) {
        let mut cq = self.cq.lock().unwrap();
        cq.kicks += 1;
        if cq.is_armed {
            cq.is_armed = false;
            cq.has_event = true;
            self.event.notify_one();
        }
    }

    /// Makes an iteration of the server: polls completions unless it is certainly awake, then the mailbox. Returns
    /// whether it found anything.
    fn turn(&self, sleep: &mut Sleep, expect: &mut u32) -> bool {
        let mut any = false;
        if *sleep != Sleep::Awake {
            any = std::mem::take(&mut self.cq.lock().unwrap().kicks) > 0;
        }
        if self.mailbox.load(Ordering::Acquire) == *expect {
            self.response.store(*expect, Ordering::Release);
            *expect += 1;
            any = true;
        }
        let before = *sleep;
        *sleep = before.after_turn(any);
        if before != Sleep::Awake && *sleep == Sleep::Awake {
            self.is_marked.store(false, Ordering::Relaxed);
        }
        any
    }

    fn serve(&self, messages: u32, arming: Arming) {
        let (mut sleep, mut expect) = (Sleep::Awake, 1);
        while expect <= messages {
            if self.turn(&mut sleep, &mut expect) {
                continue;
            }
            self.is_marked.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.cq.lock().unwrap().has_event = false;
            sleep = Sleep::Published;
            if arming == Arming::BeforeTheLastLook {
                self.arm();
            }
            if self.turn(&mut sleep, &mut expect) {
                continue;
            }
            if arming == Arming::AfterTheLastLook {
                self.arm();
            }
            let mut cq = self.cq.lock().unwrap();
            while !cq.has_event {
                cq = self.event.wait(cq).unwrap();
            }
        }
    }

    fn call(&self, number: u32) {
        self.mailbox.store(number, Ordering::Release);
        let mut has_kicked = false;
        while self.response.load(Ordering::Acquire) != number {
            if self.is_marked.load(Ordering::Relaxed) && !has_kicked {
                has_kicked = true;
                self.kick();
            }
            thread::yield_now();
        }
    }
}

fn check(messages: u32, arming: Arming) {
    let mut model = loom::model::Builder::new();
    // A larger bound in release builds, where it takes no longer.
    model.preemption_bound = Some(if cfg!(debug_assertions) { 2 } else { 3 });
    model.check(move || {
        let world = Arc::new(World {
            mailbox: AtomicU32::new(0),
            response: AtomicU32::new(0),
            is_marked: AtomicBool::new(false),
            cq: Mutex::new(CompletionQueue::default()),
            event: Condvar::new(),
        });
        let server = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.serve(messages, arming))
        };
        (1..=messages).for_each(|number| world.call(number));
        server.join().unwrap();
    });
}

#[test]
fn loses_no_wake_up_for_a_request() {
    check(2, Arming::BeforeTheLastLook);
}

/// Checks that the model detects the fault.
#[test]
#[should_panic(expected = "exceeded maximum")]
fn detects_a_server_that_arms_too_late() {
    check(2, Arming::AfterTheLastLook);
}
