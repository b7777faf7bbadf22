//! Results as tables for a terminal.

use super::results::{Outcome, Results};
use crate::report::{Cell, Column, Conditions, Report, Table};

impl From<&Results> for Report {
    fn from(results: &Results) -> Self {
        let mut conditions = Conditions::default();
        results.conditions.iter().for_each(|(name, value)| conditions.push(name.as_str(), value.as_str()));
        let mut report = Self::new("Figures of the papers, measured here", conditions);
        report.notes.clone_from(&results.notes);
        for outcome in &results.experiments {
            match &outcome.not_yet {
                Some(because) => report.notes.push(format!(
                    "{}: {}: not yet measurable, because {because}",
                    outcome.id, outcome.title
                )),
                None => report.tables.push(table(outcome)),
            }
            report.notes.extend(outcome.notes.iter().map(|note| format!("{}: {note}", outcome.id)));
            report
                .problems
                .extend(outcome.problems.iter().map(|problem| format!("{}: {problem}", outcome.id)));
        }
        report.notes.extend(results.findings.iter().map(|finding| {
            format!("{}: {} ({}): {}", finding.verdict, finding.statement, finding.source, finding.because)
        }));
        report
    }
}

/// Returns a table with a row for each point that was measured, published, or both.
fn table(outcome: &Outcome) -> Table {
    let title = format!("{}: {}; {} ({})", outcome.id, outcome.title, outcome.y.name, outcome.y.unit);
    let columns = vec![
        Column::new("series", "curve"),
        Column::with_decimals("x", "at", 1),
        Column::with_decimals("measured", "measured", 3),
        Column::with_decimals("published", "published", 2),
    ];
    let mut table = Table::new(title, columns);
    for series in &outcome.measured {
        for point in &series.points {
            let published = outcome.published.iter().filter(|published| published.name == series.name);
            let same = published.flat_map(|published| &published.points).find(|(x, _)| *x == point.x);
            let beside = same.map(|(_, y)| *y);
            table.push(vec![series.name.as_str().into(), point.x.into(), point.y.into(), beside.into()]);
        }
    }
    for series in &outcome.published {
        let measured = outcome.series(&series.name);
        for (x, y) in &series.points {
            let is_told = measured.is_some_and(|measured| measured.points.iter().any(|point| point.x == *x));
            if !is_told {
                table.push(vec![series.name.as_str().into(), (*x).into(), Cell::None, (*y).into()]);
            }
        }
    }
    table
}
