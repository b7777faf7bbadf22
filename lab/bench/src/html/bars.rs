//! Bars as inline SVG: one per row, with a line over its range.

use super::{escape, spread};
use crate::measure::Spread;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const ROW_HEIGHT: f64 = 38.0;
/// Offset of the bar within its row, below the label.
const BAR_TOP: f64 = 20.0;
const BAR_HEIGHT: f64 = 12.0;

/// Returns the bars of named values, all starting at 0; an empty string if there are none.
pub(crate) fn bars(title: &str, rows: &[(String, Spread)]) -> String {
    let longest = rows.iter().map(|(_, value)| value.max).fold(0.0, f64::max);
    if longest <= 0.0 {
        return String::new();
    }
    let across = |value: f64| value.max(0.0) / longest * WIDTH;
    let mut svg = format!(
        "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {WIDTH} {}\" font-family=\"sans-serif\" font-size=\"14\">\n",
        escape(title),
        ROW_HEIGHT * rows.len() as f64
    );
    // The page replaces these colours in dark mode.
    for (at, (name, value)) in rows.iter().enumerate() {
        let top = ROW_HEIGHT * at as f64;
        let (bar, middle) = (top + BAR_TOP, top + BAR_TOP + BAR_HEIGHT / 2.0);
        let [low, width, high] = [value.min, value.median, value.max].map(across);
        let label = escape(&format!("{name}: {}", spread(*value)));
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"{:.1}\" fill=\"#222222\">{label}</text>\
             <rect x=\"0\" y=\"{bar:.1}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" fill=\"#0072B2\"/>\
             <path d=\"M{low:.1} {middle:.1}H{high:.1}\" stroke=\"#D55E00\" stroke-width=\"3\"/>",
            top + BAR_TOP - 5.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}
