//! Requests skewed towards the records inserted last (YCSB workload D).

use super::zipf::Zipf;
use rand::Rng;

/// Draws records with Zipfian probability in the order of their age: the youngest is the most popular.
#[derive(Debug, Clone)]
pub struct Latest {
    ages: Zipf,
}

impl Latest {
    /// Over records `0..records` (at least 1), the youngest being `records - 1`.
    ///
    /// # Panics
    /// When `records` is 0.
    #[must_use]
    pub fn new(records: u64) -> Self {
        Self { ages: Zipf::new(records, 0.99) }
    }

    /// Says that records up to `records` exist now.
    pub fn grow(&mut self, records: u64) {
        self.ages.grow(records);
    }

    /// Draws a record.
    pub fn sample(&self, rng: &mut impl Rng) -> u64 {
        self.ages.items() - 1 - self.ages.sample(rng)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn the_youngest_is_the_favourite_and_stays_so_while_records_are_added() {
        let mut latest = Latest::new(100);
        let mut rng = ChaCha8Rng::seed_from_u64(9);
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
