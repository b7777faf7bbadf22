//! Performance profile of a connection, measured once.

use std::time::Duration;

use farcall_link::Geometry;

/// Costs of READs of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCost {
    /// The size in bytes.
    pub len_bytes: u32,
    /// Latency in nanoseconds of a READ while no other is in flight: the time that a client waits for a fetch.
    pub alone_ns: u64,
    /// Nanoseconds between READs at full rate, which is limited by the in-bound rate of the server.
    pub each_ns: u64,
}

/// Performance of a connection, and the ranges of R and F derived from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkProfile {
    reads: Vec<ReadCost>,
    reply_ns: u64,
    pub(super) low_bytes: u32,
    pub(super) high_bytes: u32,
    pub(super) retries_bound: u32,
    posting: Option<Posting>,
}

/// Costs of posting and waiting on a device. Measuring them takes too long for a single connection, but not for a
/// profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Largest message in bytes for which copying it into its work request is no slower.
    pub inline_max_bytes: u32,
    /// Smallest signalling interval, in work requests, whose cost is negligible.
    pub signal_every: u16,
    /// Duration of an idle turn in nanoseconds.
    pub idle_turn_ns: u64,
    /// Additional latency of a message, in nanoseconds, if the receiver sleeps and does not poll.
    pub wake_ns: u64,
}

/// A measurement of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Latency of one READ.
    Read {
        /// Its length.
        len_bytes: u32,
    },
    /// Duration of [`BURST_LEN`] READs that are posted together.
    Reads {
        /// The length of each.
        len_bytes: u32,
    },
    /// Duration of posting [`BURST_LEN`] replies and of a READ of the smallest size posted after them.
    Replies,
}

/// Number of requests that a probe posts together.
pub const BURST_LEN: u32 = 16;

/// Why costs are not those of a valid connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProfile {
    /// There is no READ.
    #[error("no READ was measured")]
    NoRead,
    /// A size is 0, or not above the one before it.
    #[error("the sizes of READs do not ascend from 1 byte: {0} bytes is out of order")]
    Order(u32),
    /// A time is 0 or longer than [`TIME_NS_MAX`].
    #[error("{0} ns is no time of a READ or a reply: it is from 1 ns to 1 s")]
    Time(u64),
    /// A number of [`Posting`] is out of range.
    #[error("{what} {value} is out of range: {min} to {max}")]
    Posting {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
}

/// Upper limit of the duration of a request, in nanoseconds.
pub const TIME_NS_MAX: u64 = 1_000_000_000;

/// L is the largest size whose rate is at least this share of the smallest size's, in percent.
const LOW_RATE_PERCENT: u64 = 90;
/// H is the smallest size whose bandwidth is at least this share of the best, in percent.
const HIGH_BANDWIDTH_PERCENT: u128 = 90;
/// Upper limit of N.
const RETRIES_BOUND_MAX: u64 = 1_000;

impl LinkProfile {
    /// Derives a profile from the costs of READs, in ascending order of size, and the cost in nanoseconds of posting a
    /// reply.
    ///
    /// # Errors
    /// Returns [`InvalidProfile`] if the costs are not those of a valid connection.
    pub fn new(reads: Vec<ReadCost>, reply_ns: u64) -> Result<Self, InvalidProfile> {
        let smallest = *reads.first().ok_or(InvalidProfile::NoRead)?;
        let mut below = 0;
        for read in &reads {
            if read.len_bytes <= below {
                return Err(InvalidProfile::Order(read.len_bytes));
            }
            below = read.len_bytes;
        }
        let times = reads.iter().flat_map(|read| [read.alone_ns, read.each_ns]).chain([reply_ns]);
        if let Some(time) = times.into_iter().find(|time| !(1..=TIME_NS_MAX).contains(time)) {
            return Err(InvalidProfile::Time(time));
        }
        let as_quick = |read: &&ReadCost| read.each_ns * LOW_RATE_PERCENT <= smallest.each_ns * 100;
        let low = reads.iter().take_while(as_quick).last().copied().unwrap_or(smallest);
        Ok(Self {
            low_bytes: low.len_bytes,
            high_bytes: bandwidth_rules_from(&reads).max(low.len_bytes),
            retries_bound: fetches_that_pay(low.each_ns, reply_ns),
            reply_ns,
            reads,
            posting: None,
        })
    }

    /// Adds the costs of posting and waiting.
    ///
    /// # Errors
    /// Returns [`InvalidProfile`] if a cost is out of range.
    pub fn with_posting(self, posting: Posting) -> Result<Self, InvalidProfile> {
        let Posting { inline_max_bytes, signal_every, idle_turn_ns, wake_ns } = posting;
        let ranges = [
            ("inline_max_bytes", u64::from(inline_max_bytes), 0, 4_096),
            ("signal_every", u64::from(signal_every), 1, Geometry::WINDOW_MAX.into()),
            ("idle_turn_ns", idle_turn_ns, 1, TIME_NS_MAX),
            ("wake_ns", wake_ns, 1, TIME_NS_MAX),
        ];
        match ranges.into_iter().find(|(_, value, min, max)| !(min..=max).contains(&value)) {
            Some((what, value, min, max)) => Err(InvalidProfile::Posting { what, value, min, max }),
            None => Ok(Self { posting: Some(posting), ..self }),
        }
    }

    /// Measures a connection. `probe` makes one measurement and returns its duration; the shortest of several
    /// durations counts. Each round measures all sizes, so that a disturbance affects all of them equally. `again`
    /// receives the number of rounds so far, and returns whether to make another one.
    ///
    /// # Errors
    /// Returns [`InvalidProfile`] if the sizes do not ascend, or there are none.
    pub fn measure(
        sizes: &[u32],
        mut again: impl FnMut(u32) -> bool,
        mut probe: impl FnMut(Probe) -> Duration,
    ) -> Result<Self, InvalidProfile> {
        let mut shortest = |what, ns: &mut u64| *ns = (probe(what).as_nanos() as u64).clamp(1, *ns);
        let mut reads: Vec<(u32, u64, u64)> =
            sizes.iter().map(|len_bytes| (*len_bytes, TIME_NS_MAX, TIME_NS_MAX)).collect();
        let mut replies_ns = TIME_NS_MAX;
        let mut rounds = 0;
        while again(rounds) {
            rounds += 1;
            for (len_bytes, alone_ns, together_ns) in &mut reads {
                shortest(Probe::Read { len_bytes: *len_bytes }, alone_ns);
                shortest(Probe::Reads { len_bytes: *len_bytes }, together_ns);
            }
            shortest(Probe::Replies, &mut replies_ns);
        }
        // The last one of requests that are posted together takes the latency of a single request; each of the others
        // adds the interval at full rate.
        let each =
            |whole_ns: u64, last_ns: u64, others: u64| (whole_ns.saturating_sub(last_ns) / others).max(1);
        let cost = |(len_bytes, alone_ns, together_ns): (u32, u64, u64)| {
            let each_ns = each(together_ns, alone_ns, u64::from(BURST_LEN - 1)).min(alone_ns);
            ReadCost { len_bytes, alone_ns, each_ns }
        };
        let reads: Vec<ReadCost> = reads.into_iter().map(cost).collect();
        let smallest = reads.first().ok_or(InvalidProfile::NoRead)?;
        let reply_ns = each(replies_ns, smallest.alone_ns, BURST_LEN.into());
        Self::new(reads, reply_ns)
    }

    /// Returns the costs of READs, in ascending order of size.
    pub fn reads(&self) -> &[ReadCost] {
        &self.reads
    }

    /// Returns the cost in nanoseconds of a result that the server writes: a WRITE at full rate.
    pub const fn reply_ns(&self) -> u64 {
        self.reply_ns
    }

    /// Returns L in bytes: the size below which READs do not get faster.
    pub const fn low_bytes(&self) -> u32 {
        self.low_bytes
    }

    /// Returns H in bytes: the size from which on bandwidth limits the rate.
    pub const fn high_bytes(&self) -> u32 {
        self.high_bytes
    }

    /// Returns N: the number of failed fetches at which the rate of fetching has decreased to that of replying.
    pub const fn retries_bound(&self) -> u32 {
        self.retries_bound
    }

    /// Returns the costs of posting and waiting, if they were measured.
    pub const fn posting(&self) -> Option<Posting> {
        self.posting
    }

    /// Returns the cost of a READ of `len_bytes` bytes: that of the next measured size.
    pub fn read(&self, len_bytes: u32) -> ReadCost {
        let at = self.reads.partition_point(|read| read.len_bytes < len_bytes);
        self.reads[at.min(self.reads.len() - 1)]
    }
}

/// Returns H: the size from which on the duration of READs is proportional to their size.
fn bandwidth_rules_from(reads: &[ReadCost]) -> u32 {
    let best = reads.iter().max_by(|a, b| {
        let (of_a, of_b) = (u128::from(a.len_bytes), u128::from(b.len_bytes));
        (of_a * u128::from(b.each_ns)).cmp(&(of_b * u128::from(a.each_ns)))
    });
    let is_near = |read: &&ReadCost, best: &ReadCost| {
        let (bytes, best_bytes) = (u128::from(read.len_bytes), u128::from(best.len_bytes));
        bytes * u128::from(best.each_ns) * 100
            >= best_bytes * u128::from(read.each_ns) * HIGH_BANDWIDTH_PERCENT
    };
    let first = best.and_then(|best| reads.iter().find(|read| is_near(read, best)));
    first.map_or(0, |read| read.len_bytes)
}

/// Returns N: a result after k failed fetches costs k + 1 READs; N is the first k for which this is at least the cost
/// of a reply.
fn fetches_that_pay(read_ns: u64, reply_ns: u64) -> u32 {
    (reply_ns.div_ceil(read_ns) - 1).clamp(1, RETRIES_BOUND_MAX) as u32
}

/// The network of the paper's evaluation, from the rates stated in its text. Figure 1 is only a picture: between 256 B
/// and 1 KB no rate is known, and L and H are those stated in section 3.2.
#[cfg(test)]
impl LinkProfile {
    pub(super) fn of_connectx3() -> Self {
        // Section 2.2, figure 1: 11.26 million READs in-bound, from 7 machines of 4 threads with one READ each;
        // 2.11 million WRITEs out-bound; from 2 KB on both are alike.
        let (in_bound_ns, out_bound_ns, alone_ns) = (1e9 / 11.26e6, 1e9 / 2.11e6, 28.0 * 1e9 / 11.26e6);
        let each_ns = |len_bytes: u32| match len_bytes {
            // Section 3.2: below L = 256 READs get no faster.
            ..=256 => in_bound_ns,
            // Section 3.2: above H = 1,024 the rate falls in proportion to the size.
            _ => out_bound_ns * f64::from(len_bytes) / 2_048.0,
        };
        let cost = |len_bytes| ReadCost {
            len_bytes,
            alone_ns: alone_ns as u64,
            each_ns: each_ns(len_bytes).round() as u64,
        };
        let reads = [64, 128, 256, 1_024, 2_048, 4_096].map(cost).to_vec();
        Self::new(reads, out_bound_ns.round() as u64).unwrap()
    }

    /// Creates a profile in which a READ takes as long alone as among others.
    pub(super) fn of_times(times: &[(u32, u64)], reply_ns: u64) -> Self {
        let cost = |&(len_bytes, ns)| ReadCost { len_bytes, alone_ns: ns, each_ns: ns };
        Self::new(times.iter().map(cost).collect(), reply_ns).unwrap()
    }

    pub(super) fn with_reply_ns(self, reply_ns: u64) -> Self {
        Self { reply_ns, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_from_the_times() {
        let times = [(64, 100), (128, 100), (256, 110), (512, 150), (1_024, 250), (2_048, 500)];
        let profile = LinkProfile::of_times(&times, 600);
        assert_eq!((profile.low_bytes, profile.high_bytes, profile.retries_bound), (256, 1_024, 5));
        let lengths = [1, 300, 9_999].map(|len_bytes| profile.read(len_bytes).each_ns);
        assert_eq!(lengths, [100, 150, 500]);
        for (reply_ns, bound) in [(1, 1), (110, 1), (220, 1), (221, 2), (331, 3), (TIME_NS_MAX, 1_000)] {
            assert_eq!(LinkProfile::of_times(&times, reply_ns).retries_bound, bound, "{reply_ns} ns");
        }
    }

    #[test]
    fn separates_single_request_cost_from_bursts_and_keeps_minima() {
        let mut disturbed = [true, false, true].into_iter().cycle();
        let profile = LinkProfile::measure(
            &[64, 4_096],
            |rounds| rounds < 16,
            |probe| {
                let ns = match probe {
                    Probe::Read { len_bytes } => 2_000 + u64::from(len_bytes),
                    Probe::Reads { len_bytes } => 2_000 + u64::from(len_bytes) + 15 * 90,
                    Probe::Replies => 16 * 470 + 2_064,
                };
                Duration::from_nanos(if disturbed.next().unwrap() { 3 * ns } else { ns })
            },
        );
        let profile = profile.unwrap();
        let costs = profile.reads().iter().map(|read| (read.len_bytes, read.alone_ns, read.each_ns));
        assert_eq!(costs.collect::<Vec<_>>(), [(64, 2_064, 90), (4_096, 6_096, 90)]);
        assert_eq!(profile.reply_ns(), 470);
        assert_eq!(LinkProfile::measure(&[], |_| false, |_| Duration::ZERO), Err(InvalidProfile::NoRead));
        // A stopped clock, or a connection that never responds, still results in a profile.
        for answer in [Duration::ZERO, Duration::MAX] {
            assert_eq!(
                LinkProfile::measure(&[64], |rounds| rounds < 1, |_| answer).unwrap().retries_bound(),
                1
            );
        }
    }

    #[test]
    fn costs_of_no_connection_are_refused() {
        let read = |len_bytes, alone_ns, each_ns| ReadCost { len_bytes, alone_ns, each_ns };
        let refused = |reads: &[ReadCost], reply_ns| LinkProfile::new(reads.to_vec(), reply_ns).unwrap_err();
        assert_eq!(refused(&[], 1), InvalidProfile::NoRead);
        assert_eq!(refused(&[read(0, 1, 1)], 1), InvalidProfile::Order(0));
        assert_eq!(refused(&[read(64, 1, 1), read(64, 1, 1)], 1), InvalidProfile::Order(64));
        assert_eq!(refused(&[read(64, 0, 1)], 1), InvalidProfile::Time(0));
        assert_eq!(refused(&[read(64, 1, u64::MAX)], 1), InvalidProfile::Time(u64::MAX));
        assert_eq!(refused(&[read(64, 1, 1)], 0), InvalidProfile::Time(0));
        let extreme = [read(1, 1, 1), read(u32::MAX, TIME_NS_MAX, TIME_NS_MAX)];
        let profile = LinkProfile::new(extreme.to_vec(), TIME_NS_MAX).unwrap();
        let posting = Posting { inline_max_bytes: 0, signal_every: 1, idle_turn_ns: 1, wake_ns: TIME_NS_MAX };
        assert_eq!(profile.clone().with_posting(posting).unwrap().posting(), Some(posting));
        for wrong in [
            Posting { inline_max_bytes: u32::MAX, ..posting },
            Posting { signal_every: 0, ..posting },
            Posting { signal_every: 257, ..posting },
            Posting { idle_turn_ns: 0, ..posting },
            Posting { wake_ns: u64::MAX, ..posting },
        ] {
            let refused = profile.clone().with_posting(wrong).unwrap_err();
            assert!(refused.to_string().contains("out of range"), "{refused}");
        }
    }

    #[test]
    fn the_papers_rates_give_the_papers_ranges() {
        let profile = LinkProfile::of_connectx3();
        assert_eq!((profile.read(64).each_ns, profile.read(64).alone_ns, profile.reply_ns), (89, 2_486, 474));
        assert_eq!((profile.low_bytes, profile.high_bytes, profile.retries_bound), (256, 1_024, 5));
    }
}
