//! Median and range of a figure that was measured several times.

use serde::{Deserialize, Serialize};

/// Median, smallest and largest of repeated measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median; the mean of the two middle values for an even number.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Number of measurements.
    pub repetitions: usize,
}

impl Spread {
    /// Returns the spread of `values`, or `None` if there are none. Values that are not finite are left out.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
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

    /// Returns whether a repetition was disturbed: its value was more than twice, or less than half of the median.
    pub fn is_disturbed(&self) -> bool {
        self.max > 2.0 * self.median || 2.0 * self.min < self.median
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
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY, 1.0]).unwrap().repetitions, 1);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_repetition_far_from_the_median_is_a_disturbance() {
        assert!(!Spread::of([1.0, 1.2, 1.9]).unwrap().is_disturbed());
        assert!(Spread::of([1.0, 1.1, 43_313.0]).unwrap().is_disturbed());
        assert!(Spread::of([0.1, 1.0, 1.1]).unwrap().is_disturbed());
        assert!(!Spread::of([0.0, 0.0]).unwrap().is_disturbed());
    }
}
