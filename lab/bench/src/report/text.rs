//! Reports as aligned text for a terminal.

use super::Report;
use super::table::{Cell, Column, Shown, Table};
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, TableStyle};
use std::fmt;

/// Default width of text in columns.
const WIDTH_MAX: usize = 100;
/// Minimum width in columns; a smaller reported width is ignored, because no table would be readable.
const WIDTH_MIN: usize = 40;

/// Returns the width of the terminal, or the default if standard output is not a terminal.
pub(super) fn width() -> usize {
    let terminal = console::Term::stdout();
    let columns = terminal.is_term().then(|| terminal.size_checked()).flatten().map(|(_, columns)| columns);
    columns.map_or(WIDTH_MAX, |columns| usize::from(columns).clamp(WIDTH_MIN, WIDTH_MAX))
}

/// Explanation of the mark behind a figure.
const DISTURBED: &str = "! A repetition was more than twice, or less than half, this median: something disturbed the run. Measure again.";

pub(super) fn report(report: &Report, width_max: Option<usize>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for warning in &report.warnings {
        writeln!(f, "WARNING: {warning}")?;
    }
    writeln!(f, "{}", report.title)?;
    for (name, value) in report.conditions.iter() {
        writeln!(f, "  {name:<12} {value}")?;
    }
    for table in &report.tables {
        let rendered = Rendered::within(table, width_max);
        writeln!(f, "\n{}\n{}", table.title, rendered.text)?;
        if !rendered.left_out.is_empty() {
            writeln!(f, "not shown: {} (--wide or --json)", rendered.left_out.join(", "))?;
        }
    }
    if report.tables.iter().any(is_disturbed) {
        writeln!(f, "\n{DISTURBED}")?;
    }
    if !report.notes.is_empty() {
        writeln!(f)?;
    }
    for note in &report.notes {
        writeln!(f, "{note}")?;
    }
    for problem in &report.problems {
        writeln!(f, "PROBLEM: {problem}")?;
    }
    Ok(())
}

/// Returns whether a figure of the table has the mark.
fn is_disturbed(table: &Table) -> bool {
    let marks = |(column, cell): (&Column, &Cell)| column.marks(cell);
    table.rows().iter().any(|row| table.columns.iter().zip(row).any(marks))
}

impl Column {
    /// Returns whether a figure is marked: its range is shown and it was disturbed.
    fn marks(&self, cell: &Cell) -> bool {
        self.shows_range && matches!(cell, Cell::Spread(spread) if spread.is_disturbed())
    }
}

/// A table as text.
struct Rendered {
    text: String,
    /// Names of the parts that it does not show.
    left_out: Vec<String>,
}

impl Rendered {
    /// Returns the table within the width. To fit, first its ranges are shortened, then left out, then its last
    /// columns are left out.
    fn within(table: &Table, width_max: Option<usize>) -> Self {
        let (mut shown, wide): (Vec<usize>, Vec<usize>) = (0..table.columns.len())
            .filter(|place| table.columns[*place].shown != Shown::OnlyInJson)
            .partition(|place| width_max.is_none() || table.columns[*place].shown == Shown::Always);
        let heading = |place: &usize| table.columns[*place].heading.replace('\n', " ");
        let mut left_out: Vec<String> = wide.iter().map(heading).collect();
        let fits = |out: &comfy_table::Table| {
            width_max.is_none_or(|max| out.lines().all(|line| line.chars().count() <= max))
        };
        let mut out = render(table, &shown, Ranges::Full);
        if !fits(&out) {
            out = render(table, &shown, Ranges::Percent);
        }
        if !fits(&out) {
            out = render(table, &shown, Ranges::None);
            left_out.insert(0, "ranges".to_owned());
        }
        while !fits(&out) && shown.len() > 1 {
            left_out.extend(shown.pop().as_ref().map(heading));
            out = render(table, &shown, Ranges::None);
        }
        Self { text: out.to_string(), left_out }
    }
}

/// Form of the range behind a median.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ranges {
    /// Both bounds.
    Full,
    /// Distances of the bounds from the median in percent.
    Percent,
    /// No range.
    None,
}

/// Rules above, below and under the heading, none between rows.
const RULES: TableStyle = {
    let rule = LineStyle::none().fill('─').junction('─');
    TableStyle::new().top_border(rule).header_separator(rule).bottom_border(rule)
};

fn render(table: &Table, shown: &[usize], ranges: Ranges) -> comfy_table::Table {
    let mut out = comfy_table::Table::new();
    out.load_style(RULES).set_content_arrangement(ContentArrangement::Disabled);
    out.set_header(shown.iter().map(|place| table.columns[*place].heading));
    for row in table.rows() {
        out.add_row(shown.iter().map(|place| format_cell(&row[*place], &table.columns[*place], ranges)));
    }
    for (column, place) in shown.iter().enumerate() {
        let is_text = |row: &Vec<Cell>| matches!(row[*place], Cell::Text(_));
        let alignment =
            if table.rows().iter().all(is_text) { CellAlignment::Left } else { CellAlignment::Right };
        if let Some(column) = out.column_mut(column) {
            column.set_cell_alignment(alignment);
        }
    }
    out
}

fn format_cell(cell: &Cell, column: &Column, ranges: Ranges) -> String {
    let decimals = column.decimals;
    let mark = if column.marks(cell) { "!" } else { "" };
    match cell {
        Cell::Text(text) => text.clone(),
        Cell::Number(number) => format_number(*number, decimals),
        Cell::Spread(spread) => {
            let median = format_number(spread.median, decimals) + mark;
            if spread.repetitions == 1 || !column.shows_range {
                return median;
            }
            match ranges {
                Ranges::Full => {
                    let [min, max] = [spread.min, spread.max].map(|number| format_number(number, decimals));
                    format!("{median} ({min}–{max})")
                }
                Ranges::Percent if spread.median > 0.0 => {
                    let percent = |end: f64| 100.0 * (end / spread.median - 1.0).abs();
                    format!("{median} (−{:.0} +{:.0} %)", percent(spread.min), percent(spread.max))
                }
                _ => median,
            }
        }
        Cell::None => "–".to_owned(),
    }
}

/// Formats a number with thousands separated by commas.
fn format_number(number: f64, decimals: usize) -> String {
    let plain = format!("{:.decimals$}", number.abs());
    let (whole, fraction) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let is_zero = plain.chars().all(|digit| matches!(digit, '0' | '.'));
    let sign = if number < 0.0 && !is_zero { "-" } else { "" };
    format!("{sign}{grouped}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::super::Conditions;
    use super::*;
    use crate::measure::Spread;

    #[test]
    fn numbers_are_grouped_and_rounded() {
        for (number, decimals, text) in [
            (0.0, 0, "0"),
            (999.0, 0, "999"),
            (1000.0, 0, "1,000"),
            (1_234_567.891, 2, "1,234,567.89"),
            (-1234.5, 1, "-1,234.5"),
            (-0.001, 2, "0.00"),
            (999.999, 2, "1,000.00"),
        ] {
            assert_eq!(format_number(number, decimals), text);
        }
    }

    #[test]
    fn reports_an_interruption_before_its_consequences() {
        let mut report = Report::new("Echo", Conditions::default());
        report.problems.push("TCP: Broken pipe".to_owned());
        assert!(!report.goes_on(false));
        report.interrupted();
        report.interrupted();
        assert_eq!(report.problems, ["interrupted before the end"]);
        assert!(report.notes.iter().any(|note| note == "The interruption may have caused: TCP: Broken pipe"));
        assert_eq!(report.notes.len(), 2, "one, besides that about the software RNIC");
    }

    #[test]
    fn a_report_shows_conditions_figures_notes_and_problems() {
        let mut conditions = Conditions::default();
        conditions.push("seed", "7");
        let mut report = Report::new("Echo", conditions);
        let mut table =
            Table::new("", vec![Column::new("name", "name"), Column::with_decimals("us", "µs", 2)]);
        table.push(vec!["fast".into(), Spread::of([1.0, 2.0, 4.0]).into()]);
        table.push(vec!["absent".into(), Cell::None]);
        report.tables.push(table);
        report.problems.push("a value was wrong".to_owned());
        let text = report.to_string();
        for part in ["Echo", "seed", "2.00 (1.00–4.00)", "–", "not a network", "PROBLEM: a value was wrong"]
        {
            assert!(text.contains(part), "{part:?} missing in\n{text}");
        }
        assert!(!report.is_sound());
    }

    #[test]
    fn tables_fit_a_hundred_columns_and_name_what_they_leave_out() {
        let columns = (0..8).map(|_| Column::with_decimals("us", "a long heading", 2));
        let mut table = Table::new("", columns.chain([Column::new("ops", "operations").wide()]).collect());
        table.push(
            [1.0, 2.0, 43_313.0]
                .map(|max| Spread::of([1e3, 1.1e3, 1e3 * max]).into())
                .into_iter()
                .cycle()
                .take(9)
                .collect(),
        );
        let mut report = Report::new("Echo", Conditions::default());
        report.tables.push(table);
        let widest = |text: &str| {
            text.lines().filter(|line| line.contains("a long")).map(|line| line.chars().count()).max()
        };
        let text = report.to_string();
        assert!(widest(&text).unwrap() <= WIDTH_MAX, "{text}");
        assert!(text.contains("not shown: ranges, operations, a long heading"), "{text}");
        assert!(text.contains("1,100.00!") && text.contains(DISTURBED), "{text}");
        report.tables[0].columns.iter_mut().skip(4).for_each(|column| column.shown = Shown::OnlyInJson);
        let text = report.to_string();
        assert!(widest(&text).unwrap() <= WIDTH_MAX && text.contains("1,100.00 (−9 +82 %)"), "{text}");
        report.tables[0].columns.iter_mut().for_each(|column| column.shown = Shown::Always);
        let wide = super::super::Wide(&report).to_string();
        assert!(widest(&wide).unwrap() > WIDTH_MAX && wide.contains("operations"), "{wide}");
        assert!(wide.contains("1,100.00! (1,000.00–43,313,000.00)") && !wide.contains("not shown"), "{wide}");
    }
}
