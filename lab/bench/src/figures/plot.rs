//! An experiment as a plot: inline SVG, whose colours the page replaces in dark mode.
//!
//! Measured points are filled, with a bar over their range and a line through them. Published points are hollow. A
//! level without an x is a line, dashed if it was published. Each curve has a colour and a shape of its marks.

use super::results::Outcome;
use super::span::Span;
use crate::html::escape;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

const WIDTH: u32 = 860;
const HEIGHT: u32 = 400;
/// Half the width of a mark, in pixels.
const MARK: i32 = 5;
/// Colour of text and axes, and of the mesh. The page matches these and [`COLOURS`] by their values.
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const MESH: RGBColor = RGBColor(0xDD, 0xDD, 0xDD);
/// Colours of curves: the palette of Okabe and Ito, which most colour-blind readers can distinguish.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0x77, 0x77, 0x77),
];
/// Shapes of marks as characters: filled, hollow.
const FORMS: [(&str, &str); 4] = [("●", "○"), ("■", "□"), ("▲", "△"), ("◆", "◇")];

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Span, Span>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Appearance of a curve, derived from its index among the curves of its experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look(usize);

impl Look {
    /// Returns the appearance of all curves by name; a measured and a published curve of the same name look alike.
    pub(super) fn all_of(outcome: &Outcome) -> Vec<(&str, Self)> {
        let measured = outcome.measured.iter().map(|series| series.name.as_str());
        let published = outcome.published.iter().map(|series| series.name.as_str());
        let mut looks: Vec<(&str, Self)> = Vec::new();
        for name in measured.chain(published) {
            if looks.iter().all(|(known, _)| *known != name) {
                looks.push((name, Self(looks.len())));
            }
        }
        looks
    }

    /// Returns the CSS class of its colour.
    pub(super) fn class(self) -> String {
        format!("c{}", self.0 % COLOURS.len())
    }

    /// Returns its mark as a character: filled, hollow.
    pub(super) fn marks(self) -> (&'static str, &'static str) {
        FORMS[self.0 % FORMS.len()]
    }

    fn colour(self) -> RGBColor {
        COLOURS[self.0 % COLOURS.len()]
    }

    /// Returns the outline of its mark around the origin.
    fn outline(self) -> Vec<(i32, i32)> {
        match self.0 % FORMS.len() {
            0 => (0..16)
                .map(|n| {
                    let (y, x) = (f64::from(n) * std::f64::consts::TAU / 16.0).sin_cos();
                    ((x * f64::from(MARK)).round() as i32, (y * f64::from(MARK)).round() as i32)
                })
                .collect(),
            1 => vec![(-MARK, -MARK), (MARK, -MARK), (MARK, MARK), (-MARK, MARK)],
            2 => vec![(0, -MARK - 1), (MARK + 1, MARK), (-MARK - 1, MARK)],
            _ => vec![(0, -MARK - 1), (MARK + 1, 0), (0, MARK + 1), (-MARK - 1, 0)],
        }
    }
}

/// Returns the plot, or `None` if there is nothing to draw.
pub(super) fn svg(outcome: &Outcome) -> Option<String> {
    let measured = outcome.measured.iter().flat_map(|series| &series.points);
    let published = outcome.published.iter().flat_map(|series| &series.points);
    let xs: Vec<f64> = measured
        .clone()
        .filter_map(|point| point.x)
        .chain(published.clone().filter_map(|(x, _)| *x))
        .collect();
    let ys: Vec<f64> = measured
        .flat_map(|point| [point.y.min, point.y.median, point.y.max])
        .chain(published.map(|(_, y)| *y))
        .collect();
    if ys.is_empty() {
        return None;
    }
    let spans = (Span::across(outcome.x.scale, &xs), Span::upwards(outcome.y.scale, &ys));
    let mut text = String::new();
    draw(outcome, &spans, &mut text).ok()?;
    // Inline SVG needs no namespace, and the page contains no addresses. The page determines the size.
    let text = text.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
    let head = format!("<svg role=\"img\" aria-label=\"{}\"", escape(&outcome.title));
    let size = format!("<svg width=\"{WIDTH}\" height=\"{HEIGHT}\"");
    Some(text.replacen(&size, &head, 1))
}

fn draw(outcome: &Outcome, (across, upwards): &(Span, Span), text: &mut String) -> Drawn {
    let area = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d(across.clone(), upwards.clone())?;
    let named = |name: &str, unit: &str| {
        if unit.is_empty() { name.to_owned() } else { format!("{name} ({unit})") }
    };
    let font = ("sans-serif", 16).into_font().color(&INK);
    chart
        .configure_mesh()
        .x_desc(named(&outcome.x.name, &outcome.x.unit))
        .y_desc(named(&outcome.y.name, &outcome.y.unit))
        .axis_style(INK)
        .bold_line_style(MESH)
        .light_line_style(TRANSPARENT)
        .label_style(font.clone())
        .axis_desc_style(font)
        .draw()?;
    let looks = Look::all_of(outcome);
    let look_of =
        |name: &str| looks.iter().find(|(known, _)| *known == name).map_or(Look(0), |(_, look)| *look);
    for series in &outcome.published {
        let look = look_of(&series.name);
        for (x, y) in &series.points {
            let Some(y) = upwards.place(*y) else { continue };
            match x.and_then(|x| across.place(x)) {
                Some(x) => hollow(&mut chart, look, (x, y))?,
                None => {
                    let style = look.colour().stroke_width(1);
                    chart.draw_series(dashes(across, y).map(|dash| PathElement::new(dash, style)))?;
                    hollow(&mut chart, look, (across.high, y))?;
                }
            }
        }
    }
    for series in &outcome.measured {
        let look = look_of(&series.name);
        let mut line: Vec<(f64, f64)> = Vec::new();
        for point in &series.points {
            let [low, y, high] = [point.y.min, point.y.median, point.y.max].map(|y| upwards.place(y));
            let Some(y) = y else { continue };
            let bar = |x| vec![(x, low.unwrap_or(upwards.low)), (x, high.unwrap_or(y))];
            let x = match point.x.and_then(|x| across.place(x)) {
                Some(x) => {
                    line.push((x, y));
                    x
                }
                None => {
                    let ends = [(across.low, y), (across.high, y)];
                    chart.draw_series(LineSeries::new(ends, look.colour().stroke_width(1)))?;
                    across.low
                }
            };
            chart.draw_series([PathElement::new(bar(x), look.colour().stroke_width(1))])?;
            let mark = Polygon::new(look.outline(), look.colour().filled());
            chart.draw_series([EmptyElement::at((x, y)) + mark])?;
        }
        line.sort_by(|left, right| left.0.total_cmp(&right.0));
        chart.draw_series(LineSeries::new(line, look.colour().stroke_width(2)))?;
    }
    area.present()
}

/// Returns the dashes of a level across the plot. They are drawn here because the plotting library's dashes use
/// `hypotf` of glibc 2.35, which is newer than the binary may require (`packaging/build.sh` checks that).
fn dashes(across: &Span, y: f64) -> impl Iterator<Item = [(f64, f64); 2]> {
    const DASHES: u32 = 70;
    let step = (across.high - across.low) / f64::from(DASHES);
    let low = across.low;
    (0..DASHES).map(move |number| {
        let start = low + f64::from(number) * step;
        [(start, y), (start + 0.55 * step, y)]
    })
}

/// Draws a hollow mark.
fn hollow(chart: &mut Chart<'_, '_>, look: Look, at: (f64, f64)) -> Drawn {
    let mut outline = look.outline();
    outline.extend(outline.first().copied());
    let mark = PathElement::new(outline, look.colour().stroke_width(2));
    chart.draw_series([EmptyElement::at(at) + mark])?;
    Ok(())
}
