//! Runs of a seed: a world, programs, faults, and the checks that must hold whatever happens.

pub mod calls;
pub mod chaos;
pub mod pairs;
pub mod store;

/// A kind of run: its name, and what runs a seed of it. It panics if something does not hold, and returns the hash of the
/// trace.
pub struct Scenario {
    pub name: &'static str,
    pub run: fn(u64) -> u64,
}

pub const ALL: &[Scenario] = &[
    Scenario { name: "pairs", run: pairs::run },
    Scenario { name: "calls", run: calls::run },
    Scenario { name: "store", run: store::run },
];
