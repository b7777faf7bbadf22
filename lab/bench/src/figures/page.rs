//! Results as one HTML file, which needs no network and is legible in print and in dark mode.

use super::plot::{self, Look};
use super::results::{Outcome, Results};
use super::verdict::{Finding, Verdict};
use crate::html::{compact, conditions_table, escape, head, paragraphs, row, spread};
use std::fmt::Write;

/// Returns the complete file.
pub fn page(results: &Results) -> String {
    let mut html = head("Figures of the papers, measured here");
    html.push_str(&paragraphs("", &results.notes));
    if !results.is_complete {
        html.push_str("<p class=\"problem\">The run was ended before everything was measured.</p>\n");
    }
    html.push_str(
        "<p>Filled marks (●) were measured here: medians, with bars over the range of the repetitions. Hollow marks (○) \
         and dashed lines are numbers that the papers’ texts give for their own machines; nothing is read off their \
         plots. Both stand side by side, and no figure is made of both.</p>\n",
    );
    let conditions = results.conditions.iter();
    html.push_str(&conditions_table(conditions.map(|(name, value)| (name.as_str(), value.as_str()))));
    html.push_str(&contents(&results.experiments));
    html.push_str(&findings(&results.findings));
    for outcome in &results.experiments {
        html.push_str(&section(outcome));
    }
    html.push_str("</html>\n");
    html
}

fn contents(experiments: &[Outcome]) -> String {
    let mut html = "<nav><h3>Experiments</h3>\n<ul>\n".to_owned();
    for outcome in experiments {
        let id = escape(&outcome.id);
        let mark = if outcome.not_yet.is_some() { " <small>(not yet measurable)</small>" } else { "" };
        let _ = writeln!(html, "<li><a href=\"#{id}\">{id}: {}</a>{mark}", escape(&outcome.title));
    }
    html.push_str("</ul></nav>\n");
    html
}

fn findings(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let mut html = "<h2>What the papers found, and what was found here</h2>\n<div class=\"wide\"><table class=\"words\">\n\
                    <thead><tr><th>finding<th>verdict<th>rule<th>because</thead>\n"
        .to_owned();
    for finding in findings {
        let class = match finding.verdict {
            Verdict::Confirmed => "confirmed",
            Verdict::Refuted => "refuted",
            Verdict::Undetermined => "faint",
        };
        let _ = writeln!(
            html,
            "<tr><td>{} <small>{}</small><td class=\"{class}\">{}<td>{}<td>{}",
            escape(&finding.statement),
            escape(&finding.source),
            finding.verdict,
            escape(&finding.rule),
            escape(&finding.because)
        );
    }
    html.push_str("</table></div>\n");
    html
}

fn section(outcome: &Outcome) -> String {
    let id = escape(&outcome.id);
    let mut html = format!(
        "<section>\n<h2 id=\"{id}\">{id}: {}</h2>\n<p class=\"faint\">{}, {}</p>\n",
        escape(&outcome.title),
        escape(&outcome.paper),
        escape(&outcome.place)
    );
    if let Some(because) = &outcome.not_yet {
        let _ =
            writeln!(html, "<p class=\"not-yet\"><b>Not yet measurable</b>, because {}</p>", escape(because));
    }
    for problem in &outcome.problems {
        let _ = writeln!(html, "<p class=\"problem\">{}</p>", escape(problem));
    }
    if let Some(svg) = plot::svg(outcome) {
        html.push_str(&svg);
        html.push_str(&legend(outcome));
        html.push_str(&numbers(outcome));
    }
    html.push_str(&paragraphs("The paper also says", &outcome.statements));
    html.push_str(&paragraphs("Conditions of the paper", std::slice::from_ref(&outcome.paper_conditions)));
    html.push_str(&paragraphs("Differences", &outcome.differs));
    html.push_str(&paragraphs("Notes", &outcome.notes));
    html.push_str("</section>\n");
    html
}

/// Returns the legend of the curves' marks.
fn legend(outcome: &Outcome) -> String {
    let mut html = "<ul class=\"legend\">\n".to_owned();
    for (name, look) in Look::all_of(outcome) {
        let (filled, hollow) = look.marks();
        let is_measured = outcome.series(name).is_some();
        let is_published = outcome.published.iter().any(|series| series.name == name);
        let marks = [(is_measured, filled), (is_published, hollow)];
        let marks: String = marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect();
        let _ = writeln!(html, "<li><span class=\"{}\">{marks}</span> {}", look.class(), escape(name));
    }
    html.push_str("</ul>\n");
    html
}

/// Returns the numbers of the plot as a table: a row for each x, a column for each curve.
fn numbers(outcome: &Outcome) -> String {
    let mut xs: Vec<Option<f64>> = Vec::new();
    let measured = outcome.measured.iter().flat_map(|series| &series.points).map(|point| point.x);
    for x in measured.chain(outcome.published.iter().flat_map(|series| &series.points).map(|(x, _)| *x)) {
        if !xs.contains(&x) {
            xs.push(x);
        }
    }
    // Levels (points without an x) are last.
    xs.sort_by(|left, right| left.unwrap_or(f64::INFINITY).total_cmp(&right.unwrap_or(f64::INFINITY)));
    let heading = |label: &super::results::AxisLabel| match label.unit.as_str() {
        "" => escape(&label.name),
        unit => format!("{}, {}", escape(&label.name), escape(unit)),
    };
    let mut html = format!("<div class=\"wide\"><table>\n<thead><tr><th>{}", heading(&outcome.x));
    for series in &outcome.measured {
        let _ = write!(html, "<th>● {}", escape(&series.name));
    }
    for series in &outcome.published {
        let _ = write!(html, "<th>○ {}", escape(&series.name));
    }
    let _ = writeln!(html, "</thead>");
    for x in xs {
        let cells = outcome.measured.iter().map(|series| {
            let found = series.points.iter().filter(|point| point.x == x).map(|point| spread(point.y));
            found.collect::<Vec<_>>().join("; ")
        });
        let published = outcome.published.iter().map(|series| {
            let found = series.points.iter().filter(|(at, _)| *at == x).map(|(_, y)| compact(*y));
            found.collect::<Vec<_>>().join("; ")
        });
        let lead = x.map_or_else(|| "any, or not said".to_owned(), compact);
        row(&mut html, &[lead].into_iter().chain(cells).chain(published).collect::<Vec<_>>());
    }
    html.push_str("</table></div>\n");
    let _ = writeln!(html, "<p class=\"faint\">{}; measured: median (range).", heading(&outcome.y));
    for series in &outcome.published {
        let _ = writeln!(html, "○ {}: {}.", escape(&series.name), escape(&series.source));
    }
    html.push_str("</p>\n");
    html
}
