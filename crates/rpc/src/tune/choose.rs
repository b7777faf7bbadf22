//! Enumeration over R in [1, N] and F in [L, H].

use super::LinkProfile;
use crate::wire::{RESPONSE_HEADER_BYTES, message_bytes};

/// One result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its size in bytes.
    pub result_bytes: u32,
    /// How long the server worked on it, in nanoseconds.
    pub time_ns: u64,
}

/// R and F.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// R: fetches that may fail before a call counts as slow.
    pub retries_max: u32,
    /// F: bytes of a fetch.
    pub fetch_bytes: u32,
}

/// F is tried in steps of a cache line.
const STEP_BYTES: u32 = 64;

/// The R and F that maximise equation 2 over the samples: the sum of each result's rate, halved where F is shorter than
/// the message. The rate I(R, F) of a result whose process time makes k fetches fail is that of k + 1 READs of F bytes if
/// k ≤ R, else that of a reply. Among equals the smallest F (fewer bytes) and the largest R (no needless switch) win.
pub fn choose(profile: &LinkProfile, samples: &[Sample]) -> Choice {
    let mut best = Choice { retries_max: profile.retries_bound, fetch_bytes: profile.low_bytes };
    let mut best_rate = 0.0;
    let mut fetch_bytes = profile.low_bytes;
    while fetch_bytes <= profile.high_bytes {
        for retries_max in (1..=profile.retries_bound).rev() {
            let rate = samples.iter().map(|sample| rate(profile, sample, retries_max, fetch_bytes)).sum();
            // A difference in the last digits is none.
            if rate > best_rate * (1.0 + 1e-9) {
                (best, best_rate) = (Choice { retries_max, fetch_bytes }, rate);
            }
        }
        fetch_bytes = fetch_bytes.next_multiple_of(STEP_BYTES) + STEP_BYTES;
    }
    best
}

/// T_i of equation 2, per nanosecond.
fn rate(profile: &LinkProfile, sample: &Sample, retries_max: u32, fetch_bytes: u32) -> f64 {
    let read_ns = profile.read_ns(fetch_bytes);
    let failed = sample.time_ns / read_ns;
    if failed > u64::from(retries_max) {
        return 1.0 / profile.reply_ns.max(1) as f64;
    }
    let whole = message_bytes(RESPONSE_HEADER_BYTES, sample.result_bytes as usize) <= fetch_bytes as usize;
    let rate = 1.0 / ((failed + 1) * read_ns) as f64;
    if whole { rate } else { rate / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(sizes: &[u32], time_ns: u64) -> Vec<Sample> {
        sizes.iter().map(|size| Sample { result_bytes: *size, time_ns }).collect()
    }

    #[test]
    fn the_papers_setting_gives_the_papers_choice() {
        // 16 B keys, 32 B values: R = 5, F = 256.
        let choice = choose(&LinkProfile::of_connectx3(), &samples(&[32; 100], 200));
        assert_eq!(choice, Choice { retries_max: 5, fetch_bytes: 256 });
    }

    #[test]
    fn f_grows_when_most_results_are_longer() {
        let profile = LinkProfile::of_connectx3();
        let long = choose(&profile, &samples(&[400; 10], 200));
        assert!((432..=512).contains(&long.fetch_bytes), "{long:?}");
        let few = choose(&profile, &samples(&[32, 32, 32, 32, 32, 32, 32, 900], 200));
        assert_eq!(few.fetch_bytes, 256, "one long result in eight does not pay");
    }

    #[test]
    fn r_shrinks_when_replies_serve_slow_calls_better() {
        let profile = LinkProfile { reply_ns: 3_000, ..LinkProfile::of_connectx3() };
        let mut mixed = samples(&[32; 10], 200);
        mixed.extend(samples(&[32; 10], 4_000));
        let choice = choose(&profile, &mixed);
        assert!(choice.retries_max < 3, "{choice:?}");
        assert_eq!(choose(&profile, &[]).retries_max, 5);
    }
}
