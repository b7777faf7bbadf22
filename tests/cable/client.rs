//! The client's side: endless loads, the disturbances, and their effect on the loads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::calls::{Load, Log, Other, PRESETS};
use crate::disturbances::{End, change_address, pull};
use crate::store::{Store, Writer};

/// Number of results that shows that a load continues.
const RESULTS: u64 = 50;
/// Timeout for a load to continue, even on a busy machine.
const LATE: Duration = Duration::from_secs(120);
/// Maximum duration of a pull without failures: shorter than the time for which a client tries to reconnect, and for
/// which a server retains its session.
const COSTS_NOTHING: Duration = Duration::from_secs(5);

/// Observations of a load.
pub struct Progress(Mutex<Noticed>);

struct Noticed {
    results: u64,
    failures: Vec<String>,
    last: Instant,
    longest_pause: Duration,
}

impl Progress {
    fn new() -> Self {
        let last = Instant::now();
        Self(Mutex::new(Noticed { results: 0, failures: Vec::new(), last, longest_pause: Duration::ZERO }))
    }

    pub fn succeeded(&self) {
        let mut noticed = self.0.lock().unwrap();
        noticed.results += 1;
        noticed.longest_pause = noticed.longest_pause.max(noticed.last.elapsed());
        noticed.last = Instant::now();
    }

    pub fn failed(&self, why: &str) {
        self.0.lock().unwrap().failures.push(why.to_owned());
    }

    fn results(&self) -> u64 {
        self.0.lock().unwrap().results
    }

    /// Returns the longest pause and the failures since the last call.
    fn take(&self) -> (Duration, Vec<String>) {
        let mut noticed = self.0.lock().unwrap();
        (std::mem::take(&mut noticed.longest_pause), std::mem::take(&mut noticed.failures))
    }
}

/// The loads: one of calls for each preset, and one of the store.
struct Loads([Progress; PRESETS.len() + 1]);

impl Loads {
    /// Executes a disturbance and waits until every load continues. Returns the failures in the meantime.
    fn during(&self, what: &str, disturb: impl FnOnce()) -> Vec<String> {
        self.go_on();
        self.0.iter().for_each(|progress| drop(progress.take()));
        disturb();
        self.go_on();
        let (pauses, failures): (Vec<_>, Vec<_>) = self.0.iter().map(Progress::take).unzip();
        let names = PRESETS.into_iter().chain(["kv"]);
        let pauses: Vec<String> =
            names.zip(pauses).map(|(name, pause)| format!("{name} {} ms", pause.as_millis())).collect();
        let failures = failures.concat();
        println!("cable: {what}: {} failed; longest pauses: {}", failures.len(), pauses.join(", "));
        failures
    }

    /// Waits until every load has more results.
    fn go_on(&self) {
        let (began, before) = (Instant::now(), self.0.each_ref().map(Progress::results));
        let goes_on = |at: usize| self.0[at].results() >= before[at] + RESULTS;
        while let Some(stuck) = (0..self.0.len()).find(|at| !goes_on(*at)) {
            assert!(began.elapsed() < LATE, "load {stuck} does not go on: {:?}", self.0[stuck].take().1);
            sleep(Duration::from_millis(10));
        }
    }
}

/// Executes pulls of these durations, a change of address, and a restart of both servers.
pub fn through(pulls: &[Duration]) {
    end_by_panics();
    let log = Log::new();
    let (mut server, mut store) = (Other::start(&log), Store::start());
    let loads = Loads(std::array::from_fn(|_| Progress::new()));
    let mut calls: Vec<Load> = (0..PRESETS.len()).map(Load::new).collect();
    let mut writer = Writer::connect();
    let (is_over, is_written) = (AtomicBool::new(false), AtomicBool::new(false));
    scope(|scope| {
        for (load, progress) in calls.iter_mut().zip(&loads.0) {
            scope.spawn(|| load.run(progress, &is_over));
        }
        let written = &loads.0[PRESETS.len()];
        let writing = scope.spawn(|| {
            writer.run(written, &is_written);
            writer.check();
            writer.run(written, &is_over);
        });
        for lasts in pulls {
            for end in [End::Client, End::Server] {
                let what = format!("{lasts:?} without a link, taken out at the {end:?}'s end");
                let failures = loads.during(&what, || pull(end, *lasts));
                assert!(*lasts > COSTS_NOTHING || failures.is_empty(), "{what}: {failures:?}");
                assert!(failures.iter().all(|why| says_what_is_known(why)), "{what}: {failures:?}");
            }
        }
        let failures = loads.during("another address", || change_address("10.99.0.1", "10.99.0.3"));
        assert!(failures.is_empty(), "another address: {failures:?}");
        // The content of the store is checked before the store is killed, because it is then lost.
        is_written.store(true, Ordering::Relaxed);
        let failures = loads.during("the servers are killed, and started again", || {
            server.restart();
            store.restart();
        });
        assert!(failures.iter().all(|why| says_what_is_known(why)), "restart: {failures:?}");
        is_over.store(true, Ordering::Relaxed);
        writing.join().unwrap();
    });
    calls.iter().for_each(|load| load.check(&log));
}

fn says_what_is_known(failure: &str) -> bool {
    failure.contains("the outcome is unknown") || failure.contains("not sent")
}

/// Exits the process on a panic, because the endless loads would otherwise be waited for.
fn end_by_panics() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::exit(1);
    }));
}
