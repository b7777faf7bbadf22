//! Long tests with seeds: `FARCALL_HOSTILE_SECONDS` is the duration of each attack, `FARCALL_TEST_SEED` the seed.
//! `bash .ci/run --lane hostile soak` runs them for longer.

mod door;
mod holdings;
mod neighbour;
mod shortage;
mod soak;
mod traffic;

use rand::SeedableRng;
use rand_pcg::Pcg64;
use std::time::Duration;

/// Returns the duration of an attack.
fn attack_time() -> Duration {
    Duration::from_secs(number_of("FARCALL_HOSTILE_SECONDS").unwrap_or(20))
}

/// Returns the seed of a run, and prints it.
fn seed() -> u64 {
    let seed = number_of("FARCALL_TEST_SEED").unwrap_or(1);
    println!("again with FARCALL_TEST_SEED={seed}");
    seed
}

/// Returns the random number generator of one of several threads.
fn random(seed: u64, thread: u64) -> Pcg64 {
    Pcg64::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(thread))
}

fn number_of(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}
