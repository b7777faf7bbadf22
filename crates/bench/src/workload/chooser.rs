//! Which record the next request touches.

use super::latest::Latest;
use super::zipf::ScrambledZipf;
use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A request distribution by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Scrambled Zipfian with skew 0.99.
    Zipfian,
    /// Every record alike.
    Uniform,
    /// Zipfian by age, youngest first.
    Latest,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zipfian => "zipfian",
            Self::Uniform => "uniform",
            Self::Latest => "latest",
        })
    }
}

/// The text is not the name of a distribution.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown distribution {0:?}; choose zipfian, uniform or latest")]
pub struct UnknownDistribution(String);

impl FromStr for Distribution {
    type Err = UnknownDistribution;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Zipfian, Self::Uniform, Self::Latest]
            .into_iter()
            .find(|distribution| distribution.to_string() == text)
            .ok_or_else(|| UnknownDistribution(text.to_owned()))
    }
}

/// Draws records from a [`Distribution`].
#[derive(Debug, Clone)]
pub enum Chooser {
    /// See [`Distribution::Zipfian`].
    Zipfian(ScrambledZipf),
    /// See [`Distribution::Uniform`].
    Uniform {
        /// How many records there are.
        records: u64,
    },
    /// See [`Distribution::Latest`].
    Latest(Latest),
}

impl Chooser {
    /// Draws from records `0..records` (at least 1).
    ///
    /// # Panics
    /// When `records` is 0.
    #[must_use]
    pub fn new(distribution: Distribution, records: u64) -> Self {
        assert!(records > 0, "a distribution needs at least one record");
        match distribution {
            Distribution::Zipfian => Self::Zipfian(ScrambledZipf::new(records)),
            Distribution::Uniform => Self::Uniform { records },
            Distribution::Latest => Self::Latest(Latest::new(records)),
        }
    }

    /// Says that records up to `records` exist. Only `Latest` follows inserts, as in YCSB's core workloads.
    pub fn grow(&mut self, records: u64) {
        if let Self::Latest(latest) = self {
            latest.grow(records);
        }
    }

    /// Draws a record.
    pub fn sample(&self, rng: &mut impl Rng) -> u64 {
        match self {
            Self::Zipfian(zipf) => zipf.sample(rng),
            Self::Uniform { records } => rng.random_range(0..*records),
            Self::Latest(latest) => latest.sample(rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn uniform_passes_a_chi_square_test() {
        let chooser = Chooser::new(Distribution::Uniform, 100);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut counts = [0f64; 100];
        for _ in 0..100_000 {
            counts[chooser.sample(&mut rng) as usize] += 1.0;
        }
        let chi_square: f64 = counts.iter().map(|count| (count - 1000.0).powi(2) / 1000.0).sum();
        // 99 degrees of freedom: below 148.2 with probability 0.999.
        assert!(chi_square < 148.2, "chi-square {chi_square}");
    }

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for distribution in [Distribution::Zipfian, Distribution::Uniform, Distribution::Latest] {
            assert_eq!(distribution.to_string().parse(), Ok(distribution));
        }
        assert!("zipf".parse::<Distribution>().unwrap_err().to_string().contains("choose zipfian"));
    }
}
