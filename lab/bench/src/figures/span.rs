//! Range of an axis: positions of values and ticks.

use super::experiment::Scale;
use crate::html::compact;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// Approximate number of ticks of an axis.
const TICKS: f64 = 7.0;
/// Margin beyond the outermost values, as a share of the range.
const MARGIN: f64 = 0.04;

/// Range in the coordinates of the plot: decimal logarithms for a logarithmic axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Span {
    scale: Scale,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) ticks: Vec<f64>,
}

impl Span {
    /// Returns a range around all `values`, with ticks at round numbers; a linear one begins at 0.
    pub(super) fn upwards(scale: Scale, values: &[f64]) -> Self {
        let places: Vec<f64> = values.iter().filter_map(|value| place(scale, *value)).collect();
        let high = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let low = places.iter().copied().fold(f64::INFINITY, f64::min);
        match scale {
            _ if places.is_empty() => Self { scale, low: 0.0, high: 1.0, ticks: Vec::new() },
            Scale::Linear => {
                let high = if high > 0.0 { high * (1.0 + MARGIN) } else { 1.0 };
                let step = round_step(high / TICKS);
                let ticks = (0..).map(|n| f64::from(n) * step).take_while(|tick| *tick <= high).collect();
                Self { scale, low: 0.0, high, ticks }
            }
            Scale::Logarithmic => {
                let margin = ((high - low) * MARGIN).max(0.02);
                let (low, high) = (low - margin, high + margin);
                let digits: &[f64] = if high - low > 2.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let decades = low.floor() as i32..=high.ceil() as i32;
                let ticks =
                    decades.flat_map(|decade| digits.iter().map(move |d| f64::from(decade) + d.log10()));
                let ticks = ticks.filter(|tick| (low..=high).contains(tick)).collect();
                Self { scale, low, high, ticks }
            }
        }
    }

    /// Returns a range around all `values`, with ticks at some of the measured values.
    pub(super) fn across(scale: Scale, values: &[f64]) -> Self {
        let mut ticks: Vec<f64> = values.iter().filter_map(|value| place(scale, *value)).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let (Some(first), Some(last)) = (ticks.first().copied(), ticks.last().copied()) else {
            return Self { scale, low: 0.0, high: 1.0, ticks };
        };
        let margin = if last > first { (last - first) * MARGIN } else { 0.5 };
        let between = (last - first) / (2.0 * TICKS);
        let mut kept: Vec<f64> = Vec::new();
        for tick in ticks {
            if kept.last().is_none_or(|last| tick - last >= between) {
                kept.push(tick);
            }
        }
        Self { scale, low: first - margin, high: last + margin, ticks: kept }
    }

    /// Returns the position of `value`, if it has one.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        place(self.scale, value)
    }
}

impl Ranged for Span {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (first, last): (i32, i32)) -> i32 {
        let share = (place - self.low) / (self.high - self.low);
        first + (f64::from(last - first) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Span {
    fn format_ext(&self, tick: &f64) -> String {
        compact(if self.scale == Scale::Linear { *tick } else { 10f64.powf(*tick) })
    }
}

fn place(scale: Scale, value: f64) -> Option<f64> {
    let place = if scale == Scale::Linear { value } else { value.log10() };
    place.is_finite().then_some(place)
}

/// Returns 1, 2 or 5 times a power of ten that is at least `wanted`.
fn round_step(wanted: f64) -> f64 {
    let power = 10f64.powf(wanted.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|step| *step >= wanted)
        .unwrap_or(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(span: &Span) -> Vec<String> {
        span.ticks.iter().map(|tick| span.format_ext(tick)).collect()
    }

    #[test]
    fn even_axes_begin_at_nothing_and_have_round_ticks() {
        let span = Span::upwards(Scale::Linear, &[11.26, 2.11]);
        assert_eq!((span.low, span.ticks.len()), (0.0, 6));
        assert_eq!(labels(&span), ["0", "2", "4", "6", "8", "10"]);
        assert!(span.high > 11.26);
    }

    #[test]
    fn axes_of_powers_have_no_place_for_nothing() {
        let span = Span::upwards(Scale::Logarithmic, &[0.0, 0.05, 30.0]);
        assert_eq!(span.place(0.0), None);
        assert_eq!(labels(&span), ["0.1", "1", "10"]);
        let narrow = Span::upwards(Scale::Logarithmic, &[1.0, 10.0]);
        assert_eq!(narrow.ticks.len(), 4);
    }

    #[test]
    fn ticks_across_are_values_that_do_not_stand_too_close() {
        let span = Span::across(Scale::Logarithmic, &[64.0, 4096.0, 16.0, 64.0]);
        assert_eq!(labels(&span), ["16", "64", "4096"]);
        let many: Vec<f64> = (0..1000).map(f64::from).collect();
        assert!(Span::across(Scale::Linear, &many).ticks.len() <= 15);
        for empty in [Span::across(Scale::Linear, &[]), Span::upwards(Scale::Logarithmic, &[])] {
            assert!(empty.low < empty.high && empty.ticks.is_empty());
        }
    }
}
