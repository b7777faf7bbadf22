//! A loom model of a deferred answer: the waiting client is woken in every order of events.
//!
//! Three threads: one answers; the client sends the push request before it sleeps, and waits; the server thread
//! handles both in the order of [`super::Responder`] and of the driver. It makes an iteration; if that finds nothing,
//! it arms and makes another iteration; if that finds nothing either, it sleeps. The client's message is sent over a
//! queue pair, which does not lose messages.

use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

#[derive(Default)]
struct Event {
    is_readable: bool,
    /// The client's message, until it is handled.
    push: bool,
    /// Whether a message on the queue pair makes the event readable.
    is_cq_armed: bool,
}

struct World {
    is_answered: AtomicBool,
    has_tags: AtomicBool,
    /// The sleep flag of [`farcall_drive::Parker`].
    is_armed: AtomicBool,
    event: Mutex<Event>,
    readable: Condvar,
    is_notified: AtomicBool,
}

/// State that the server checks when it handles the client's push request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checks {
    Answers,
    /// Wrong: the tag of an earlier answer was taken when no wake-up was requested.
    OnlyTags,
}

impl World {
    fn new() -> Self {
        Self {
            is_answered: AtomicBool::new(false),
            has_tags: AtomicBool::new(false),
            is_armed: AtomicBool::new(false),
            event: Mutex::default(),
            readable: Condvar::new(),
            is_notified: AtomicBool::new(false),
        }
    }

    fn answer(&self) {
        self.is_answered.store(true, Ordering::Release);
        self.has_tags.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.is_armed.load(Ordering::Relaxed) && self.is_armed.swap(false, Ordering::AcqRel) {
            self.event.lock().unwrap().is_readable = true;
            self.readable.notify_one();
        }
    }

    fn fall_asleep(&self) {
        let mut event = self.event.lock().unwrap();
        event.push = true;
        if std::mem::take(&mut event.is_cq_armed) {
            event.is_readable = true;
            self.readable.notify_one();
        }
        drop(event);
        while !self.is_notified.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }

    /// Makes an iteration of the server. Returns whether it found anything.
    fn turn(&self, notify_next: &mut bool, checks: Checks) -> bool {
        let is_pushed = std::mem::take(&mut self.event.lock().unwrap().push);
        *notify_next |= is_pushed;
        let mut must_check = is_pushed && checks == Checks::Answers;
        let has_tags = self.has_tags.load(Ordering::Acquire);
        if has_tags {
            self.has_tags.store(false, Ordering::Release);
            must_check = true;
        }
        if must_check && *notify_next && self.is_answered.load(Ordering::Acquire) {
            *notify_next = false;
            self.is_notified.store(true, Ordering::Release);
        }
        is_pushed || has_tags
    }

    fn serve(&self, checks: Checks) {
        let mut notify_next = false;
        while !self.is_notified.load(Ordering::Acquire) {
            if self.turn(&mut notify_next, checks) {
                continue;
            }
            let mut event = self.event.lock().unwrap();
            (event.is_readable, event.is_cq_armed) = (false, true);
            // Earlier events are found by the iteration that follows.
            drop(event);
            self.is_armed.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.turn(&mut notify_next, checks) {
                self.is_armed.store(false, Ordering::Relaxed);
                continue;
            }
            let mut event = self.event.lock().unwrap();
            while !event.is_readable {
                event = self.readable.wait(event).unwrap();
            }
        }
    }
}

fn check(checks: Checks) {
    let mut model = loom::model::Builder::new();
    // A larger bound in release builds, where it takes no longer.
    model.preemption_bound = Some(if cfg!(debug_assertions) { 2 } else { 3 });
    model.check(move || {
        let world = Arc::new(World::new());
        let (server, answerer) = (Arc::clone(&world), Arc::clone(&world));
        let server = thread::spawn(move || server.serve(checks));
        let answerer = thread::spawn(move || answerer.answer());
        world.fall_asleep();
        server.join().unwrap();
        answerer.join().unwrap();
    });
}

#[test]
fn loses_no_wake_up_for_an_answer() {
    check(Checks::Answers);
}

/// Checks that the model detects the fault.
#[test]
#[should_panic(expected = "exceeded maximum")]
fn detects_a_server_that_checks_only_tags() {
    check(Checks::OnlyTags);
}
