//! Runs of a seed: a world, programs, faults, and the checks that must hold whatever happens.

use std::sync::atomic::{AtomicU64, Ordering};

pub mod calls;
pub mod chaos;
mod endpoints;
pub mod store;
pub mod traffic;

/// Sessions that went on over another connection, in all runs: a fault that never comes tests nothing.
static RESUMED: AtomicU64 = AtomicU64::new(0);

fn note_resumed(sessions: u64) {
    RESUMED.fetch_add(sessions, Ordering::Relaxed);
}

/// How many sessions went on over another connection so far.
pub fn resumed() -> u64 {
    RESUMED.load(Ordering::Relaxed)
}

/// Batches of calls that were sent, in all runs.
static BATCHES: AtomicU64 = AtomicU64::new(0);

fn note_batches(batches: u64) {
    BATCHES.fetch_add(batches, Ordering::Relaxed);
}

/// How many batches were sent so far.
pub fn batches() -> u64 {
    BATCHES.load(Ordering::Relaxed)
}

/// A kind of run: its name, and what runs a seed of it. It panics if something does not hold, and returns the hash of
/// the trace.
pub struct Scenario {
    pub name: &'static str,
    pub run: fn(u64) -> u64,
}

pub const ALL: &[Scenario] = &[
    Scenario { name: "reliable", run: traffic::reliable },
    Scenario { name: "calls", run: calls::run },
    Scenario { name: "calls-by-sends", run: calls::by_sends },
    Scenario { name: "calls-over-uc", run: calls::over_uc },
    Scenario { name: "calls-batched", run: calls::batched },
    Scenario { name: "store", run: store::run },
    Scenario { name: "store-by-sends", run: store::by_sends },
    Scenario { name: "store-over-uc", run: store::over_uc },
    Scenario { name: "store-that-is-read", run: store::that_is_read },
    Scenario { name: "unreliable", run: traffic::unreliable },
    Scenario { name: "shared", run: traffic::shared },
];
