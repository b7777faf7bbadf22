//! Reports as one HTML file, with bars and tables.

use super::table::{Cell, Shown, Table};
use super::{Column, Report};
use crate::html::{bars, compact, conditions_table, escape, head, paragraphs, row, spread};
use std::fmt::Write;

pub(super) fn report(report: &Report) -> String {
    let mut html = head(&report.title);
    for warning in &report.warnings {
        let _ = writeln!(html, "<p class=\"problem\">{}</p>", escape(warning));
    }
    html.push_str(&paragraphs("", &report.notes));
    for problem in &report.problems {
        let _ = writeln!(html, "<p class=\"problem\">{}</p>", escape(problem));
    }
    html.push_str(&conditions_table(report.conditions.iter()));
    for table in &report.tables {
        html.push_str(&section(table));
    }
    html.push_str("</html>\n");
    html
}

/// Returns the bars of each measured column, then all numbers.
fn section(table: &Table) -> String {
    let mut html = format!("<section>\n<h2>{}</h2>\n", escape(&table.title));
    let shown: Vec<usize> =
        (0..table.columns.len()).filter(|at| table.columns[*at].shown != Shown::OnlyInJson).collect();
    for at in shown.iter().copied() {
        let measured = |row: &Vec<Cell>| match row[at] {
            Cell::Spread(value) => Some((label(row, &shown), value)),
            _ => None,
        };
        let rows: Vec<_> = table.rows().iter().filter_map(measured).collect();
        let heading = heading(&table.columns[at]);
        let drawn = bars(&format!("{}: {heading}", table.title), &rows);
        if !drawn.is_empty() {
            let _ = writeln!(html, "<h3>{}</h3>\n{drawn}", escape(&heading));
        }
    }
    html.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for at in &shown {
        let _ = write!(html, "<th>{}", escape(&heading(&table.columns[*at])));
    }
    html.push_str("</thead>\n");
    for cells in table.rows() {
        row(&mut html, &shown.iter().map(|at| text(&cells[*at])).collect::<Vec<_>>());
    }
    html.push_str("</table></div>\n</section>\n");
    html
}

fn heading(column: &Column) -> String {
    column.heading.replace('\n', " ")
}

/// Returns the cells of a row before its first measured figure.
fn label(row: &[Cell], shown: &[usize]) -> String {
    let lead = shown.iter().map(|at| &row[*at]).take_while(|cell| !matches!(cell, Cell::Spread(_)));
    lead.map(text).filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ")
}

fn text(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => text.clone(),
        Cell::Number(number) => compact(*number),
        Cell::Spread(value) => spread(*value),
        Cell::None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Conditions;
    use super::*;
    use crate::measure::Spread;

    fn page() -> String {
        let columns = vec![
            Column::new("rival", "rival"),
            Column::with_decimals("latency_us", "latency\nµs", 2),
            Column::json_only("seed"),
        ];
        let mut table = Table::new("echo <64 B>", columns);
        let slow = Spread::of([4.0, 5.0, 8.0]);
        table.push(vec!["bytes & more".into(), Spread::of([2.0]).into(), 7.0.into()]);
        table.push(vec!["slow".into(), slow.into(), 7.0.into()]);
        table.push(vec!["not here".into(), Cell::None, Cell::None]);
        let mut report = Report::new("calls", Conditions::of_this_machine());
        report.tables.push(table);
        report.problems.push("a <problem>".into());
        super::report(&report)
    }

    #[test]
    fn draws_and_escapes_measured_values() {
        let page = page();
        assert_eq!(page.matches("<rect").count(), 2);
        // Half as wide as the longest range, and as far as the median of the other.
        assert!(page.contains("width=\"215.0\"") && page.contains("width=\"537.5\""), "{page}");
        for text in
            ["bytes &amp; more: 2</text>", "slow: 5 (4–8)</text>", "a &lt;problem&gt;", "<td>not here<td>\n"]
        {
            assert!(page.contains(text), "{text} in {page}");
        }
        assert!(!page.contains("seed") && !page.contains("<64"));
    }

    #[test]
    fn a_page_names_no_address_and_knows_the_dark() {
        let page = page();
        assert!(!page.contains("http") && !page.contains("src=") && !page.contains("<script"));
        assert!(page.contains("prefers-color-scheme: dark"));
        for colour in ["#222222", "#0072B2", "#D55E00"] {
            let drawn =
                page.contains(&format!("fill=\"{colour}\"/")) || page.contains(&format!("=\"{colour}\""));
            assert!(
                drawn && page.contains(&format!("=\"{colour}\"]")),
                "{colour} stays as it is in the dark"
            );
        }
    }
}
