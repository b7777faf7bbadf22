//! Fault injection on the wire, by seed:
//! `FARCALL_WIRE_FAULTS=seed=7,loss=0.01,duplicate=0.01,reorder=0.01,corrupt=0.01`.
//!
//! It applies to all packets that this process sends over RoCEv2. `delay_us=100` delays every packet by at most that
//! time. `mark=0.01` marks packets of connected queue pairs as if they had encountered congestion (ECN); their peers
//! send notifications, and the queue pairs slow down. `partition_ms=500..900` drops all packets between these times
//! after the port was opened.

use std::ops::Range;

use farcall_shm::trusted_variable;
use farcall_verbs::{Error, Result};

const VARIABLE: &str = "FARCALL_WIRE_FAULTS";

/// Delay of a packet that is to arrive after later ones.
const REORDERED_NS: u64 = 500_000;

/// Injected faults, and their rates as probabilities.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rates {
    loss: f64,
    duplicate: f64,
    reorder: f64,
    corrupt: f64,
    mark: f64,
    delay_ns: u64,
    partition_ns: Range<u64>,
}

/// Fault injection of a port.
#[derive(Debug)]
pub(super) struct Faults {
    rates: Rates,
    random: u64,
}

/// Faults decided for a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultDecision {
    pub(super) is_lost: bool,
    pub(super) is_duplicated: bool,
    /// Position of the bit to flip, as a fraction of the packet in units of 2^-32; `None` if none is flipped.
    pub(super) flipped_bit: Option<u32>,
    /// Delay of the packet.
    pub(super) delay_ns: u64,
    /// `true` if it is marked as having encountered congestion.
    pub(super) is_marked: bool,
}

impl Faults {
    /// Reads the configuration from the environment; `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if it is malformed.
    pub(super) fn configured() -> Result<Option<Self>> {
        let Some(text) = trusted_variable(VARIABLE) else { return Ok(None) };
        let text = text.to_string_lossy();
        Self::parse(&text).map(Some).map_err(|why| {
            let form = "seed=7,loss=0.01,duplicate=0.01,reorder=0.01,corrupt=0.01,mark=0.01,delay_us=100,partition_ms=500..900";
            Error::invalid("read FARCALL_WIRE_FAULTS", format!("{text:?}: {why}; write {form}, or some of it"))
        })
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let (mut rates, mut seed) = (Rates::default(), 1);
        for setting in text.split(',').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').ok_or_else(|| format!("{setting} has no value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{value} is no number"));
            let rate = || match value.parse::<f64>() {
                Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(rate),
                _ => Err(format!("{value} is no probability from 0 to 1")),
            };
            match name {
                "seed" => seed = number()?,
                "loss" => rates.loss = rate()?,
                "duplicate" => rates.duplicate = rate()?,
                "reorder" => rates.reorder = rate()?,
                "corrupt" => rates.corrupt = rate()?,
                "mark" => rates.mark = rate()?,
                "delay_us" => rates.delay_ns = number()?.saturating_mul(1_000),
                "partition_ms" => {
                    let ends = value.split_once("..").and_then(|(from, to)| {
                        let ns = |ms: &str| ms.parse::<u64>().ok()?.checked_mul(1_000_000);
                        Some(ns(from)?..ns(to)?)
                    });
                    rates.partition_ns = ends.ok_or_else(|| format!("{value} is no range"))?;
                }
                _ => return Err(format!("{name} is unknown")),
            }
        }
        Ok(Self { rates, random: seed })
    }

    /// SplitMix64: small, and identical on all platforms.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    fn happens(&mut self, rate: f64) -> bool {
        (self.next() >> 11) as f64 / ((1_u64 << 53) as f64) < rate
    }

    /// Decides the faults of the next packet. Each packet consumes the same number of random numbers, so that one rate
    /// does not affect the other faults.
    pub(super) fn decide(&mut self, now_ns: u64) -> FaultDecision {
        let Rates { loss, duplicate, reorder, corrupt, mark, delay_ns, partition_ns } = self.rates.clone();
        let (is_lost, is_duplicated) = (self.happens(loss), self.happens(duplicate));
        let (is_late, is_corrupted) = (self.happens(reorder), self.happens(corrupt));
        let (flipped_bit, delay) = (self.next() as u32, self.next());
        let is_marked = self.happens(mark);
        FaultDecision {
            is_lost: is_lost || partition_ns.contains(&now_ns),
            is_duplicated,
            flipped_bit: is_corrupted.then_some(flipped_bit),
            delay_ns: if is_late { REORDERED_NS } else { 0 }
                + if delay_ns > 0 { delay % delay_ns } else { 0 },
            is_marked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_faults_as_often_as_asked_for() {
        let decisions = |text| {
            let mut faults = Faults::parse(text).unwrap();
            (0..10_000).map(|at| faults.decide(at)).collect::<Vec<_>>()
        };
        let text = "seed=7,loss=0.1,duplicate=0.2,reorder=0.3,corrupt=0.4,mark=0.5";
        let all = decisions(text);
        assert_eq!(all, decisions(text));
        assert_ne!(all, decisions("seed=8,loss=0.1,duplicate=0.2,reorder=0.3,corrupt=0.4,mark=0.5"));
        let share = |selected: fn(&FaultDecision) -> bool| {
            all.iter().filter(|decision| selected(decision)).count() / 1000
        };
        assert!(
            (0..=1).contains(&share(|decision| decision.is_lost))
                && (1..=2).contains(&share(|decision| decision.is_duplicated))
        );
        assert!((2..=3).contains(&share(|decision| decision.delay_ns > 0)));
        assert!((3..=4).contains(&share(|decision| decision.flipped_bit.is_some())));
        assert!((4..=5).contains(&share(|decision| decision.is_marked)));
        assert!(decisions("").iter().all(|decision| *decision == FaultDecision::default()));
    }

    #[test]
    fn a_partition_and_delays_keep_to_their_times() {
        let mut faults = Faults::parse("partition_ms=5..6,delay_us=10").unwrap();
        assert!(!faults.decide(4_999_999).is_lost && faults.decide(5_000_000).is_lost);
        assert!(!faults.decide(6_000_000).is_lost);
        assert!((0..100).all(|_| faults.decide(0).delay_ns < 10_000));
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for wrong in ["loss", "loss=2", "loss=-1", "noise=1", "seed=x", "partition_ms=5", "partition_ms=a..b"]
        {
            assert!(Faults::parse(wrong).is_err(), "{wrong}");
        }
    }
}
