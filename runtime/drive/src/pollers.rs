//! Threads that poll on behalf of sleeping threads (RR-Compound, algorithm 2: the dedicated pollers).
//!
//! A poller polls the endpoint of each sleeping thread in turn, and writes the thread's event descriptor when there is
//! work. If nothing has arrived for a while, or threads compete for the processors, it releases all endpoints: each
//! thread wakes once and then sleeps on its own events. The poller then sleeps at no cost until a thread delegates
//! polling again.

mod delegation;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use delegation::DelegatedEndpoint;
pub(crate) use delegation::PollDelegation;
use farcall_verbs::{Clock, MonotonicClock, WakeProbe};

use crate::{Parker, contention, sleep_on};

/// Time without work after which a poller sleeps. A thread whose pause between two messages is longer does not wake
/// the poller.
const QUIET: Duration = Duration::from_millis(2);

/// Poller threads for any number of endpoints. Clones share the threads, which end with the last clone and the last
/// endpoint that uses them.
#[derive(Clone)]
pub struct Pollers(Arc<Inner>);

struct Inner {
    pollers: Vec<Arc<Poller>>,
    next: AtomicUsize,
    threads: Vec<JoinHandle<()>>,
    rule: Rule,
}

/// Conditions under which pollers poll.
#[derive(Clone, Copy)]
struct Rule {
    quiet: Duration,
    is_crowded: fn() -> bool,
}

/// State of one poller thread.
struct Poller {
    delegated: Mutex<Vec<Arc<DelegatedEndpoint>>>,
    /// Incremented with each change of the list.
    version: AtomicU64,
    parker: Parker,
    stop: AtomicBool,
    signals: AtomicU64,
}

impl std::fmt::Debug for Pollers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pollers").field("threads", &self.0.threads.len()).finish()
    }
}

impl Pollers {
    /// Starts `threads` threads, at least one.
    ///
    /// # Errors
    /// If a thread or descriptor cannot be created.
    pub fn start(threads: usize) -> io::Result<Self> {
        Self::start_by(Rule { quiet: QUIET, is_crowded: contention::sample_if_due }, threads)
    }

    fn start_by(rule: Rule, threads: usize) -> io::Result<Self> {
        let mut inner = Inner { pollers: Vec::new(), next: AtomicUsize::new(0), threads: Vec::new(), rule };
        for number in 0..threads.max(1) {
            let poller = Arc::new(Poller {
                delegated: Mutex::default(),
                version: AtomicU64::new(0),
                parker: Parker::new()?,
                stop: AtomicBool::new(false),
                signals: AtomicU64::new(0),
            });
            inner.pollers.push(Arc::clone(&poller));
            let thread = std::thread::Builder::new().name(format!("poller-{number}"));
            inner.threads.push(thread.spawn(move || poller.run(rule))?);
        }
        Ok(Self(Arc::new(inner)))
    }

    /// Returns the number of times that a poller woke a thread because there was work.
    pub fn signals(&self) -> u64 {
        self.0.pollers.iter().map(|poller| poller.signals.load(Ordering::Relaxed)).sum()
    }

    /// Returns whether all pollers sleep.
    pub fn are_asleep(&self) -> bool {
        self.0.pollers.iter().all(|poller| poller.parker.is_parked())
    }

    /// Returns whether `pause`, the time between two messages, is too short for the pollers to sleep.
    pub(crate) fn polls_through(&self, pause: Duration) -> bool {
        pause < self.0.rule.quiet
    }

    /// Assigns an endpoint to one of the threads, round robin.
    pub(crate) fn delegate(&self, probe: Arc<dyn WakeProbe>) -> io::Result<PollDelegation> {
        let at = self.0.next.fetch_add(1, Ordering::Relaxed) % self.0.pollers.len();
        PollDelegation::register(Arc::clone(&self.0.pollers[at]), self.clone(), probe)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for poller in &self.pollers {
            poller.stop.store(true, Ordering::Release);
            poller.parker.unpark_if_parked();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Poller {
    fn delegated(&self) -> MutexGuard<'_, Vec<Arc<DelegatedEndpoint>>> {
        self.delegated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<DelegatedEndpoint>>)) {
        let mut delegated = self.delegated();
        change(&mut delegated);
        self.version.fetch_add(1, Ordering::Release);
    }

    fn run(&self, rule: Rule) {
        let clock = MonotonicClock::new();
        let (mut delegated, mut version) = (Vec::new(), None);
        let mut moved = clock.now();
        while !self.stop.load(Ordering::Acquire) {
            let current = self.version.load(Ordering::Acquire);
            if version != Some(current) {
                delegated.clone_from(&self.delegated());
                version = Some(current);
            }
            let signals = delegated.iter().filter(|endpoint| endpoint.poll()).count();
            let now = clock.now();
            if signals > 0 {
                self.signals.fetch_add(signals as u64, Ordering::Relaxed);
                moved = now;
            } else if now.since(moved) >= rule.quiet || (rule.is_crowded)() {
                // A sleeping poller must not keep the memory of endpoints alive.
                delegated.clear();
                version = None;
                self.sleep();
                moved = clock.now();
            }
            std::hint::spin_loop();
        }
    }

    fn sleep(&self) {
        self.parker.arm();
        // A thread that delegates polling from now on sees that this poller sleeps.
        for endpoint in self.delegated().iter() {
            endpoint.release();
        }
        if !self.stop.load(Ordering::Acquire) {
            // If the system call fails, this thread continues to poll.
            let _ = sleep_on(&[self.parker.fd()], None);
        }
        self.parker.disarm();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Waiter, sleep_on};
    use farcall_link::WaitStrategy;
    use farcall_verbs::{Endpoint, Nanos, Progress, Result, WaitSet};
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::sync::atomic::Ordering::SeqCst;

    const LOST: Duration = Duration::from_secs(60);

    /// Values that a peer writes, and the event by which it wakes the reader, if it must.
    struct Mailbox {
        written: AtomicU64,
        known: AtomicU64,
        is_armed: AtomicBool,
        event: OwnedFd,
    }

    impl Mailbox {
        fn write(&self) {
            self.written.fetch_add(1, SeqCst);
            if self.is_armed.swap(false, SeqCst) {
                rustix::io::write(&self.event, &1_u64.to_ne_bytes()).unwrap();
            }
        }
    }

    impl WakeProbe for Mailbox {
        fn has_work(&self) -> bool {
            self.written.load(SeqCst) != self.known.load(SeqCst)
        }
    }

    struct Reader {
        mailbox: Arc<Mailbox>,
        read: u64,
        armed: [u64; 2],
    }

    impl Reader {
        fn new() -> Self {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            let (written, known) = (AtomicU64::new(0), AtomicU64::new(0));
            let mailbox = Mailbox { written, known, is_armed: AtomicBool::new(false), event };
            Self { mailbox: Arc::new(mailbox), read: 0, armed: [0; 2] }
        }

        /// Sleeps until `goal` messages have been read.
        fn read_until(&mut self, waiter: &mut Waiter, goal: u64) {
            let (clock, mut set) = (MonotonicClock::new(), WaitSet::default());
            while self.read < goal {
                if self.progress(clock.now()) == Progress::Again
                    || waiter.arm_then_poll(self, clock.now()) == Progress::Again
                {
                    continue;
                }
                set.clear();
                waiter.wait_set(self, &mut set);
                let slept_at = std::time::Instant::now();
                sleep_on(set.fds(), Some(LOST)).unwrap();
                assert!(slept_at.elapsed() < LOST, "slept through");
                waiter.woke();
            }
        }
    }

    impl Endpoint for Reader {
        fn progress(&mut self, _now: Nanos) -> Progress {
            let written = self.mailbox.written.load(SeqCst);
            if std::mem::replace(&mut self.read, written) == written {
                Progress::IDLE
            } else {
                Progress::Again
            }
        }

        fn arm(&mut self) -> Result<()> {
            self.armed[0] += 1;
            let _ = rustix::io::read(&self.mailbox.event, &mut [0; 8]);
            self.mailbox.is_armed.store(true, SeqCst);
            Ok(())
        }

        fn wake_probe(&self) -> Option<Arc<dyn WakeProbe>> {
            Some(Arc::clone(&self.mailbox) as _)
        }

        fn arm_delegated(&mut self) -> Result<()> {
            self.armed[1] += 1;
            self.mailbox.known.store(self.read, SeqCst);
            Ok(())
        }

        fn wait_set(&self, set: &mut WaitSet) {
            set.insert(self.mailbox.event.as_raw_fd());
        }
    }

    const EVENT: WaitStrategy = WaitStrategy::EventBatch;
    const NEVER: Duration = Duration::from_secs(3_600);

    fn pollers(quiet: Duration, is_crowded: fn() -> bool) -> Pollers {
        Pollers::start_by(Rule { quiet, is_crowded }, 2).unwrap()
    }

    /// Exchanges `rounds` messages, each written when the previous one has been read or is about to be. Returns how
    /// often the reader armed by delegation and by its own events.
    fn exchange(pollers: &Pollers, rounds: u64) -> [u64; 2] {
        let mut reader = Reader::new();
        let mailbox = Arc::clone(&reader.mailbox);
        let (tell, told) = std::sync::mpsc::channel();
        let writer = std::thread::spawn(move || {
            for round in 0..rounds {
                if round % 7 == 0 {
                    std::thread::sleep(Duration::from_micros(round % 500));
                }
                mailbox.write();
                told.recv().unwrap();
            }
        });
        let mut waiter = Waiter::new(EVENT, Some(pollers.clone()));
        for round in 1..=rounds {
            reader.read_until(&mut waiter, round);
            tell.send(()).unwrap();
        }
        writer.join().unwrap();
        reader.armed
    }

    #[test]
    fn wakes_a_delegating_thread_by_a_poller_alone() {
        let pollers = pollers(NEVER, || false);
        let [by_events, by_delegation] = exchange(&pollers, 2_000);
        assert_eq!(by_events, 0);
        assert!(by_delegation > 0 && !pollers.are_asleep());
        let mut reader = Reader::new();
        let (mut waiter, now) = (Waiter::new(EVENT, Some(pollers.clone())), Nanos(0));
        assert_ne!(waiter.arm_then_poll(&mut reader, now), Progress::Again);
        let signals = pollers.signals();
        reader.mailbox.write();
        while pollers.signals() == signals {
            std::thread::yield_now();
        }
    }

    #[test]
    fn releases_endpoints_before_an_idle_poller_sleeps() {
        for (quiet, is_crowded) in [(Duration::ZERO, (|| false) as fn() -> bool), (NEVER, || true)] {
            let pollers = pollers(quiet, is_crowded);
            assert!(exchange(&pollers, 500)[0] > 0);
            while !pollers.are_asleep() {
                std::thread::yield_now();
            }
        }
        // A case between the two.
        let pollers = pollers(Duration::from_micros(50), || false);
        exchange(&pollers, 3_000);
    }

    #[test]
    fn sleeps_on_its_own_events_after_the_poller_releases_it() {
        let pollers = pollers(Duration::from_millis(1), || false);
        let (mut reader, mut waiter) = (Reader::new(), Waiter::new(EVENT, Some(pollers.clone())));
        let writer = {
            let (mailbox, pollers) = (Arc::clone(&reader.mailbox), pollers.clone());
            std::thread::spawn(move || {
                while !(mailbox.is_armed.load(SeqCst) && pollers.are_asleep()) {
                    std::thread::yield_now();
                }
                mailbox.write();
            })
        };
        reader.read_until(&mut waiter, 1);
        writer.join().unwrap();
        assert!(reader.armed[0] >= 1);
    }

    #[test]
    fn wakes_once_if_the_poller_signals_late() {
        static IS_CROWDED: AtomicBool = AtomicBool::new(false);
        let pollers = pollers(NEVER, || IS_CROWDED.load(SeqCst));
        let (mut reader, mut waiter) = (Reader::new(), Waiter::new(EVENT, Some(pollers.clone())));
        assert_ne!(waiter.arm_then_poll(&mut reader, Nanos(0)), Progress::Again);
        // The poller releases the endpoint and is interrupted before it writes the event. The thread wakes for another
        // reason, such as a signal.
        let endpoint = Arc::clone(&waiter.delegation.as_ref().unwrap().endpoint);
        assert!(endpoint.word.release());
        waiter.woke();
        IS_CROWDED.store(true, SeqCst);
        let is_woken = || {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&endpoint.event, PollFlags::IN)], Some(&now)).unwrap() > 0
        };
        assert_ne!(waiter.arm_then_poll(&mut reader, Nanos(0)), Progress::Again);
        assert!(!is_woken());
        endpoint.wake();
        assert!(is_woken());
        waiter.woke();
        assert_ne!(waiter.arm_then_poll(&mut reader, Nanos(0)), Progress::Again);
        assert!(!is_woken(), "it is woken for ever");
        assert_eq!(reader.armed, [2, 1]);
    }

    #[test]
    fn stops_polling_a_dropped_endpoint() {
        let pollers = pollers(NEVER, || false);
        let reader = Reader::new();
        let mailbox = Arc::downgrade(&reader.mailbox);
        let mut waiter = Waiter::new(EVENT, Some(pollers.clone()));
        waiter.wait_set(&reader, &mut WaitSet::default());
        drop((waiter, reader));
        while mailbox.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
