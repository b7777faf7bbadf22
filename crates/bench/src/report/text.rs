//! Reports as aligned text for a terminal.

use super::Report;
use super::table::{Cell, Column, Table};
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, TableStyle};
use std::fmt;

pub(super) fn report(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "{}", report.title)?;
    for (name, value) in report.conditions.iter() {
        writeln!(f, "  {name:<12} {value}")?;
    }
    for table in &report.tables {
        if !table.title.is_empty() {
            writeln!(f, "\n{}", table.title)?;
        } else {
            writeln!(f)?;
        }
        writeln!(f, "{}", render(table))?;
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

/// A rule above, below and under the heading, none between rows.
const RULES: TableStyle = {
    let rule = LineStyle::none().fill('─').junction('─');
    TableStyle::new().top_border(rule).header_separator(rule).bottom_border(rule)
};

fn render(table: &Table) -> comfy_table::Table {
    let mut out = comfy_table::Table::new();
    out.load_style(RULES).set_content_arrangement(ContentArrangement::Disabled);
    let shown: Vec<(usize, &Column)> =
        table.columns.iter().enumerate().filter(|(_, column)| column.is_in_text).collect();
    out.set_header(shown.iter().map(|(_, column)| column.heading));
    for row in table.rows() {
        out.add_row(shown.iter().map(|(index, column)| format_cell(&row[*index], column)));
    }
    for (place, (index, _)) in shown.iter().enumerate() {
        let is_text = |row: &Vec<Cell>| matches!(row[*index], Cell::Text(_));
        let alignment =
            if table.rows().iter().all(is_text) { CellAlignment::Left } else { CellAlignment::Right };
        if let Some(column) = out.column_mut(place) {
            column.set_cell_alignment(alignment);
        }
    }
    out
}

fn format_cell(cell: &Cell, column: &Column) -> String {
    let decimals = column.decimals;
    match cell {
        Cell::Text(text) => text.clone(),
        Cell::Number(number) => format_number(*number, decimals),
        Cell::Spread(spread) if spread.repetitions == 1 || !column.shows_range => {
            format_number(spread.median, decimals)
        }
        Cell::Spread(spread) => {
            let [median, min, max] =
                [spread.median, spread.min, spread.max].map(|number| format_number(number, decimals));
            format!("{median} ({min}–{max})")
        }
        Cell::None => "–".to_owned(),
    }
}

/// With thousands separated by commas.
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
}
