//! What experiments say: one table model, printed as text or as JSON, always with its conditions.

mod conditions;
mod html;
mod json;
mod table;
mod text;

pub use conditions::Conditions;
pub use table::{Cell, Column, Figure, Shown, Table};

use farcall::select::Wish;
use std::fmt;

/// What every report about the software RNIC says: its figures are not those of a network.
const SOFTWARE_RNIC_NOTICE: &str =
    "The software RNIC on one host measures inter-process communication, not a network.";
/// What a report says instead when both ends use one RNIC of this host.
const ONE_RNIC_NOTICE: &str =
    "Both ends are on this host and its RNIC: messages turn around in the adapter and need not reach a wire.";

/// The outcome of an experiment.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What was measured.
    pub title: String,
    /// Under which conditions.
    pub conditions: Conditions,
    /// The figures.
    pub tables: Vec<Table>,
    /// What makes the figures unfit for a decision; shown before everything else.
    pub warnings: Vec<String>,
    /// What a reader must know to read them.
    pub notes: Vec<String>,
    /// What went wrong; a report with problems makes the command fail.
    pub problems: Vec<String>,
}

/// The problem of a report that a signal ended.
const INTERRUPTED: &str = "interrupted before the end";

impl Report {
    /// An empty report that carries the notice about the software RNIC.
    #[must_use]
    pub fn new(title: impl Into<String>, conditions: Conditions) -> Self {
        Self {
            title: title.into(),
            conditions,
            tables: Vec::new(),
            warnings: Vec::new(),
            notes: vec![SOFTWARE_RNIC_NOTICE.to_owned()],
            problems: Vec::new(),
        }
    }

    /// Says that both ends used an RNIC of this host, if they did.
    #[must_use]
    pub fn over(mut self, provider: Wish) -> Self {
        if provider == Wish::Ibv {
            self.notes[0] = ONE_RNIC_NOTICE.to_owned();
        }
        self
    }

    /// Adds a warning, unless it is there already.
    pub fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Adds a note, unless it is there already.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Hands on whether an experiment goes on; that it does not is a problem.
    #[must_use]
    pub fn goes_on(&mut self, goes_on: bool) -> bool {
        if !goes_on {
            self.problems.push(INTERRUPTED.to_owned());
        }
        goes_on
    }

    /// Makes the interruption the only problem. A signal reaches servers and clients of a benchmark one after the other,
    /// so others may be consequences, such as broken connections: they become a note.
    pub fn interrupted(&mut self) {
        let others: Vec<String> = self.problems.drain(..).filter(|problem| problem != INTERRUPTED).collect();
        self.problems.push(INTERRUPTED.to_owned());
        if !others.is_empty() {
            self.note(format!("The interruption may have caused: {}", others.join("; ")));
        }
    }

    /// Whether nothing went wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    /// The report as one HTML file that needs no network.
    #[must_use]
    pub fn to_html(&self) -> String {
        html::report(self)
    }

    /// The report as one JSON value; stable names, no formatting of numbers.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        json::report(self)
    }
}

/// Tables as wide as the terminal, at most 100 columns; what is left out is named.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::report(self, Some(text::width()), f)
    }
}

/// A report with all columns and ranges, however wide.
#[derive(Debug)]
pub struct Wide<'a>(pub &'a Report);

impl fmt::Display for Wide<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::report(self.0, None, f)
    }
}
