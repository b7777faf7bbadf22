//! Runs of a seed: a world, programs, faults, and the checks that must hold whatever happens.

use std::sync::atomic::{AtomicU64, Ordering};

use farcall_link::{PRESETS, Plan};
use farcall_rpc::Counters;

pub mod calls;
pub mod chaos;
mod endpoints;
pub mod store;
pub mod streams;
pub mod traffic;

/// What happened to clients in all runs: a fault that never comes tests nothing.
pub struct Happened {
    /// Sessions that went on over another connection.
    pub resumed: AtomicU64,
    /// Messages sent again over unreliable transports.
    pub resent: AtomicU64,
    /// Results that came again, as datagrams.
    pub repeated: AtomicU64,
    /// Batches of calls that were sent.
    pub batches: AtomicU64,
    /// Results that clients were told of.
    pub notices: AtomicU64,
    /// Questions for answers that came later.
    pub collects: AtomicU64,
    /// Streams that were read to their end, and that broke.
    pub streams: AtomicU64,
    pub broken: AtomicU64,
    /// How often an end of a stream asked for wake-ups, or for none; and writes that found no room.
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

/// The plan of a preset.
fn plan(preset: &str) -> Plan {
    Plan::named(preset).unwrap_or_else(|| panic!("no preset {preset:?}"))
}

/// One preset of the table after the other, seed by seed: a new one joins by itself.
fn plan_of_seed(seed: u64) -> Plan {
    PRESETS[(seed % PRESETS.len() as u64) as usize].plan
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
