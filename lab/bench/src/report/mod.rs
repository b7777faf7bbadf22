//! Output of experiments: one table model, printed as text or JSON, always with its conditions.

mod conditions;
mod html;
mod json;
mod table;
mod text;

pub use conditions::Conditions;
pub use table::{Cell, Column, Figure, Shown, Table};

use farcall::select::ProviderChoice;
use std::fmt;

/// Notice in every report on the software RNIC.
const SOFTWARE_RNIC_NOTICE: &str =
    "The software RNIC on one host measures inter-process communication, not a network.";
/// Notice that replaces it if both ends use one RNIC of this host.
const ONE_RNIC_NOTICE: &str =
    "Both ends are on this host and its RNIC: messages turn around in the adapter and need not reach a wire.";

/// Results of an experiment.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Title.
    pub title: String,
    /// Conditions of the measurement.
    pub conditions: Conditions,
    /// Measured figures.
    pub tables: Vec<Table>,
    /// Conditions that make the figures unusable for a decision; shown first.
    pub warnings: Vec<String>,
    /// Explanations for the reader.
    pub notes: Vec<String>,
    /// Faults; a report with problems makes the command fail.
    pub problems: Vec<String>,
}

/// Problem of a report that was ended by a signal.
const INTERRUPTED: &str = "interrupted before the end";

impl Report {
    /// Creates an empty report with the notice on the software RNIC.
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

    /// Replaces that notice if both ends used an RNIC of this host.
    #[must_use]
    pub fn over(mut self, provider: ProviderChoice) -> Self {
        if provider == ProviderChoice::Ibv {
            self.notes[0] = ONE_RNIC_NOTICE.to_owned();
        }
        self
    }

    /// Adds a warning, unless it exists already.
    pub fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Adds a note, unless it exists already.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Returns `goes_on`; if it is false, adds the interruption to the problems.
    #[must_use]
    pub fn goes_on(&mut self, goes_on: bool) -> bool {
        if !goes_on {
            self.problems.push(INTERRUPTED.to_owned());
        }
        goes_on
    }

    /// Makes the interruption the only problem. A signal reaches servers and clients of a benchmark one after another,
    /// so other problems may be consequences, such as broken connections. They become a note.
    pub fn interrupted(&mut self) {
        let others: Vec<String> = self.problems.drain(..).filter(|problem| problem != INTERRUPTED).collect();
        self.problems.push(INTERRUPTED.to_owned());
        if !others.is_empty() {
            self.note(format!("The interruption may have caused: {}", others.join("; ")));
        }
    }

    /// Returns whether there are no problems.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns the report as one HTML file that needs no network.
    pub fn to_html(&self) -> String {
        html::report(self)
    }

    /// Returns the report as one JSON value with stable names and exact numbers.
    pub fn to_json(&self) -> serde_json::Value {
        json::report(self)
    }
}

/// Prints tables as wide as the terminal, at most 100 columns; columns that are left out are named.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::report(self, Some(text::width()), f)
    }
}

/// A report with all columns and ranges, regardless of the width.
#[derive(Debug)]
pub struct Wide<'a>(pub &'a Report);

impl fmt::Display for Wide<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::report(self.0, None, f)
    }
}
