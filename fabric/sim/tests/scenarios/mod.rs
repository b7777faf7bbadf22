//! Runs of a seed: a world, programs, faults, and checks that must hold in every run.

use std::sync::atomic::{AtomicU64, Ordering};

use farcall_link::{PRESETS, Plan};
use farcall_rpc::Counters;

pub mod calls;
pub mod chaos;
mod endpoints;
pub mod store;
pub mod streams;
pub mod traffic;

/// Counts of events in all runs: a fault that never occurs tests nothing.
pub struct Happened {
    /// Sessions resumed over another connection.
    pub resumed: AtomicU64,
    /// Messages retransmitted over unreliable transports.
    pub resent: AtomicU64,
    /// Results repeated as datagrams.
    pub repeated: AtomicU64,
    /// Batches of calls sent.
    pub batches: AtomicU64,
    /// Results of which clients were notified.
    pub notices: AtomicU64,
    /// Requests for the results of deferred calls.
    pub collects: AtomicU64,
    /// Streams that were read to their end, and that broke.
    pub streams: AtomicU64,
    pub broken: AtomicU64,
    /// Requests of a stream's end to enable or disable wake-ups; and writes that found no space.
    pub wishes: AtomicU64,
    pub stalls: AtomicU64,
}

pub static HAPPENED: Happened = Happened {
    resumed: AtomicU64::new(0),
    resent: AtomicU64::new(0),
    repeated: AtomicU64::new(0),
    batches: AtomicU64::new(0),
    notices: AtomicU64::new(0),
    collects: AtomicU64::new(0),
    streams: AtomicU64::new(0),
    broken: AtomicU64::new(0),
    wishes: AtomicU64::new(0),
    stalls: AtomicU64::new(0),
};

fn note(plan: Plan, counters: &Counters) {
    HAPPENED.resumed.fetch_add(counters.sessions_resumed.get(), Ordering::Relaxed);
    if !plan.transport.is_reliable() {
        HAPPENED.resent.fetch_add(counters.resent.get(), Ordering::Relaxed);
    }
    HAPPENED.repeated.fetch_add(counters.repeated.get(), Ordering::Relaxed);
    HAPPENED.batches.fetch_add(counters.batches.get(), Ordering::Relaxed);
    HAPPENED.notices.fetch_add(counters.notices.get(), Ordering::Relaxed);
    HAPPENED.collects.fetch_add(counters.collects.get(), Ordering::Relaxed);
}

/// Returns the plan of a preset.
fn plan(preset: &str) -> Plan {
    Plan::named(preset).unwrap_or_else(|| panic!("no preset {preset:?}"))
}

/// Returns the presets of the table in turn, by seed: a new preset is included automatically.
fn plan_of_seed(seed: u64) -> Plan {
    PRESETS[(seed % PRESETS.len() as u64) as usize].plan
}

/// A scenario: its name, and the function that runs a seed. The function panics if a check fails, and returns the hash
/// of the trace.
pub struct Scenario {
    pub name: &'static str,
    pub run: fn(u64) -> u64,
}

pub const ALL: &[Scenario] = &[
    Scenario { name: "reliable", run: traffic::reliable },
    Scenario { name: "calls", run: calls::run },
    Scenario { name: "calls-by-sends", run: calls::by_sends },
    Scenario { name: "calls-by-bytes", run: calls::by_bytes },
    Scenario { name: "calls-over-uc", run: calls::over_uc },
    Scenario { name: "calls-batched", run: calls::batched },
    Scenario { name: "calls-by-herd", run: calls::by_herd },
    Scenario { name: "calls-by-datagrams", run: calls::by_datagrams },
    Scenario { name: "calls-by-notices", run: calls::by_notices },
    Scenario { name: "calls-answered-later", run: calls::answered_later },
    Scenario { name: "calls-by-any-preset", run: calls::by_any_preset },
    Scenario { name: "store", run: store::run },
    Scenario { name: "store-by-sends", run: store::by_sends },
    Scenario { name: "store-over-uc", run: store::over_uc },
    Scenario { name: "store-that-is-read", run: store::that_is_read },
    Scenario { name: "store-by-herd", run: store::by_herd },
    Scenario { name: "store-by-datagrams", run: store::by_datagrams },
    Scenario { name: "store-by-notices", run: store::by_notices },
    Scenario { name: "store-by-any-preset", run: store::by_any_preset },
    Scenario { name: "streams", run: streams::run },
    Scenario { name: "unreliable", run: traffic::unreliable },
    Scenario { name: "shared", run: traffic::shared },
];
