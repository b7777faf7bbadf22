//! A figure measured several times: its median and its range.

use serde::{Deserialize, Serialize};

/// Median, smallest and largest of repeated measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one; the mean of the two middle ones for an even number.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// How many were measured.
    pub repetitions: usize,
}

impl Spread {
    /// The spread of `values`, or `None` when there are none. Values that are not numbers are left out.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, min, max, repetitions: sorted.len() })
    }

    /// The same figure in another unit.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let (a, b) = (self.min * factor, self.max * factor);
        Self { median: self.median * factor, min: a.min(b), max: a.max(b), repetitions: self.repetitions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_even_none_and_nan() {
        let odd = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.repetitions), (2.0, 1.0, 3.0, 3));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([f64::NAN, 1.0]).unwrap().repetitions, 1);
        assert_eq!(Spread::of([]), None);
        assert_eq!(odd.scaled(-1.0).min, -3.0);
    }
}
