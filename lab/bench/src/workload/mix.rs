//! Kind of the next operation: the mixes of the YCSB core workloads.

use super::chooser::Distribution;
use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Get one record.
    Read,
    /// Overwrite one record.
    Update,
    /// Add a new record.
    Insert,
    /// Get one record, then overwrite it.
    ReadModifyWrite,
    /// Get a short range of records.
    Scan,
}

/// A YCSB core workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Workload {
    /// Update heavy: half reads, half updates.
    A,
    /// Read mostly: 95 % reads.
    B,
    /// Read only.
    C,
    /// Read latest: 95 % reads of new records, 5 % inserts.
    D,
    /// Short ranges: 95 % scans, 5 % inserts. Needs an ordered store.
    E,
    /// Half reads, half read-modify-writes.
    F,
}

impl Workload {
    /// Every workload, in order.
    pub const ALL: [Self; 6] = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];
    /// Workloads that an unordered store supports.
    pub const UNORDERED: [Self; 5] = [Self::A, Self::B, Self::C, Self::D, Self::F];

    /// Returns the kinds of operations with their shares in percent, which add up to 100.
    pub fn shares(self) -> &'static [(OpKind, u32)] {
        match self {
            Self::A => &[(OpKind::Read, 50), (OpKind::Update, 50)],
            Self::B => &[(OpKind::Read, 95), (OpKind::Update, 5)],
            Self::C => &[(OpKind::Read, 100)],
            Self::D => &[(OpKind::Read, 95), (OpKind::Insert, 5)],
            Self::E => &[(OpKind::Scan, 95), (OpKind::Insert, 5)],
            Self::F => &[(OpKind::Read, 50), (OpKind::ReadModifyWrite, 50)],
        }
    }

    /// Draws the next kind of operation.
    pub fn sample(self, rng: &mut impl Rng) -> OpKind {
        let mut left = rng.random_range(0..100u32);
        for (kind, percent) in self.shares() {
            match left.checked_sub(*percent) {
                Some(rest) => left = rest,
                None => return *kind,
            }
        }
        // Unreachable for shares that add up to 100; a read has no side effects.
        OpKind::Read
    }

    /// Returns YCSB's request distribution for the workload.
    pub fn distribution(self) -> Distribution {
        if self == Self::D { Distribution::Latest } else { Distribution::Zipfian }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64;
    use std::collections::HashMap;

    #[test]
    fn draws_follow_the_shares() {
        let mut rng = Pcg64::seed_from_u64(21);
        for workload in Workload::ALL {
            let mut counts: HashMap<OpKind, u32> = HashMap::new();
            for _ in 0..50_000 {
                *counts.entry(workload.sample(&mut rng)).or_default() += 1;
            }
            assert_eq!(workload.shares().iter().map(|(_, percent)| percent).sum::<u32>(), 100, "{workload}");
            for (kind, percent) in workload.shares() {
                let seen = f64::from(counts[kind]) / 500.0;
                assert!(
                    (seen - f64::from(*percent)).abs() < 1.2,
                    "{workload} {kind:?}: {seen} % of {percent} %"
                );
            }
        }
    }
}
