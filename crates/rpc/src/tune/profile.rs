//! What a link can do, measured once.

use std::time::Duration;

/// The rate of READs by size, and the ranges of R and F that follow from it.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkProfile {
    /// Size in bytes, nanoseconds a READ of that size takes; sizes ascend.
    pub read_ns_by_size: Vec<(u32, u64)>,
    /// L: below this size READs do not get faster.
    pub low_bytes: u32,
    /// H: above this size bandwidth rules.
    pub high_bytes: u32,
    /// N: more fetches than this are not worth a client's time.
    pub retries_bound: u32,
    /// Nanoseconds that a result written by the server is taken to cost it.
    pub reply_ns: u64,
}

/// L is the largest size whose rate is at least this share of the smallest size's, in percent.
const LOW_RATE_PERCENT: u64 = 90;
/// H is the largest size whose rate is at least this share of L's, in percent.
const HIGH_RATE_PERCENT: u64 = 40;
/// N is never larger.
const RETRIES_BOUND_MAX: u64 = 1_000;

impl LinkProfile {
    /// How long a client should rather fetch than let the server write: the paper's crossing, where fetching was less
    /// than 10 % ahead.
    pub const PATIENCE: Duration = Duration::from_micros(7);

    /// Derives a profile from the shortest time of a READ by size. `patience` bounds R: N is as many READs as fit into it.
    ///
    /// # Panics
    /// If nothing was measured.
    pub fn from_times(read_ns_by_size: Vec<(u32, u64)>, patience: Duration) -> Self {
        assert!(!read_ns_by_size.is_empty(), "no READ was measured");
        let largest_within = |floor_ns: u64, percent: u64| {
            let quick = read_ns_by_size.iter().take_while(|(_, ns)| ns * percent <= floor_ns * 100);
            quick.last().unwrap_or(&read_ns_by_size[0])
        };
        let (low_bytes, low_ns) = *largest_within(read_ns_by_size[0].1.max(1), LOW_RATE_PERCENT);
        let (high_bytes, _) = *largest_within(low_ns.max(1), HIGH_RATE_PERCENT);
        let patience_ns = patience.as_nanos() as u64;
        let retries_bound = (patience_ns / low_ns.max(1)).clamp(1, RETRIES_BOUND_MAX) as u32;
        Self {
            low_bytes,
            high_bytes: high_bytes.max(low_bytes),
            retries_bound,
            reply_ns: patience_ns,
            read_ns_by_size,
        }
    }

    /// Measures a link: `read(bytes)` says how long a READ takes; the shortest of several answers counts. The sizes
    /// take turns, so that a disturbance meets all of them alike.
    ///
    /// # Panics
    /// If there are no sizes.
    pub fn measure(sizes: &[u32], mut read: impl FnMut(u32) -> Duration, patience: Duration) -> Self {
        const ROUNDS: u32 = 16;
        let mut shortest: Vec<(u32, u64)> = sizes.iter().map(|bytes| (*bytes, u64::MAX)).collect();
        for _ in 0..ROUNDS {
            for (bytes, ns) in &mut shortest {
                *ns = (read(*bytes).as_nanos() as u64).clamp(1, *ns);
            }
        }
        Self::from_times(shortest, patience)
    }

    /// Nanoseconds of a READ of so many bytes: those of the next size measured.
    pub fn read_ns(&self, bytes: u32) -> u64 {
        let at = self.read_ns_by_size.partition_point(|(size, _)| *size < bytes);
        let (_, ns) = self.read_ns_by_size.get(at).or(self.read_ns_by_size.last()).copied().unwrap_or((0, 1));
        ns.max(1)
    }

    /// The link of the paper's evaluation, roughly: figure 1's in-bound rates, L = 256, H = 1024, N = 5.
    pub fn of_connectx3() -> Self {
        Self {
            read_ns_by_size: vec![(64, 1_200), (256, 1_250), (512, 1_600), (1_024, 2_400), (4_096, 8_000)],
            low_bytes: 256,
            high_bytes: 1_024,
            retries_bound: 5,
            reply_ns: 7_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_from_the_times() {
        let times = vec![(64, 100), (128, 100), (256, 110), (512, 150), (1_024, 250), (2_048, 500)];
        let profile = LinkProfile::from_times(times, Duration::from_micros(7));
        assert_eq!((profile.low_bytes, profile.high_bytes, profile.retries_bound), (256, 1_024, 63));
        let by_turns = LinkProfile::measure(
            &[64, 4_096],
            |bytes| Duration::from_nanos(bytes.into()),
            LinkProfile::PATIENCE,
        );
        assert_eq!(by_turns.read_ns_by_size, [(64, 64), (4_096, 4_096)]);
        assert_eq!((profile.read_ns(1), profile.read_ns(300), profile.read_ns(9_999)), (100, 150, 500));
    }
}
