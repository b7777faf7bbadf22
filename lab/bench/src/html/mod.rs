//! Pages that need no network, and are legible on paper and in the dark: what those of figures and of reports share.

mod bars;
mod text;

pub(crate) use bars::bars;
pub(crate) use text::{compact, escape};

use crate::measure::Spread;
use std::fmt::Write;

/// How a page begins: its style is in it.
pub(crate) fn head(title: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n<h1>{title}</h1>\n",
        include_str!("page.css")
    )
}

/// Under which conditions was measured.
pub(crate) fn conditions_table<'a>(conditions: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut html = "<h3>Conditions</h3>\n<table class=\"words\">\n".to_owned();
    for (name, value) in conditions {
        row(&mut html, &[name, value]);
    }
    html.push_str("</table>\n");
    html
}

/// A median with its range, and a mark if something disturbed it.
pub(crate) fn spread(y: Spread) -> String {
    let mark = if y.is_disturbed() { "!" } else { "" };
    match y.repetitions {
        1 => compact(y.median),
        _ => format!("{}{mark} ({}–{})", compact(y.median), compact(y.min), compact(y.max)),
    }
}

/// A row of a table.
pub(crate) fn row(html: &mut String, cells: &[impl AsRef<str>]) {
    html.push_str("<tr>");
    for cell in cells {
        let _ = write!(html, "<td>{}", escape(cell.as_ref()));
    }
    html.push('\n');
}

/// A paragraph each, under a heading if it has one; nothing if there are none.
pub(crate) fn paragraphs(heading: &str, texts: &[String]) -> String {
    let mut html = String::new();
    for (at, text) in texts.iter().enumerate() {
        let lead = if at == 0 && !heading.is_empty() { format!("<b>{heading}:</b> ") } else { String::new() };
        let _ = writeln!(html, "<p>{lead}{}</p>", escape(text));
    }
    html
}
