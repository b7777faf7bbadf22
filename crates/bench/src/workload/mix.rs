//! What the next request does: the mixes of the YCSB core workloads.

use super::chooser::Distribution;
use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OpKind {
    /// Get one record.
    Read,
    /// Overwrite one record.
    Update,
    /// Add a new record.
    Insert,
    /// Get one record, then overwrite it.
    ReadModifyWrite,
}

/// Shares of the operations, in percent; they add up to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// Percentage of [`OpKind::Read`].
    pub read_percent: u32,
    /// Percentage of [`OpKind::Update`].
    pub update_percent: u32,
    /// Percentage of [`OpKind::Insert`].
    pub insert_percent: u32,
    /// Percentage of [`OpKind::ReadModifyWrite`].
    pub read_modify_write_percent: u32,
}

impl Mix {
    /// Draws what to do next.
    pub fn sample(&self, rng: &mut impl Rng) -> OpKind {
        let shares = [
            (OpKind::Read, self.read_percent),
            (OpKind::Update, self.update_percent),
            (OpKind::Insert, self.insert_percent),
            (OpKind::ReadModifyWrite, self.read_modify_write_percent),
        ];
        let mut left = rng.random_range(0..100u32);
        for (kind, percent) in shares {
            match left.checked_sub(percent) {
                Some(rest) => left = rest,
                None => return kind,
            }
        }
        // Unreachable for shares that add up to 100; a read changes nothing.
        OpKind::Read
    }
}

/// A YCSB core workload. E (short ranges) needs an ordered store, so it is not here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Workload {
    /// Update heavy: half reads, half updates.
    A,
    /// Read mostly: 95 % reads.
    B,
    /// Read only.
    C,
    /// Read latest: 95 % reads of young records, 5 % inserts.
    D,
    /// Half reads, half read-modify-writes.
    F,
}

impl Workload {
    /// Every workload, in order.
    pub const ALL: [Self; 5] = [Self::A, Self::B, Self::C, Self::D, Self::F];

    /// Its shares of operations.
    #[must_use]
    pub fn mix(self) -> Mix {
        let mix = |read_percent, update_percent, insert_percent, read_modify_write_percent| Mix {
            read_percent,
            update_percent,
            insert_percent,
            read_modify_write_percent,
        };
        match self {
            Self::A => mix(50, 50, 0, 0),
            Self::B => mix(95, 5, 0, 0),
            Self::C => mix(100, 0, 0, 0),
            Self::D => mix(95, 0, 5, 0),
            Self::F => mix(50, 0, 0, 50),
        }
    }

    /// The request distribution YCSB uses with it.
    #[must_use]
    pub fn distribution(self) -> Distribution {
        if self == Self::D { Distribution::Latest } else { Distribution::Zipfian }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The text is not the letter of a workload.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "unknown workload {0:?}; choose A, B, C, D or F (E needs range scans, which this store does not have)"
)]
pub struct UnknownWorkload(String);

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|workload| workload.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownWorkload(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;
    use std::collections::HashMap;

    #[test]
    fn shares_add_up() {
        for workload in Workload::ALL {
            let mix = workload.mix();
            let sum =
                mix.read_percent + mix.update_percent + mix.insert_percent + mix.read_modify_write_percent;
            assert_eq!(sum, 100, "{workload}");
        }
    }

    #[test]
    fn draws_follow_the_shares() {
        let mut rng = ChaCha8Rng::seed_from_u64(21);
        for workload in Workload::ALL {
            let mut counts: HashMap<OpKind, u32> = HashMap::new();
            for _ in 0..50_000 {
                *counts.entry(workload.mix().sample(&mut rng)).or_default() += 1;
            }
            let mix = workload.mix();
            for (kind, percent) in [
                (OpKind::Read, mix.read_percent),
                (OpKind::Update, mix.update_percent),
                (OpKind::Insert, mix.insert_percent),
                (OpKind::ReadModifyWrite, mix.read_modify_write_percent),
            ] {
                let seen = f64::from(counts.get(&kind).copied().unwrap_or(0)) / 500.0;
                assert!(
                    (seen - f64::from(percent)).abs() < 1.2,
                    "{workload} {kind:?}: {seen} % of {percent} %"
                );
            }
        }
    }

    #[test]
    fn letters_parse_in_either_case_and_e_is_explained() {
        assert_eq!("c".parse(), Ok(Workload::C));
        assert_eq!("F".parse(), Ok(Workload::F));
        assert!("e".parse::<Workload>().unwrap_err().to_string().contains("range scans"));
    }
}
