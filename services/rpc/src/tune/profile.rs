//! What a connection can do, measured once.

use std::time::Duration;

use farcall_link::Geometry;

/// What READs of one size cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCost {
    /// The size in bytes.
    pub len_bytes: u32,
    /// Nanoseconds that one takes, with no other under way: so long a client waits for a fetch.
    pub alone_ns: u64,
    /// Nanoseconds from one to the next at full rate: the in-bound rate of the server.
    pub each_ns: u64,
}

/// What a connection can do, and the ranges of R and F that follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkProfile {
    reads: Vec<ReadCost>,
    reply_ns: u64,
    pub(super) low_bytes: u32,
    pub(super) high_bytes: u32,
    pub(super) retries_bound: u32,
    posting: Option<Posting>,
}

/// What posting and waiting cost on a device: too long to measure for one connection, but not for a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Up to so many bytes it is no slower to copy a message into its work request.
    pub inline_max_bytes: u32,
    /// Signalling one work request in so many costs next to nothing.
    pub signal_every: u16,
    /// Nanoseconds that a turn takes which finds nothing.
    pub idle_turn_ns: u64,
    /// Nanoseconds that a message takes longer to who sleeps than to who polls.
    pub wake_ns: u64,
}

/// What a probe measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// How long one READ takes.
    Read {
        /// Its length.
        len_bytes: u32,
    },
    /// How long [`IN_A_ROW`] READs take that are posted together.
    Reads {
        /// The length of each.
        len_bytes: u32,
    },
    /// How long [`IN_A_ROW`] replies take who posts them, and the shortest READ behind them.
    Replies,
}

/// Requests of a probe that are posted together.
pub const IN_A_ROW: u32 = 16;

/// Why costs are those of no connection.
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
        /// Which.
        what: &'static str,
        /// What was found.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
}

/// No request takes longer, in nanoseconds.
pub const TIME_NS_MAX: u64 = 1_000_000_000;

/// L is the largest size whose rate is at least this share of the smallest size's, in percent.
const LOW_RATE_PERCENT: u64 = 90;
/// H is the smallest size whose bandwidth is at least this share of the best, in percent.
const HIGH_BANDWIDTH_PERCENT: u128 = 90;
/// N is never larger.
const RETRIES_BOUND_MAX: u64 = 1_000;

impl LinkProfile {
    /// Derives a profile from what READs cost, by ascending size, and what a reply costs who posts it, in nanoseconds.
    ///
    /// # Errors
    /// If these are the costs of no connection.
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

    /// The same, with what posting and waiting cost.
    ///
    /// # Errors
    /// If these are the costs of no device.
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

    /// Measures a connection: `probe` says how long something takes; the shortest of several answers counts. Sizes take
    /// turns, so that a disturbance meets all of them alike; `again` is told how many rounds there were, and ends them.
    ///
    /// # Errors
    /// If the sizes do not ascend, or there are none.
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
        // Of requests posted together the last one takes as long as alone, the others from one to the next.
        let each =
            |whole_ns: u64, last_ns: u64, others: u64| (whole_ns.saturating_sub(last_ns) / others).max(1);
        let cost = |(len_bytes, alone_ns, together_ns): (u32, u64, u64)| {
            let each_ns = each(together_ns, alone_ns, u64::from(IN_A_ROW - 1)).min(alone_ns);
            ReadCost { len_bytes, alone_ns, each_ns }
        };
        let reads: Vec<ReadCost> = reads.into_iter().map(cost).collect();
        let smallest = reads.first().ok_or(InvalidProfile::NoRead)?;
        let reply_ns = each(replies_ns, smallest.alone_ns, IN_A_ROW.into());
        Self::new(reads, reply_ns)
    }

    /// What READs cost, by ascending size.
    pub fn reads(&self) -> &[ReadCost] {
        &self.reads
    }

    /// Nanoseconds that a result written by the server costs it: a WRITE at full rate.
    pub const fn reply_ns(&self) -> u64 {
        self.reply_ns
    }

    /// L, in bytes: below this size READs do not get faster.
    pub const fn low_bytes(&self) -> u32 {
        self.low_bytes
    }

    /// H, in bytes: from this size on bandwidth rules.
    pub const fn high_bytes(&self) -> u32 {
        self.high_bytes
    }

    /// N: so many fetches fail until the rate of fetching has fallen to that of replying.
    pub const fn retries_bound(&self) -> u32 {
        self.retries_bound
    }

    /// What posting and waiting cost, if that was measured.
    pub const fn posting(&self) -> Option<Posting> {
        self.posting
    }

    /// What a READ of so many bytes costs: as the next size measured.
    pub fn read(&self, len_bytes: u32) -> ReadCost {
        let at = self.reads.partition_point(|read| read.len_bytes < len_bytes);
        self.reads[at.min(self.reads.len() - 1)]
    }
}

/// H: longer READs take longer in proportion.
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

/// N: a result that k fetches missed costs k + 1 READs; the first k with which that is no less than a reply.
fn fetches_that_pay(read_ns: u64, reply_ns: u64) -> u32 {
    (reply_ns.div_ceil(read_ns) - 1).clamp(1, RETRIES_BOUND_MAX) as u32
}

/// The network of the paper's evaluation, by the rates that its text states. Figure 1 itself is a picture: between 256 B
/// and 1 KB no rate is known, and L and H enter as section 3.2 states them.
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

    /// The same where a READ takes as long alone as among others.
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
    fn a_probe_tells_one_request_from_many_and_the_shortest_counts() {
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
        // A clock that stands still, and a connection that gives no answer: a profile all the same.
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
