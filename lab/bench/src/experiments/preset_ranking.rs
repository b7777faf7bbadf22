//! Comparison of presets with each other, and of the library's choice with the best of them.

use super::calls::CallSample;
use crate::load::AUTO;
use crate::measure::{PairedRatio, Spread};
use crate::report::{Cell, Column, Table};

/// Minimum acceptable ratio of the rate of the chosen preset to that of the best one.
const NEAR: f64 = 0.9;

/// A preset, or [`AUTO`], with its operations a second in each repetition.
#[derive(Debug, Clone, Default)]
pub(crate) struct RankedPreset {
    pub(crate) preset: &'static str,
    /// Preset that the library chose; `None` if the preset was specified.
    pub(crate) chosen: Option<String>,
    pub(crate) per_second: Vec<f64>,
}

impl RankedPreset {
    /// Creates it from samples of calls.
    pub(crate) fn of_calls(preset: &'static str, samples: &[CallSample]) -> Self {
        let choice = samples.iter().find_map(|sample| sample.choice.as_ref());
        Self {
            preset,
            chosen: choice.map(|choice| choice.preset.clone()),
            per_second: samples.iter().map(|sample| sample.figures.per_second).collect(),
        }
    }

    pub(crate) fn median(&self) -> f64 {
        Spread::of(self.per_second.iter().copied()).map_or(f64::NAN, |spread| spread.median)
    }

    /// Returns the ratio of the rates of this preset and the other, computed within each repetition.
    pub(crate) fn over(&self, other: &Self) -> Option<PairedRatio> {
        PairedRatio::of(self.per_second.iter().copied().zip(other.per_second.iter().copied()))
    }
}

/// Returns the measured presets, the fastest first, without [`AUTO`].
pub(crate) fn ranked(presets_measured: &[RankedPreset]) -> Vec<&RankedPreset> {
    let is_ranked = |it: &&RankedPreset| it.preset != AUTO && it.median().is_finite();
    let mut ranked: Vec<&RankedPreset> = presets_measured.iter().filter(is_ranked).collect();
    ranked.sort_by(|a, b| b.median().total_cmp(&a.median()));
    ranked
}

/// Returns the ratio of the chosen preset to the best one found, for each workload. `None` if the library chose none.
pub(crate) fn auto_beside_the_best(workloads: &[(String, Vec<RankedPreset>)]) -> Option<Table> {
    let columns = vec![
        Column::new("workload", "workload"),
        Column::new("best", "best preset"),
        Column::new("chosen", "auto takes"),
        Column::with_decimals("ratio", "auto/best", 3),
        Column::with_decimals("ratio_low", "from", 3),
        Column::with_decimals("ratio_high", "to", 3),
        Column::with_decimals("confidence_percent", "sure, %", 1),
        Column::new("is_near", "at least 0.9"),
    ];
    let mut table =
        Table::new("Choice of the library, compared with the best preset of an exhaustive search", columns);
    for (workload, presets_measured) in workloads {
        let auto = presets_measured.iter().find(|it| it.preset == AUTO);
        let (Some(auto), Some(best)) = (auto, ranked(presets_measured).first().copied()) else { continue };
        let Some(ratio) = auto.over(best) else { continue };
        let chosen = auto.chosen.as_deref().map_or(Cell::None, Cell::from);
        let mut row = vec![workload.as_str().into(), best.preset.into(), chosen];
        row.extend([ratio.median, ratio.low, ratio.high, ratio.confidence_percent].map(Cell::from));
        row.push(nearness(&ratio).into());
        table.push(row);
    }
    (!table.rows().is_empty()).then_some(table)
}

fn nearness(ratio: &PairedRatio) -> &'static str {
    match ratio {
        ratio if ratio.confidence_percent < 95.0 => "too few repetitions",
        ratio if ratio.low >= NEAR => "yes",
        ratio if ratio.high < NEAR => "no",
        _ => "cannot be determined",
    }
}

/// Explanation of the table.
pub(crate) const AUTO_NOTE: &str = "auto/best: medians of ratios taken repetition by repetition, with the bounds \
                                    between which the true median lies; at least six repetitions are needed to be \
                                    95 % sure. The best of many is a little lucky: the ratio errs on the low side.";

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked_preset(preset: &'static str, per_second: &[f64]) -> RankedPreset {
        let chosen = (preset == AUTO).then(|| "fetch".to_owned());
        RankedPreset { preset, chosen, per_second: per_second.to_vec() }
    }

    fn verdict(auto: &[f64]) -> String {
        let others = [ranked_preset("rf-rpc", &[50.0; 6]), ranked_preset("fetch", &[100.0; 6])];
        let all = [ranked_preset(AUTO, auto)].into_iter().chain(others).collect();
        let table = auto_beside_the_best(&[("w".to_owned(), all)]).unwrap();
        let row = &table.rows()[0];
        assert_eq!((&row[1], &row[2]), (&Cell::from("fetch"), &Cell::from("fetch")));
        let Cell::Text(verdict) = row.last().unwrap() else { panic!("{row:?}") };
        verdict.clone()
    }

    #[test]
    fn judges_a_choice_near_the_best_not_near_or_undecided() {
        assert_eq!(verdict(&[99.0, 101.0, 95.0, 92.0, 100.0, 97.0]), "yes");
        assert_eq!(verdict(&[70.0, 80.0, 75.0, 85.0, 89.0, 60.0]), "no");
        assert_eq!(verdict(&[99.0, 101.0, 95.0, 80.0, 100.0, 97.0]), "cannot be determined");
        assert_eq!(verdict(&[99.0; 5]), "too few repetitions");
    }

    #[test]
    fn omits_the_table_without_a_choice_and_unmeasured_ranks() {
        let all =
            [ranked_preset("rf-rpc", &[1.0]), ranked_preset("herd", &[]), ranked_preset("fetch", &[2.0])];
        assert_eq!(ranked(&all).iter().map(|it| it.preset).collect::<Vec<_>>(), ["fetch", "rf-rpc"]);
        assert!(auto_beside_the_best(&[("w".to_owned(), all.to_vec())]).is_none());
    }
}
