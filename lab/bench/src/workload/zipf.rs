//! Zipfian ranks in constant time (Gray et al., 1994), and YCSB's scrambled form.

use rand::{Rng, RngExt};

/// Generator of ranks `0..items` with probability proportional to `1 / (rank + 1)^theta`; rank 0 is the most popular.
///
/// Drawing takes constant time; construction takes time linear in `items`, once. The two most popular ranks have exact
/// probabilities, the others follow Gray's continuous approximation.
#[derive(Debug, Clone)]
pub struct Zipf {
    items: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Creates a generator over `items` ranks (at least 1) with skew `theta`, which must lie strictly between 0 and 1.
    ///
    /// # Panics
    /// Panics if `items` is 0 or `theta` is outside (0, 1).
    pub fn new(items: u64, theta: f64) -> Self {
        assert!(items > 0, "a Zipfian distribution needs at least one item");
        Self::with_zeta(items, theta, zeta(items, theta))
    }

    fn with_zeta(items: u64, theta: f64, zeta_items: f64) -> Self {
        assert!(theta > 0.0 && theta < 1.0, "Gray's generator holds for a skew between 0 and 1");
        let mut zipf = Self { items, theta, alpha: 1.0 / (1.0 - theta), zeta: zeta_items, eta: 0.0 };
        zipf.eta = zipf.eta_of(items);
        zipf
    }

    fn eta_of(&self, items: u64) -> f64 {
        if items <= 2 {
            // Ranks 0 and 1 never reach the approximation, so its coefficient is never used.
            return 0.0;
        }
        (1.0 - (2.0 / items as f64).powf(1.0 - self.theta)) / (1.0 - zeta(2, self.theta) / self.zeta)
    }

    /// Returns the number of ranks.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Adds ranks at the unpopular end, up to a total of `items`. The cost is linear in the number added.
    pub fn grow(&mut self, items: u64) {
        if items <= self.items {
            return;
        }
        self.zeta += (self.items + 1..=items).map(|i| (i as f64).powf(-self.theta)).sum::<f64>();
        self.items = items;
        self.eta = self.eta_of(items);
    }

    /// Draws a rank.
    pub fn sample(&self, rng: &mut impl Rng) -> u64 {
        let u: f64 = rng.random();
        let scaled = u * self.zeta;
        if scaled < 1.0 || self.items == 1 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) || self.items == 2 {
            return 1;
        }
        let rank = (self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64;
        // Rounding may exceed the last rank by one if `u` is close to 1.
        rank.min(self.items - 1)
    }
}

/// Returns the generalised harmonic number of order `theta`.
fn zeta(items: u64, theta: f64) -> f64 {
    // Summing small terms first reduces the rounding error of a long sum.
    (1..=items).rev().map(|i| (i as f64).powf(-theta)).sum()
}

/// Size of the rank space from which YCSB draws scrambled ranks, regardless of the number of records.
const YCSB_RANKS: u64 = 10_000_000_000;
/// zeta(`YCSB_RANKS`, 0.99), a constant in YCSB because its computation takes minutes.
const YCSB_ZETA: f64 = 26.469_028_201_783_02;
/// YCSB's skew.
pub(super) const YCSB_THETA: f64 = 0.99;

/// YCSB's scrambled Zipfian generator: ranks of ten billion, distributed over the records by a hash, so that popular
/// ones do not cluster. The most popular record gets about 3.8 % of the requests.
#[derive(Debug, Clone)]
pub struct ScrambledZipf {
    ranks: Zipf,
    records: u64,
}

impl ScrambledZipf {
    /// Creates a generator over records `0..records` (at least 1) with YCSB's skew of 0.99.
    ///
    /// # Panics
    /// Panics if `records` is 0.
    pub fn new(records: u64) -> Self {
        assert!(records > 0, "a distribution needs at least one record");
        Self { ranks: Zipf::with_zeta(YCSB_RANKS, YCSB_THETA, YCSB_ZETA), records }
    }

    /// Draws a record.
    pub fn sample(&self, rng: &mut impl Rng) -> u64 {
        self.record_of_rank(self.ranks.sample(rng))
    }

    /// Returns the record to which `rank` is mapped.
    fn record_of_rank(&self, rank: u64) -> u64 {
        fnv1a_u64(rank) % self.records
    }
}

/// Returns the 64-bit FNV-1a hash of the eight little-endian bytes of `value`, with the sign bit dropped as in YCSB.
fn fnv1a_u64(value: u64) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let hash = value
        .to_le_bytes()
        .into_iter()
        .fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    // Java's Math.abs on a signed 64-bit value; unsigned_abs differs only for the minimum, which it keeps positive.
    (hash as i64).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64;

    const DRAWS: u64 = 400_000;

    /// Returns the exact probability of a rank.
    fn probability(zipf: &Zipf, rank: u64) -> f64 {
        (rank as f64 + 1.0).powf(-zipf.theta) / zipf.zeta
    }

    fn counts(items: u64, mut draw: impl FnMut() -> u64) -> Vec<u64> {
        let mut counts = vec![0u64; items as usize];
        for _ in 0..DRAWS {
            counts[draw() as usize] += 1;
        }
        counts
    }

    /// Asserts that the count of a draw of probability `p` lies within six standard deviations of its mean.
    fn assert_frequency(count: u64, p: f64) {
        let mean = p * DRAWS as f64;
        let sigma = (mean * (1.0 - p)).sqrt();
        assert!((count as f64 - mean).abs() < 6.0 * sigma, "count {count}, expected {mean} ± {sigma}");
    }

    #[test]
    fn the_two_most_popular_ranks_have_their_exact_probabilities() {
        let zipf = Zipf::new(1000, 0.99);
        let mut rng = Pcg64::seed_from_u64(7);
        let counts = counts(1000, || zipf.sample(&mut rng));
        assert_frequency(counts[0], probability(&zipf, 0));
        assert_frequency(counts[1], probability(&zipf, 1));
    }

    #[test]
    fn the_cumulative_distribution_follows_theory() {
        let zipf = Zipf::new(1000, 0.99);
        let mut rng = Pcg64::seed_from_u64(11);
        let counts = counts(1000, || zipf.sample(&mut rng));
        for upto in [10usize, 50, 100, 500, 1000] {
            let seen = counts[..upto].iter().sum::<u64>() as f64 / DRAWS as f64;
            let theory: f64 = (0..upto as u64).map(|rank| probability(&zipf, rank)).sum();
            // Gray's tail is a continuous approximation, with this stated accuracy.
            assert!((seen - theory).abs() < 0.02, "first {upto}: seen {seen:.4}, theory {theory:.4}");
        }
    }

    #[test]
    fn probabilities_sum_to_one() {
        let zipf = Zipf::new(5000, 0.5);
        let total: f64 = (0..5000).map(|rank| probability(&zipf, rank)).sum();
        assert!((total - 1.0).abs() < 1e-9);
    }

    #[test]
    fn growing_equals_building_larger() {
        let mut grown = Zipf::new(10, 0.99);
        grown.grow(2000);
        grown.grow(1500);
        let built = Zipf::new(2000, 0.99);
        assert_eq!(grown.items(), 2000);
        assert!((grown.zeta - built.zeta).abs() < 1e-9);
        assert!((grown.eta - built.eta).abs() < 1e-9);
    }

    #[test]
    fn tiny_domains_stay_in_range() {
        let mut rng = Pcg64::seed_from_u64(3);
        for items in 1..=4 {
            let zipf = Zipf::new(items, 0.99);
            let mut seen = vec![false; items as usize];
            for _ in 0..2000 {
                seen[zipf.sample(&mut rng) as usize] = true;
            }
            assert!(seen.into_iter().all(|hit| hit), "some rank of {items} never drawn");
        }
    }

    #[test]
    fn ycsb_zeta_is_consistent_with_a_computed_one() {
        // Euler–Maclaurin: zeta(n) ≈ zeta(m) + ∫_m^n x^-theta dx + (n^-theta - m^-theta) / 2.
        let (m, n) = (100_000u64, YCSB_RANKS);
        let integral =
            ((n as f64).powf(1.0 - YCSB_THETA) - (m as f64).powf(1.0 - YCSB_THETA)) / (1.0 - YCSB_THETA);
        let ends = ((n as f64).powf(-YCSB_THETA) - (m as f64).powf(-YCSB_THETA)) / 2.0;
        assert!((zeta(m, YCSB_THETA) + integral + ends - YCSB_ZETA).abs() < 1e-6);
    }

    #[test]
    fn the_scrambled_favourite_gets_its_share() {
        let scrambled = ScrambledZipf::new(100_000);
        let mut rng = Pcg64::seed_from_u64(5);
        let counts = counts(100_000, || scrambled.sample(&mut rng));
        let favourite = scrambled.record_of_rank(0);
        let (hottest, count) = counts.iter().enumerate().max_by_key(|(_, count)| **count).unwrap();
        assert_eq!(hottest as u64, favourite);
        // Other ranks that map to the same record add at most their mean share, 1 / records.
        assert!((probability(&scrambled.ranks, 0) - 0.0378).abs() < 1e-4);
        assert_frequency(*count, probability(&scrambled.ranks, 0) + 1e-5);
    }

    #[test]
    fn fnv_of_zero_multiplies_only_and_byte_order_matters() {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for _ in 0..8 {
            hash = hash.wrapping_mul(0x0000_0100_0000_01b3);
        }
        assert_eq!(fnv1a_u64(0), (hash as i64).unsigned_abs());
        assert_ne!(fnv1a_u64(1), fnv1a_u64(256));
    }
}
