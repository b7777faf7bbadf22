//! What a connection can do, measured once.

use std::time::Duration;

/// What a connection can do, and the ranges of R and F that follow from it.
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
    /// Nanoseconds that a result written by the server costs it: a WRITE of this provider.
    pub reply_ns: u64,
}

/// What a probe measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// How long a READ takes.
    Read {
        /// Its length.
        bytes: u32,
    },
    /// What a reply costs who posts it.
    Reply,
}

/// L is the largest size whose rate is at least this share of the smallest size's, in percent.
const LOW_RATE_PERCENT: u64 = 90;
/// H is the largest size whose rate is at least this share of L's, in percent.
const HIGH_RATE_PERCENT: u64 = 40;
/// N is never larger.
const RETRIES_BOUND_MAX: u64 = 1_000;

/// A client fetches for no longer than this before a reply serves it better, whatever that costs: the paper's choice.
const FETCHING_MAX: Duration = Duration::from_micros(7);

impl LinkProfile {
    /// Derives a profile from the shortest time of a READ by size and the cost of a reply. N, the bound of R, is as
    /// many READs as fit into 7 µs.
    ///
    /// # Panics
    /// If no READ was measured.
    pub fn from_times(read_ns_by_size: Vec<(u32, u64)>, reply_ns: u64) -> Self {
        assert!(!read_ns_by_size.is_empty(), "no READ was measured");
        let largest_within = |floor_ns: u64, percent: u64| {
            let quick = read_ns_by_size.iter().take_while(|(_, ns)| ns * percent <= floor_ns * 100);
            quick.last().unwrap_or(&read_ns_by_size[0])
        };
        let (low_bytes, low_ns) = *largest_within(read_ns_by_size[0].1.max(1), LOW_RATE_PERCENT);
        let (high_bytes, _) = *largest_within(low_ns.max(1), HIGH_RATE_PERCENT);
        let retries_bound = FETCHING_MAX.as_nanos() as u64 / low_ns.max(1);
        Self {
            low_bytes,
            high_bytes: high_bytes.max(low_bytes),
            retries_bound: retries_bound.clamp(1, RETRIES_BOUND_MAX) as u32,
            reply_ns: reply_ns.max(1),
            read_ns_by_size,
        }
    }

    /// Measures a connection: `probe` says how long something takes; the shortest of several answers counts. Sizes take
    /// turns, so that a disturbance meets all of them alike.
    ///
    /// # Panics
    /// If there are no sizes.
    pub fn measure(sizes: &[u32], mut probe: impl FnMut(Probe) -> Duration) -> Self {
        const ROUNDS: u32 = 16;
        let mut reads: Vec<(u32, u64)> = sizes.iter().map(|bytes| (*bytes, u64::MAX)).collect();
        let mut reply_ns = u64::MAX;
        let mut shortest = |what, ns: &mut u64| *ns = (probe(what).as_nanos() as u64).clamp(1, *ns);
        for _ in 0..ROUNDS {
            for (bytes, ns) in &mut reads {
                shortest(Probe::Read { bytes: *bytes }, ns);
            }
            shortest(Probe::Reply, &mut reply_ns);
        }
        Self::from_times(reads, reply_ns)
    }

    /// Nanoseconds of a READ of so many bytes: those of the next size measured.
    pub fn read_ns(&self, bytes: u32) -> u64 {
        let at = self.read_ns_by_size.partition_point(|(size, _)| *size < bytes);
        let (_, ns) = self.read_ns_by_size.get(at).or(self.read_ns_by_size.last()).copied().unwrap_or((0, 1));
        ns.max(1)
    }

    /// The network of the paper's evaluation, roughly: READs at the in-bound rates of figure 1 over five fetches in 7
    /// µs, and replies at its 2.11 million out-bound operations a second.
    pub fn of_connectx3() -> Self {
        let reads = vec![(64, 1_200), (256, 1_250), (512, 1_600), (1_024, 2_400), (4_096, 8_000)];
        Self::from_times(reads, 1_000_000_000 / 2_110_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_from_the_times() {
        let times = vec![(64, 100), (128, 100), (256, 110), (512, 150), (1_024, 250), (2_048, 500)];
        let profile = LinkProfile::from_times(times, 80);
        assert_eq!((profile.low_bytes, profile.high_bytes, profile.retries_bound), (256, 1_024, 63));
        assert_eq!((profile.read_ns(1), profile.read_ns(300), profile.read_ns(9_999)), (100, 150, 500));
        let mut replies = [90, 70, 80].into_iter().cycle();
        let measured = LinkProfile::measure(&[64, 4_096], |probe| match probe {
            Probe::Read { bytes } => Duration::from_nanos(bytes.into()),
            Probe::Reply => Duration::from_nanos(replies.next().unwrap()),
        });
        assert_eq!(measured.read_ns_by_size, [(64, 64), (4_096, 4_096)]);
        assert_eq!(measured.reply_ns, 70);
    }

    #[test]
    fn the_papers_rates_give_the_papers_ranges() {
        let profile = LinkProfile::of_connectx3();
        assert_eq!((profile.low_bytes, profile.high_bytes, profile.retries_bound), (256, 1_024, 5));
        assert_eq!(profile.reply_ns, 473);
    }
}
