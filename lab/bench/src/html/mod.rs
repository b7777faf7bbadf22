//! Common parts of the pages of figures and reports, which need no network and are legible in print and in dark mode.

mod bars;
mod text;

pub(crate) use bars::bars;
pub(crate) use text::{compact, escape};

use crate::measure::Spread;
use std::fmt::Write;

/// Returns the beginning of a page, including its style sheet.
pub(crate) fn head(title: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n<h1>{title}</h1>\n",
        include_str!("page.css")
    )
}

/// Returns the table of the conditions of measurement.
pub(crate) fn conditions_table<'a>(conditions: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut html = "<h3>Conditions</h3>\n<table class=\"words\">\n".to_owned();
    for (name, value) in conditions {
        row(&mut html, &[name, value]);
    }
    html.push_str("</table>\n");
    html
}

/// Returns a median with its range, and a mark if it was disturbed.
pub(crate) fn spread(y: Spread) -> String {
    let mark = if y.is_disturbed() { "!" } else { "" };
    match y.repetitions {
        1 => compact(y.median),
        _ => format!("{}{mark} ({}–{})", compact(y.median), compact(y.min), compact(y.max)),
    }
}

/// Appends a row of a table.
pub(crate) fn row(html: &mut String, cells: &[impl AsRef<str>]) {
    html.push_str("<tr>");
    for cell in cells {
        let _ = write!(html, "<td>{}", escape(cell.as_ref()));
    }
    html.push('\n');
}

/// Returns a paragraph for each text, the first with the heading if that is not empty; an empty string if there are no
/// texts.
pub(crate) fn paragraphs(heading: &str, texts: &[String]) -> String {
    let mut html = String::new();
    for (at, text) in texts.iter().enumerate() {
        let lead = if at == 0 && !heading.is_empty() { format!("<b>{heading}:</b> ") } else { String::new() };
        let _ = writeln!(html, "<p>{lead}{}</p>", escape(text));
    }
    html
}
