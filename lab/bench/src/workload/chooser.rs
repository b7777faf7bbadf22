//! Choice of the record of the next request.

use super::zipf::{ScrambledZipf, YCSB_THETA, Zipf};
use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

/// A request distribution by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Distribution {
    /// Scrambled Zipfian with skew 0.99.
    Zipfian,
    /// All records with equal probability.
    Uniform,
    /// Zipfian by age, newest first.
    Latest,
}

names! { Distribution { Zipfian => "zipfian", Uniform => "uniform", Latest => "latest" } }

/// Draws records from a [`Distribution`].
#[derive(Debug, Clone)]
pub enum Chooser {
    /// See [`Distribution::Zipfian`].
    Zipfian(ScrambledZipf),
    /// See [`Distribution::Uniform`].
    Uniform {
        /// Number of records.
        records: u64,
    },
    /// See [`Distribution::Latest`]: draws the age of a record.
    Latest(Zipf),
}

impl Chooser {
    /// Creates a chooser over records `0..records` (at least 1).
    ///
    /// # Panics
    /// Panics if `records` is 0.
    pub fn new(distribution: Distribution, records: u64) -> Self {
        assert!(records > 0, "a distribution needs at least one record");
        match distribution {
            Distribution::Zipfian => Self::Zipfian(ScrambledZipf::new(records)),
            Distribution::Uniform => Self::Uniform { records },
            Distribution::Latest => Self::Latest(Zipf::new(records, YCSB_THETA)),
        }
    }

    /// Extends the range to `records` records. Only `Latest` follows inserts, as in YCSB's core workloads.
    pub fn grow(&mut self, records: u64) {
        if let Self::Latest(ages) = self {
            ages.grow(records);
        }
    }

    /// Draws a record.
    pub fn sample(&self, rng: &mut impl Rng) -> u64 {
        match self {
            Self::Zipfian(zipf) => zipf.sample(rng),
            Self::Uniform { records } => rng.random_range(0..*records),
            Self::Latest(ages) => ages.items() - 1 - ages.sample(rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64;

    #[test]
    fn uniform_passes_a_chi_square_test() {
        let chooser = Chooser::new(Distribution::Uniform, 100);
        let mut rng = Pcg64::seed_from_u64(1);
        let mut counts = [0f64; 100];
        for _ in 0..100_000 {
            counts[chooser.sample(&mut rng) as usize] += 1.0;
        }
        let chi_square: f64 = counts.iter().map(|count| (count - 1000.0).powi(2) / 1000.0).sum();
        // 99 degrees of freedom: below 148.2 with probability 0.999.
        assert!(chi_square < 148.2, "chi-square {chi_square}");
    }

    #[test]
    fn prefers_the_newest_record_while_records_are_added() {
        let mut latest = Chooser::new(Distribution::Latest, 100);
        let mut rng = Pcg64::seed_from_u64(9);
        for records in [100u64, 150, 400] {
            latest.grow(records);
            let mut counts = vec![0u32; records as usize];
            for _ in 0..20_000 {
                counts[latest.sample(&mut rng) as usize] += 1;
            }
            let hottest = counts.iter().enumerate().max_by_key(|(_, count)| **count).unwrap().0 as u64;
            assert_eq!(hottest, records - 1);
        }
    }
}
