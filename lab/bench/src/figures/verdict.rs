//! Decides by rules on measured ranges whether a finding of a paper holds here.

use super::experiment::Paper;
use super::results::Results;
use crate::measure::Spread;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Minimum number of repetitions for a meaningful range.
const REPETITIONS_MIN: usize = 3;
const MISSING: &str = "what it needs was not measured, or not three times";

/// Result of the decision on a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It holds here as well.
    Confirmed,
    /// The opposite holds here.
    Refuted,
    /// Required figures are missing, or their ranges overlap.
    #[serde(alias = "cannot-be-told")]
    Undetermined,
}

names! {
    Verdict {
        Confirmed => "confirmed", Refuted => "refuted", Undetermined => "cannot be determined here",
    }
}

/// A statement of a paper about its own measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The statement.
    pub statement: String,
    /// Location of the statement.
    pub source: String,
    /// The rule that decides.
    pub rule: String,
    /// Result of the rule.
    pub verdict: Verdict,
    /// Figures on which the result is based.
    pub because: String,
}

/// Result of a rule with its figures; `None` if they were not measured.
pub(super) type Decision = Option<(Verdict, String)>;

/// A statement of a paper, and the rule that decides on it.
pub(super) struct Rule {
    pub(super) statement: &'static str,
    pub(super) source: &'static str,
    pub(super) rule: &'static str,
    pub(super) decide: Decide,
}

/// The rule as program.
pub(super) enum Decide {
    /// All checks must hold. The text states their figures: each `{}` stands for the next quotient or value, `{counts}`
    /// for the number of verdicts of each kind.
    All(&'static [Check], &'static str),
    /// More than half of the checks must hold, and none be refuted. Stated are the numbers of verdicts.
    Majority(&'static [Check]),
    /// Another rule.
    Special(fn(&Results) -> Decision),
}

/// Bounds of a quotient or value, both included.
type Bounds = (f64, f64);
/// Bounds of a quotient whose numerator is the larger number.
pub(super) const ABOVE: Bounds = at_least(1.0);
/// Counts of verdicts as the only text of a rule.
pub(super) const COUNTS: &str = "{counts}";

pub(super) const fn at_least(low: f64) -> Bounds {
    (low, f64::INFINITY)
}

pub(super) const fn at_most(high: f64) -> Bounds {
    (0.0, high)
}

/// Curve names.
type Curves = &'static [&'static str];

/// Comparison of measured points.
pub(super) enum Check {
    /// Each curve of the first list divided by each of the second, at each x, lies within bounds: experiment, curves,
    /// curves, xs, bounds.
    Quotient(&'static str, Curves, Curves, &'static [u32], Bounds),
    /// Each curve of the first list is above all of the second, with one verdict for each x: experiment, curves,
    /// curves, xs.
    AboveAll(&'static str, Curves, Curves, &'static [u32]),
    /// The range of the first curves divided by that of the second ones lies within bounds: experiment, curves,
    /// curves, x, bounds.
    Groups(&'static str, Curves, Curves, u32, Bounds),
    /// Each curve at the second x divided by itself at the first lies within bounds: experiment, curves, xs, bounds.
    Change(&'static str, Curves, [u32; 2], Bounds),
    /// The curve itself lies within bounds at each x: experiment, curve, xs, bounds.
    Value(&'static str, &'static str, &'static [u32], Bounds),
}

impl Check {
    /// Adds the verdicts, and the figures on which they are based. Returns `None` if a point was not measured.
    fn decide(&self, results: &Results, verdicts: &mut Vec<Verdict>, figures: &mut Vec<Range>) -> Option<()> {
        let point = |id, curve, x: u32| Range::of(results, id, curve, x.into());
        let mut add = |range: Range, (low, high): Bounds| {
            verdicts.push(range.within(low, high));
            figures.push(range);
        };
        match *self {
            Self::Quotient(id, over, under, xs, bounds) => {
                for (x, over, under) in
                    xs.iter().flat_map(|x| pairs(over, under).map(move |(a, b)| (*x, a, b)))
                {
                    add(point(id, over, x)?.over(point(id, under, x)?), bounds);
                }
            }
            Self::AboveAll(id, over, under, xs) => {
                for (x, over) in xs.iter().flat_map(|x| over.iter().map(move |over| (*x, *over))) {
                    let over = point(id, over, x)?;
                    let above = under.iter().map(|under| Some(over.above(point(id, under, x)?)));
                    verdicts.push(all(&above.collect::<Option<Vec<_>>>()?));
                }
            }
            Self::Groups(id, over, under, x, bounds) => {
                let group = |curves: Curves| {
                    let ranges = curves.iter().map(|curve| point(id, curve, x));
                    ranges.reduce(|a, b| Some(a?.and(b?))).flatten()
                };
                add(group(over)?.over(group(under)?), bounds);
            }
            Self::Change(id, curves, [from, to], bounds) => {
                for curve in curves {
                    add(point(id, curve, to)?.over(point(id, curve, from)?), bounds);
                }
            }
            Self::Value(id, curve, xs, bounds) => {
                for x in xs {
                    add(point(id, curve, *x)?, bounds);
                }
            }
        }
        Some(())
    }
}

fn pairs(over: Curves, under: Curves) -> impl Iterator<Item = (&'static str, &'static str)> {
    over.iter().flat_map(move |over| under.iter().map(move |under| (*over, *under)))
}

impl Decide {
    fn decide(&self, results: &Results) -> Decision {
        let checks = match self {
            Self::All(checks, _) | Self::Majority(checks) => checks,
            Self::Special(decide) => return decide(results),
        };
        let (mut verdicts, mut figures) = (Vec::new(), Vec::new());
        for check in *checks {
            check.decide(results, &mut verdicts, &mut figures)?;
        }
        Some(match self {
            Self::All(_, text) => {
                let text = text.replace(COUNTS, &counts(&verdicts));
                let fill = |text: String, figure: Range| text.replacen("{}", &figure.to_string(), 1);
                (all(&verdicts), figures.into_iter().fold(text, fill))
            }
            _ => (majority(&verdicts), counts(&verdicts)),
        })
    }
}

/// Applies all rules of a paper if at least one of its experiments was run.
pub(super) fn decided(rules: &[Rule], paper: &Paper, results: &Results) -> Vec<Finding> {
    if !results.experiments.iter().any(|outcome| outcome.id.starts_with(paper.letter)) {
        return Vec::new();
    }
    let decided = rules.iter().map(|rule| {
        let (verdict, because) =
            rule.decide.decide(results).unwrap_or_else(|| (Verdict::Undetermined, MISSING.to_owned()));
        Finding {
            statement: rule.statement.to_owned(),
            source: format!("{}, {}", paper.letter, rule.source),
            rule: rule.rule.to_owned(),
            verdict,
            because,
        }
    });
    decided.collect()
}

/// A range of numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range {
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Range {
    /// Returns the range of `series` at `x` in experiment `id`, if it was measured with enough repetitions.
    pub(super) fn of(results: &Results, id: &str, series: &str, x: f64) -> Option<Self> {
        let spread = results.of(id).and_then(|outcome| outcome.series(series)?.at(x))?;
        (spread.repetitions >= REPETITIONS_MIN).then_some(spread.into())
    }

    /// Returns the range of quotients.
    pub(super) fn over(self, other: Self) -> Self {
        Self { min: self.min / other.max, max: self.max / other.min }
    }

    /// Returns the smallest range that contains both.
    pub(super) fn and(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Returns whether it lies within `low..=high` (confirmed), outside (refuted), or across a bound (neither).
    pub(super) fn within(self, low: f64, high: f64) -> Verdict {
        if self.min >= low && self.max <= high {
            Verdict::Confirmed
        } else if self.max < low || self.min > high {
            Verdict::Refuted
        } else {
            Verdict::Undetermined
        }
    }

    /// Returns whether it lies completely above the other range, or completely below.
    pub(super) fn above(self, other: Self) -> Verdict {
        self.over(other).within(1.0, f64::INFINITY)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} to {:.2}", self.min, self.max)
    }
}

impl From<Spread> for Range {
    fn from(Spread { min, max, .. }: Spread) -> Self {
        Self { min, max }
    }
}

/// Returns the verdict of many comparisons: that of more than half of them, if none is the opposite.
pub(super) fn majority(verdicts: &[Verdict]) -> Verdict {
    let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    let (for_it, against) = (count(Verdict::Confirmed), count(Verdict::Refuted));
    match (2 * for_it > verdicts.len(), 2 * against > verdicts.len()) {
        (true, _) if against == 0 => Verdict::Confirmed,
        (_, true) if for_it == 0 => Verdict::Refuted,
        _ => Verdict::Undetermined,
    }
}

/// Returns the conjunction: all must be confirmed, and one that is refuted refutes it.
pub(super) fn all(verdicts: &[Verdict]) -> Verdict {
    if verdicts.is_empty()
        || verdicts.contains(&Verdict::Undetermined) && !verdicts.contains(&Verdict::Refuted)
    {
        Verdict::Undetermined
    } else if verdicts.contains(&Verdict::Refuted) {
        Verdict::Refuted
    } else {
        Verdict::Confirmed
    }
}

/// Returns the number of verdicts of each kind as text.
pub(super) fn counts(verdicts: &[Verdict]) -> String {
    let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    format!(
        "of {} comparisons {} say so, {} the opposite, {} nothing",
        verdicts.len(),
        count(Verdict::Confirmed),
        count(Verdict::Refuted),
        count(Verdict::Undetermined)
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::figures::experiment::Experiment;
    use crate::figures::results::{Measured, Outcome, Series};
    use Verdict::{Confirmed, Refuted, Undetermined};

    /// Returns the verdicts of a paper's rules on given points (experiment, curve, x and y), each measured three times
    /// within 1 %.
    pub(in crate::figures) fn verdicts_on(
        experiments: impl Iterator<Item = &'static Experiment> + Clone,
        rules: &[Rule],
        paper: &Paper,
        points: &[(&str, &str, f64, f64)],
    ) -> Vec<Verdict> {
        let mut outcomes: Vec<Outcome> = Vec::new();
        for (id, name, x, y) in points {
            let y = Spread { median: *y, min: 0.99 * y, max: 1.01 * y, repetitions: 3 };
            let point = Measured { x: Some(*x), y };
            if !outcomes.iter().any(|outcome| outcome.id == *id) {
                let experiment = experiments.clone().find(|experiment| experiment.id == *id).unwrap();
                outcomes.push(Outcome::new(experiment));
            }
            let outcome = outcomes.iter_mut().find(|outcome| outcome.id == *id).unwrap();
            match outcome.measured.iter_mut().find(|series| series.name == *name) {
                Some(series) => series.points.push(point),
                None => outcome.measured.push(Series { name: (*name).to_owned(), points: vec![point] }),
            }
        }
        let results = Results {
            farcall_figures: crate::figures::FORMAT,
            version: String::new(),
            provider: String::new(),
            seed: 0,
            conditions: Vec::new(),
            notes: Vec::new(),
            experiments: outcomes,
            findings: Vec::new(),
            is_complete: true,
        };
        decided(rules, paper, &results).iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn ranges_decide_only_where_they_are_apart() {
        let range = |min, max| Range { min, max };
        assert_eq!(range(2.0, 3.0).above(range(1.0, 1.9)), Confirmed);
        assert_eq!(range(1.0, 1.9).above(range(2.0, 3.0)), Refuted);
        assert_eq!(range(1.0, 2.1).above(range(2.0, 3.0)), Undetermined);
        assert_eq!(range(1.2, 1.6).within(1.2, 1.6), Confirmed);
        assert_eq!(range(1.7, 1.8).within(1.2, 1.6), Refuted);
        assert_eq!(range(1.5, 1.8).within(1.2, 1.6), Undetermined);
    }

    #[test]
    fn many_verdicts_make_one() {
        assert_eq!(majority(&[Confirmed, Confirmed, Undetermined]), Confirmed);
        assert_eq!(majority(&[Confirmed, Confirmed, Refuted]), Undetermined);
        assert_eq!(majority(&[Refuted, Refuted, Undetermined]), Refuted);
        assert_eq!(majority(&[]), Undetermined);
        assert_eq!(all(&[Confirmed, Confirmed]), Confirmed);
        assert_eq!(all(&[Confirmed, Undetermined]), Undetermined);
        assert_eq!(all(&[Undetermined, Refuted]), Refuted);
        assert_eq!(all(&[]), Undetermined);
    }
}
