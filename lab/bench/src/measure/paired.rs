//! Ratio of two figures that are both measured in each repetition, so that a disturbance affects both.

/// Median ratio of pairs, with a confidence interval of the true median.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedRatio {
    /// Median of the pairs' ratios.
    pub median: f64,
    /// Lower bound of the interval.
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
    /// Confidence of the interval in percent.
    pub confidence_percent: f64,
}

/// Minimum confidence of the interval.
const CONFIDENCE_MIN: f64 = 0.95;

impl PairedRatio {
    /// Computes the ratio of the first to the second value of each pair; `None` if no pair has a finite ratio.
    ///
    /// The bounds are order statistics of the ratios. With n pairs, the true median lies below the k-th smallest with
    /// the probability that a fair coin shows heads less than k times in n throws, whatever the distribution. The
    /// narrowest interval with sufficient confidence is chosen. With fewer than six pairs there is none, and the
    /// widest is returned.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let ratios = pairs.into_iter().map(|(one, other)| one / other);
        let mut sorted: Vec<f64> = ratios.filter(|ratio| ratio.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let (mut place, mut outside) = (0, 0.5_f64.powi(i32::try_from(count).ok()?));
        let mut next_heads = outside;
        while place + 1 < count / 2 {
            next_heads *= (count - place) as f64 / (place + 1) as f64;
            if 1.0 - 2.0 * (outside + next_heads) < CONFIDENCE_MIN {
                break;
            }
            outside += next_heads;
            place += 1;
        }
        let median = super::Spread::of(sorted.iter().copied())?.median;
        let confidence_percent = 100.0 * (1.0 - 2.0 * outside).max(0.0);
        Some(Self { median, low: sorted[place], high: sorted[count - 1 - place], confidence_percent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ratios: &[f64]) -> PairedRatio {
        PairedRatio::of(ratios.iter().map(|ratio| (3.0 * ratio, 3.0))).unwrap()
    }

    #[test]
    fn bounds_are_those_of_the_order_and_of_the_coin() {
        let six = of(&[1.1, 0.9, 1.0, 1.2, 0.8, 1.0]);
        assert!((six.low - 0.8).abs() < 1e-9 && (six.high - 1.2).abs() < 1e-9, "{six:?}");
        assert!((six.median - 1.0).abs() < 1e-9 && (six.confidence_percent - 96.875).abs() < 1e-9, "{six:?}");
        // 1 - 2 (1 + 20 + 190 + 1140 + 4845 + 15504) / 2^20 = 0.9586; the next narrower interval has 0.8847.
        let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
        let twenty = of(&twenty);
        assert_eq!((twenty.low, twenty.high), (6.0, 15.0));
        assert!((twenty.confidence_percent - 95.861).abs() < 1e-3, "{twenty:?}");
        // Too few pairs for the required confidence: the lower confidence is reported.
        assert!((of(&[1.0, 2.0, 3.0]).confidence_percent - 75.0).abs() < 1e-9);
        assert!(of(&[1.0]).confidence_percent.abs() < 1e-9);
    }

    #[test]
    fn pairs_without_a_ratio_are_left_out() {
        assert_eq!(PairedRatio::of([(1.0, 0.0), (f64::NAN, 1.0)]), None);
        assert_eq!(PairedRatio::of([(1.0, 0.0), (2.0, 1.0)]).unwrap().median, 2.0);
    }
}
