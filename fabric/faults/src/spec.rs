//! The textual specification of faults: `key=value`, separated by commas.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// Environment variable that enables faults in programs.
pub const VARIABLE: &str = "FARCALL_FAULTS";

/// The keys, in the order of their documentation.
const KEYS: &str =
    "seed, rnr, drop, delay, kill_qp, qp_fatal, post_full, reg_mr, create_qp, create_cq, after, limit";

/// Error of parsing a specification.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecError {
    /// Unknown key.
    #[error("no fault {key:?}; there are {KEYS}")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A key without a value.
    #[error("{key} has no value; write {key}={wanted}")]
    NoValue {
        /// The key.
        key: String,
        /// Description of the accepted values.
        wanted: &'static str,
    },
    /// A value that the key does not accept.
    #[error("{key}={value}: {key} takes {wanted}")]
    BadValue {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Description of the accepted values.
        wanted: &'static str,
    },
    /// A key that occurs twice.
    #[error("{key} stands there twice")]
    Twice {
        /// The key.
        key: String,
    },
}

/// A probability from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Chance(f64);

impl Chance {
    /// Never.
    pub const NEVER: Self = Self(0.0);

    /// Creates a probability; `None` if it is not from 0 to 1.
    pub fn new(probability: f64) -> Option<Self> {
        (0.0..=1.0).contains(&probability).then_some(Self(probability))
    }

    /// Returns whether the event can happen.
    pub fn is_possible(self) -> bool {
        self.0 > 0.0
    }

    /// Returns whether the event happens, given 64 random bits.
    pub(crate) fn hits(self, bits: u64) -> bool {
        // 53 bits make an exact fraction of 1.
        ((bits >> 11) as f64) * (1.0 / (1_u64 << 53) as f64) < self.0
    }
}

/// Delay of completions, uniformly distributed from `min` to `max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// Minimum.
    pub min: Duration,
    /// Maximum.
    pub max: Duration,
}

impl Delay {
    /// Returns the delay in nanoseconds, given 64 random bits.
    pub(crate) fn nanos(self, bits: u64) -> u64 {
        let (min, max) = (self.min.as_nanos() as u64, self.max.as_nanos() as u64);
        let span = u128::from(max - min) + 1;
        min + ((u128::from(bits) * span) >> 64) as u64
    }
}

/// Maximum delay: longer than every timeout, and short enough that no number overflows.
const LONGEST: Duration = Duration::from_secs(3600);

/// Specification of faults. The default specifies none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// Seed of all random decisions; chosen if it is `None`.
    pub seed: Option<u64>,
    /// Probability that a SEND or WRITE with immediate over RC finds the receiver not ready, for each attempt.
    pub rnr: Chance,
    /// Probability that a message is lost, for each transmission. Over UC and UD it is lost forever, over RC it is
    /// retransmitted.
    pub drop: Chance,
    /// Delay of completions.
    pub delay: Delay,
    /// Probability that the connection breaks at a request: the request ends in `RETRY_EXC_ERR`, and the rest of the
    /// queue pair is flushed.
    pub kill_qp: Chance,
    /// Probability that the queue pair itself fails at a request: all requests are flushed, and an event is raised.
    pub qp_fatal: Chance,
    /// Probability that a request is refused because the queue is full.
    pub post_full: Chance,
    /// Probability that a registration fails for lack of memory.
    pub reg_mr: Chance,
    /// Probability that the creation of a queue pair fails for lack of memory.
    pub create_qp: Chance,
    /// Probability that the creation of a completion queue fails for lack of memory.
    pub create_cq: Chance,
    /// Number of requests of each queue pair, at its beginning, that have no faults.
    pub after: u64,
    /// Maximum number of faults of a queue pair, not counting delays.
    pub limit: Option<u64>,
}

fn bad(key: &str, value: &str, wanted: &'static str) -> SpecError {
    SpecError::BadValue { key: key.to_owned(), value: value.to_owned(), wanted }
}

const PROBABILITY: &str = "a probability from 0 to 1, such as 1e-3";
const NUMBER: &str = "a number from 0 to 18446744073709551615";
const DURATION: &str =
    "a time up to an hour with its unit, such as 50us, or a range, such as 10us..2ms (ns, us, ms, s)";

fn chance(key: &str, value: &str) -> Result<Chance, SpecError> {
    value.parse().ok().and_then(Chance::new).ok_or_else(|| bad(key, value, PROBABILITY))
}

fn number(key: &str, value: &str) -> Result<u64, SpecError> {
    let parsed = match value.strip_prefix("0x") {
        // `from_str_radix` accepts a sign.
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        _ if value.starts_with('+') => None,
        _ => value.parse().ok(),
    };
    parsed.ok_or_else(|| bad(key, value, NUMBER))
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (amount, unit) = text.split_at(digits);
    let nanos_each: u64 = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let nanos = amount.parse::<u64>().ok()?.checked_mul(nanos_each)?;
    Some(Duration::from_nanos(nanos)).filter(|duration| *duration <= LONGEST)
}

fn delay(key: &str, value: &str) -> Result<Delay, SpecError> {
    let (min, max) = value.split_once("..").unwrap_or((value, value));
    match (duration(min), duration(max)) {
        (Some(min), Some(max)) if min <= max => Ok(Delay { min, max }),
        _ => Err(bad(key, value, DURATION)),
    }
}

/// Returns a description of the values that a key accepts; `None` if there is no such key.
fn wanted(key: &str) -> Option<&'static str> {
    KEYS.split(", ").any(|known| known == key).then_some(match key {
        "seed" | "after" | "limit" => NUMBER,
        "delay" => DURATION,
        _ => PROBABILITY,
    })
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut spec = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim())),
                None => (part, None),
            };
            let wanted = wanted(key).ok_or_else(|| SpecError::UnknownKey { key: key.to_owned() })?;
            let value = value
                .filter(|value| !value.is_empty())
                .ok_or_else(|| SpecError::NoValue { key: key.to_owned(), wanted })?;
            if seen.contains(&key) {
                return Err(SpecError::Twice { key: key.to_owned() });
            }
            seen.push(key);
            spec.set(key, value)?;
        }
        Ok(spec)
    }
}

impl Spec {
    fn set(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        let chance_of = match key {
            "seed" => return number(key, value).map(|seed| self.seed = Some(seed)),
            "after" => return number(key, value).map(|after| self.after = after),
            "limit" => return number(key, value).map(|limit| self.limit = Some(limit)),
            "delay" => return delay(key, value).map(|delay| self.delay = delay),
            _ => self.chances().into_iter().find(|(name, _)| *name == key),
        };
        let (_, chance_of) = chance_of.ok_or_else(|| SpecError::UnknownKey { key: key.to_owned() })?;
        *chance_of = chance(key, value)?;
        Ok(())
    }

    /// Returns the probabilities by their keys.
    fn chances(&mut self) -> [(&'static str, &mut Chance); 8] {
        [
            ("rnr", &mut self.rnr),
            ("drop", &mut self.drop),
            ("kill_qp", &mut self.kill_qp),
            ("qp_fatal", &mut self.qp_fatal),
            ("post_full", &mut self.post_full),
            ("reg_mr", &mut self.reg_mr),
            ("create_qp", &mut self.create_qp),
            ("create_cq", &mut self.create_cq),
        ]
    }
}

/// Writes the text that parses to the same specification.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        parts.extend(self.seed.map(|seed| format!("seed={seed}")));
        let mut copy = self.clone();
        let possible = copy.chances().into_iter().filter(|(_, chance)| chance.is_possible());
        parts.extend(possible.map(|(key, chance)| format!("{key}={:e}", chance.0)));
        let Delay { min, max } = self.delay;
        if min == max && !max.is_zero() {
            parts.push(format!("delay={}ns", min.as_nanos()));
        } else if min != max {
            parts.push(format!("delay={}ns..{}ns", min.as_nanos(), max.as_nanos()));
        }
        parts.extend((self.after > 0).then(|| format!("after={}", self.after)));
        parts.extend(self.limit.map(|limit| format!("limit={limit}")));
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_the_examples_of_the_manual() {
        let spec: Spec = "seed=7,rnr=1e-3,delay=50us,kill_qp=1e-6".parse().unwrap();
        assert_eq!((spec.seed, spec.rnr, spec.kill_qp), (Some(7), Chance(1e-3), Chance(1e-6)));
        assert_eq!(spec.delay, Delay { min: Duration::from_micros(50), max: Duration::from_micros(50) });
        let spec: Spec = " drop = 1 , delay=1ms..2s, after=3, limit=1, seed=0xff,".parse().unwrap();
        assert_eq!((spec.drop, spec.after, spec.limit, spec.seed), (Chance(1.0), 3, Some(1), Some(255)));
        assert_eq!(spec.delay.max, Duration::from_secs(2));
        assert_eq!("".parse(), Ok(Spec::default()));
    }

    #[test]
    fn names_an_invalid_entry_and_the_valid_ones() {
        for (text, said) in [
            ("sed=7", "no fault \"sed\"; there are seed, rnr, drop, delay,"),
            ("rnr", "rnr has no value; write rnr=a probability"),
            ("rnr=2", "rnr=2: rnr takes a probability from 0 to 1"),
            ("rnr=NaN", "rnr=NaN: rnr takes a probability"),
            ("delay=50", "delay=50: delay takes a time up to an hour with its unit, such as 50us"),
            ("delay=2ms..1ms", "delay takes a time"),
            ("delay=9999999s", "delay takes a time"),
            ("seed=-1", "seed=-1: seed takes a number"),
            ("seed=0x+1", "seed takes a number"),
            ("rnr=0.1,rnr=0.2", "rnr stands there twice"),
        ] {
            let error = text.parse::<Spec>().unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn certainties_are_certain() {
        for bits in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!(Chance(1.0).hits(bits) && !Chance::NEVER.hits(bits));
        }
        let delay = Delay { min: Duration::from_nanos(5), max: Duration::from_nanos(7) };
        assert_eq!([0, u64::MAX / 2, u64::MAX].map(|bits| delay.nanos(bits)), [5, 6, 7]);
    }

    fn probability() -> impl Strategy<Value = Chance> {
        prop_oneof![Just(0.0), Just(1.0), 0.0..1.0].prop_map(Chance)
    }

    prop_compose! {
        fn spec()(
            (seed, after, limit) in (any::<Option<u64>>(), any::<u64>(), any::<Option<u64>>()),
            chances in prop::array::uniform8(probability()),
            times in (0_u64..=3_600_000_000_000, 0_u64..=3_600_000_000_000),
        ) -> Spec {
            let [rnr, drop, kill_qp, qp_fatal, post_full, reg_mr, create_qp, create_cq] = chances;
            let [min, max] = [times.0.min(times.1), times.0.max(times.1)].map(Duration::from_nanos);
            let delay = Delay { min, max };
            Spec { seed, rnr, drop, delay, kill_qp, qp_fatal, post_full, reg_mr, create_qp, create_cq, after, limit }
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in any::<String>()) {
            let _ = text.parse::<Spec>();
        }

        #[test]
        fn almost_right_texts_are_judged(
            text in "((seed|rnr|delay|after|drop|x)=?(0x|-|[+])?[0-9]{0,25}([.]{1,2}|e-?)?[0-9]{0,4}(us|s|ms|h)?,?){0,4}"
        ) {
            let _ = text.parse::<Spec>();
        }

        #[test]
        fn prints_a_specification_of_the_same_faults(spec in spec()) {
            prop_assert_eq!(spec.to_string().parse::<Spec>(), Ok(spec));
        }
    }
}
