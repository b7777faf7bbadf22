//! Seeds: each is a world with its programs and faults, run to its end and checked.
//!
//! ```text
//! cargo test -p farcall-sim --test seeds                                    a handful of each scenario
//! FARCALL_SIM_SEEDS=1000 cargo test --release -p farcall-sim --test seeds   so many of each
//! FARCALL_SIM_SECONDS=900 cargo test --release -p farcall-sim --test seeds  as many as fit
//! FARCALL_SIM_SCENARIO=calls FARCALL_SIM_SEEDS=1000 …                       of one scenario alone
//! FARCALL_SIM_SEED=calls:42 cargo test -p farcall-sim --test seeds          one, again
//! ```
//!
//! `FARCALL_SIM_FIRST` is the first seed of a long run. By default it depends on the date, so that each day covers
//! other seeds. Seeds that once failed are in `regressions.txt` and always run.

mod scenarios;
mod support {
    pub mod bypass;
    pub mod calls;
    mod finish;
    mod kill;
    pub mod member;
    pub mod node;
    pub mod rpc;
    pub mod store;
    pub mod stream;
    pub mod traffic;

    pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| ((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    }
}

use std::num::NonZero;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use farcall_link::PRESETS;
use scenarios::{ALL, HAPPENED, Scenario};

const REGRESSIONS: &str = include_str!("regressions.txt");

/// Number of seeds of each scenario in a quick run.
const QUICK: u64 = 6;
/// Number of seeds among which there must be streams that disable wake-ups.
const SILENT: u64 = 100;

fn scenario(name: &str) -> &'static Scenario {
    ALL.iter().find(|scenario| scenario.name == name).unwrap_or_else(|| panic!("no scenario {name:?}"))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: a number")))
}

/// Runs a seed; if a check fails, prints how to repeat the run.
fn run(scenario: &Scenario, seed: u64) -> u64 {
    catch_unwind(|| (scenario.run)(seed)).unwrap_or_else(|_| {
        let name = scenario.name;
        panic!(
            "scenario {name:?} fails with seed {seed}; again:\n    \
             FARCALL_SIM_SEED={name}:{seed} cargo test -p farcall-sim --test seeds"
        )
    })
}

/// Parses `scenario:seed`.
fn parse(text: &str) -> (&'static Scenario, u64) {
    let (name, seed) = text.split_once(':').unwrap_or_else(|| panic!("{text:?}: scenario:seed"));
    (scenario(name), seed.parse().unwrap_or_else(|_| panic!("{text:?}: scenario:seed")))
}

fn day() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / 86_400
}

/// Returns the selected scenarios.
fn meant(only: Option<&str>) -> impl Iterator<Item = &'static Scenario> {
    ALL.iter().filter(move |scenario| only.is_none_or(|only| scenario.name == only))
}

/// Runs a range of seeds on all processors, as many as complete within the limit; returns their number.
fn hold(seeds: Range<u64>, limit: Option<Duration>, tells: bool, only: Option<&str>) -> u64 {
    let began = Instant::now();
    let (next, done, has_failed) = (AtomicU64::new(seeds.start), AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        while !has_failed.load(Relaxed) && limit.is_none_or(|limit| began.elapsed() < limit) {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= seeds.end {
                break;
            }
            let all = || meant(only).for_each(|scenario| _ = run(scenario, seed));
            if let Err(failure) = catch_unwind(all) {
                has_failed.store(true, Relaxed);
                resume_unwind(failure);
            }
            let done = done.fetch_add(1, Relaxed) + 1;
            if tells && done.is_multiple_of(100) {
                eprintln!("{done} seeds from {} on hold, {} s", seeds.start, began.elapsed().as_secs());
            }
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| (0..processors).for_each(|_| drop(scope.spawn(work))));
    done.into_inner()
}

#[test]
fn seeds_hold() {
    if let Ok(text) = std::env::var("FARCALL_SIM_SEED") {
        let (scenario, seed) = parse(&text);
        println!("{text}: trace {:#018x}", run(scenario, seed));
        return;
    }
    let (seeds, seconds) = (number("FARCALL_SIM_SEEDS"), number("FARCALL_SIM_SECONDS"));
    let is_quick = seeds.is_none() && seconds.is_none();
    let first = number("FARCALL_SIM_FIRST").unwrap_or(if is_quick { 1 } else { day() * 1_000_000 });
    let last = seeds.or(is_quick.then_some(QUICK)).map_or(u64::MAX, |seeds| first + seeds);
    let only = std::env::var("FARCALL_SIM_SCENARIO").ok().map(|name| scenario(&name).name);
    let done = hold(first..last, seconds.map(Duration::from_secs), !is_quick, only);
    println!("{done} seeds of {} scenarios hold, from {first} on", meant(only).count());
    assert!(done > 0, "no seed was run");
    let streams = [&HAPPENED.streams, &HAPPENED.broken, &HAPPENED.stalls].map(|count| count.load(Relaxed));
    let wishes = HAPPENED.wishes.load(Relaxed);
    println!("streams read to their end, broken, stalls: {streams:?}, wishes: {wishes}");
    if only.is_some() {
        return;
    }
    assert!(done < QUICK || streams.iter().all(|count| *count > 0), "{streams:?}");
    assert!(done < SILENT || wishes > 0, "no stream asked for anything in {done} seeds");
    let received = scenarios::traffic::received();
    assert!(
        received.iter().all(|messages| *messages > 0),
        "messages over RC, over UC, datagrams: {received:?}"
    );
    let happened = [
        &HAPPENED.resumed,
        &HAPPENED.resent,
        &HAPPENED.repeated,
        &HAPPENED.batches,
        &HAPPENED.notices,
        &HAPPENED.collects,
    ]
    .map(|count| count.load(Relaxed));
    assert!(
        done < QUICK || happened.iter().all(|count| *count > 0),
        "sessions that went on, messages sent again, results that came again, batches, notices, questions: {happened:?}"
    );
}

#[test]
fn calls_and_stores_of_every_preset_hold_under_faults() {
    for name in ["calls-by-any-preset", "store-by-any-preset"] {
        // As many seeds as presets, so that each preset runs.
        (0..PRESETS.len() as u64).for_each(|seed| _ = run(scenario(name), seed));
    }
}

#[test]
fn passes_the_seeds_of_fixed_faults() {
    for line in REGRESSIONS.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (scenario, seed) = parse(line.split_whitespace().next().unwrap_or(line));
        run(scenario, seed);
    }
}

#[test]
fn a_seed_is_one_run_to_the_bit() {
    for scenario in ALL {
        assert_eq!(run(scenario, 3), run(scenario, 3), "{}", scenario.name);
    }
}
