//! Enumeration over R in [1, N] and F in [L, H].

use super::{LinkProfile, ReadCost};
use crate::wire::{RESPONSE_HEADER_BYTES, message_bytes};

/// Size and processing time of one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Size in bytes.
    pub result_bytes: u32,
    /// Processing time at the server, in nanoseconds.
    pub time_ns: u64,
}

/// R and F.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// R: number of fetches that may fail before a call counts as slow.
    pub retries_max: u32,
    /// F: number of bytes of a fetch.
    pub fetch_bytes: u32,
}

/// F is a multiple of a cache line.
const STEP_BYTES: u32 = 64;

/// Selects R and F. Retains its memory between calls.
#[derive(Debug)]
pub struct Chooser {
    candidates: Vec<u32>,
    /// For each sample: the number of fetches that fail, and the gain of fetching compared with a reply.
    gains: Vec<(u64, f64)>,
}

impl Chooser {
    /// Creates a chooser that allocates no further memory for up to `samples` samples and profiles of up to 16 sizes.
    pub fn new(samples: usize) -> Self {
        const SIZES_AND_LOW: usize = 17;
        Self { candidates: Vec::with_capacity(samples + SIZES_AND_LOW), gains: Vec::with_capacity(samples) }
    }

    /// Returns the R and F that maximise equation 2 over the samples: the sum of each result's rate, halved where F is
    /// shorter than the message. The rate I(R, F) of a result whose processing time makes k fetches fail is the rate of
    /// `k + 1` READs of F bytes if k ≤ R, and the rate of a reply otherwise. Among equal sums the smallest F (fewer
    /// bytes) and the largest R (no unnecessary switch) are preferred.
    ///
    /// Only pairs that can be optimal are tried. F matters only where it reaches the length of a message, or where
    /// READs become more expensive (a slower READ may fail once less). R matters only where it passes a sample's k.
    /// The number of failing fetches is computed from the latency of a single READ, the rates from the cost at full
    /// rate.
    pub fn choose(&mut self, profile: &LinkProfile, samples: &[Sample]) -> Choice {
        let mut best = Choice { retries_max: profile.retries_bound, fetch_bytes: profile.low_bytes };
        let mut best_rate = 0.0;
        self.find_candidates(profile, samples);
        for at in 0..self.candidates.len() {
            let fetch_bytes = self.candidates[at];
            let (retries_max, rate) = self.best_retries(profile, samples, fetch_bytes);
            // Differences within rounding errors do not count.
            if rate > best_rate * (1.0 + 1e-9) {
                (best, best_rate) = (Choice { retries_max, fetch_bytes }, rate);
            }
        }
        best
    }

    /// Collects L and, between L and H, all message lengths and all sizes at which READs become more expensive, in
    /// ascending order.
    fn find_candidates(&mut self, profile: &LinkProfile, samples: &[Sample]) {
        let (low, high) = (profile.low_bytes, profile.high_bytes);
        let lengths =
            samples.iter().map(|sample| whole_message_bytes(sample).checked_next_multiple_of(STEP_BYTES));
        let dearer = profile.reads().iter().map(|read| read.len_bytes.saturating_add(STEP_BYTES));
        let all = lengths.flatten().chain(dearer).filter(|bytes| (low..=high).contains(bytes));
        self.candidates.clear();
        self.candidates.extend(all.chain([low]));
        self.candidates.sort_unstable();
        self.candidates.dedup();
    }

    /// Returns the best R for an F, and the sum of equation 2 with it, per nanosecond.
    fn best_retries(&mut self, profile: &LinkProfile, samples: &[Sample], fetch_bytes: u32) -> (u32, f64) {
        let bound = u64::from(profile.retries_bound);
        let reply = 1.0 / profile.reply_ns() as f64;
        let read = profile.read(fetch_bytes);
        let gains = samples.iter().map(|sample| {
            let failed = sample.time_ns / read.alone_ns;
            let rate = rate_of_fetching(sample, read);
            let whole = whole_message_bytes(sample) <= fetch_bytes;
            (failed, if whole { rate } else { rate / 2.0 } - reply)
        });
        self.gains.clear();
        self.gains.extend(gains.filter(|(failed, _)| *failed <= bound));
        self.gains.sort_unstable_by_key(|(failed, _)| *failed);
        let mut rate = reply * samples.len() as f64 + self.gains.iter().map(|(_, gain)| gain).sum::<f64>();
        let mut best = (profile.retries_bound, rate);
        // In descending order of R: with R just below a sample's k, that sample becomes a reply.
        while let Some((failed, gain)) = self.gains.pop() {
            rate -= gain;
            let settled = self.gains.last().is_none_or(|(next, _)| *next < failed);
            if settled && failed > 1 && rate > best.1 * (1.0 + 1e-9) {
                best = (failed as u32 - 1, rate);
            }
        }
        best
    }
}

/// Returns the results per nanosecond that READs at full rate fetch. On average P / (latency of one READ) of them
/// fail. Rounding this number down would make a longer F seem to save a READ.
fn rate_of_fetching(sample: &Sample, read: ReadCost) -> f64 {
    let failed = sample.time_ns as f64 / read.alone_ns as f64;
    1.0 / ((failed + 1.0) * read.each_ns as f64)
}

fn whole_message_bytes(sample: &Sample) -> u32 {
    u32::try_from(message_bytes(RESPONSE_HEADER_BYTES, sample.result_bytes as usize)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(profile: &LinkProfile, samples: &[Sample]) -> Choice {
        Chooser::new(samples.len()).choose(profile, samples)
    }

    fn samples(sizes: &[u32], time_ns: u64) -> Vec<Sample> {
        sizes.iter().map(|size| Sample { result_bytes: *size, time_ns }).collect()
    }

    const TIMES: [(u32, u64); 5] = [(64, 100), (256, 100), (512, 130), (1_024, 190), (2_048, 380)];

    #[test]
    fn the_papers_setting_gives_the_papers_choice() {
        // Section 5.1: R = 5 and F = 256 for 16 B keys and 32 B values. Figure 7: two threads serve 5.5 million calls
        // a second, so a call takes them 364 ns.
        let choice = choose(&LinkProfile::of_connectx3(), &samples(&[32; 100], 364));
        assert_eq!(choice, Choice { retries_max: 5, fetch_bytes: 256 });
        // The paper's N follows from this: at R > N a reply is better. Four fetches may fail; at the fifth, a reply is
        // better.
        let slow = |failed: u64| {
            let times = samples(&[32; 100], failed * 2_486);
            choose(&LinkProfile::of_connectx3(), &times).retries_max
        };
        assert_eq!((slow(4), slow(5)), (5, 4));
    }

    #[test]
    fn f_grows_when_most_results_are_longer() {
        let profile = LinkProfile::of_times(&TIMES, 500);
        let long = choose(&profile, &samples(&[400; 10], 50));
        assert!((432..=512).contains(&long.fetch_bytes), "{long:?}");
        let few = choose(&profile, &samples(&[32, 32, 32, 32, 32, 32, 32, 900], 50));
        assert_eq!(few.fetch_bytes, 256, "one long result in eight does not pay");
    }

    /// Evaluates equation 2 directly, for every pair.
    fn enumerate_all(profile: &LinkProfile, samples: &[Sample]) -> f64 {
        let rate = |sample: &Sample, retries_max: u32, fetch_bytes: u32| {
            let read = profile.read(fetch_bytes);
            let failed = sample.time_ns / read.alone_ns;
            let whole = whole_message_bytes(sample) <= fetch_bytes;
            match failed <= u64::from(retries_max) {
                true => rate_of_fetching(sample, read) / if whole { 1.0 } else { 2.0 },
                false => 1.0 / profile.reply_ns() as f64,
            }
        };
        let mut best = 0.0_f64;
        for fetch_bytes in (profile.low_bytes..=profile.high_bytes).step_by(8) {
            for retries_max in 1..=profile.retries_bound {
                best = best.max(samples.iter().map(|sample| rate(sample, retries_max, fetch_bytes)).sum());
            }
        }
        best
    }

    proptest::proptest! {
        #[test]
        fn nothing_that_the_full_enumeration_finds_is_missed(
            drawn in proptest::collection::vec((0_u32..1_500, 0_u64..20_000), 1..20), reply_ns in 50_u64..1_000,
        ) {
            let profile = LinkProfile::of_connectx3().with_reply_ns(reply_ns);
            let samples: Vec<Sample> =
                drawn.into_iter().map(|(result_bytes, time_ns)| Sample { result_bytes, time_ns }).collect();
            let choice = choose(&profile, &samples);
            let (_, rate) = Chooser::new(0).best_retries(&profile, &samples, choice.fetch_bytes);
            proptest::prop_assert!(rate >= enumerate_all(&profile, &samples) * 0.999_999);
            proptest::prop_assert!((1..=profile.retries_bound).contains(&choice.retries_max));
        }
    }

    #[test]
    fn r_lies_where_a_reply_costs_less_than_the_fetches_of_a_call() {
        // A provider whose READ takes 100 ns and whose reply costs 650 ns: seven READs are more expensive than a
        // reply.
        let profile = LinkProfile::of_times(&[(64, 100)], 650);
        assert_eq!(profile.retries_bound, 6);
        let mut mixed = samples(&[16; 10], 120);
        assert_eq!(choose(&profile, &mixed).retries_max, 6, "nothing is slow: no needless switch");
        mixed.extend(samples(&[16; 10], 310));
        assert_eq!(choose(&profile, &mixed).retries_max, 6, "a reply costs more than four READs");
        let cheap = profile.with_reply_ns(250);
        assert_eq!(
            choose(&cheap, &mixed).retries_max,
            2,
            "R between 1 and N: a reply costs less than four READs"
        );
    }

    #[test]
    fn r_shrinks_when_replies_serve_slow_calls_better() {
        let profile = LinkProfile::of_connectx3().with_reply_ns(200);
        let mut mixed = samples(&[32; 10], 200);
        mixed.extend(samples(&[32; 10], 8_000));
        let choice = choose(&profile, &mixed);
        assert!(choice.retries_max < 3, "{choice:?}");
        assert_eq!(choose(&profile, &[]).retries_max, 5);
    }
}
