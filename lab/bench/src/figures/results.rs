//! Results of experiments: versioned JSON that contains all data of a report.

use super::experiment::{Axis, Experiment, Published, Scale};
use super::verdict::Finding;
use crate::measure::Spread;
use serde::{Deserialize, Serialize};

/// Version of the layout below; incremented by changes that older programs would misread.
pub const FORMAT: u32 = 1;

/// Reason why results cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// Not JSON, or of another kind.
    #[error("these are no results of `farcall figures run`")]
    Unreadable(#[from] serde_json::Error),
    /// Written by a newer program.
    #[error(
        "these results are of format {found}, and this farcall reads formats up to {FORMAT}: \
         a newer farcall wrote them; read them with that one"
    )]
    Newer {
        /// Format of the results.
        found: u32,
    },
}

/// All results of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Format of the results, see [`FORMAT`].
    pub farcall_figures: u32,
    /// Version of the program that measured.
    pub version: String,
    /// The provider of both ends.
    pub provider: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// Machine, date, device, cores, repetitions: names and values.
    pub conditions: Vec<(String, String)>,
    /// Explanations for the reader.
    pub notes: Vec<String>,
    /// Experiments in the order in which they ran.
    pub experiments: Vec<Outcome>,
    /// Findings of the papers, with the verdicts on them.
    pub findings: Vec<Finding>,
    /// `true` if all requested experiments were run.
    pub is_complete: bool,
}

/// An axis; see [`Axis`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AxisLabel {
    /// Name of the quantity.
    pub name: String,
    /// Unit.
    pub unit: String,
    /// Scale.
    pub scale: Scale,
}

/// An experiment with the published and measured values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// See [`Experiment::id`].
    pub id: String,
    /// See [`Experiment::title`].
    pub title: String,
    /// Title of the paper.
    pub paper: String,
    /// Location in the paper.
    pub place: String,
    /// Machines and conditions of the paper.
    pub paper_conditions: String,
    /// Horizontal axis.
    pub x: AxisLabel,
    /// Vertical axis.
    pub y: AxisLabel,
    /// Numbers of the paper.
    pub published: Vec<PublishedSeries>,
    /// Other statements of the paper.
    pub statements: Vec<String>,
    /// Reason why it is not measured yet, if it is not.
    pub not_yet: Option<String>,
    /// Differences between the conditions here and the paper's.
    pub differs: Vec<String>,
    /// Measured numbers.
    pub measured: Vec<Series>,
    /// Explanations for the reader.
    pub notes: Vec<String>,
    /// Faults of the measurement.
    pub problems: Vec<String>,
}

/// A curve of the paper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PublishedSeries {
    /// Name of the curve.
    pub name: String,
    /// x (`None` if not stated) and y.
    pub points: Vec<(Option<f64>, f64)>,
    /// Location of the statement in the paper.
    pub source: String,
}

/// A measured curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of the curve.
    pub name: String,
    /// Points in the order in which they were measured.
    pub points: Vec<Measured>,
}

/// A measured point.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// x; `None` for a level.
    pub x: Option<f64>,
    /// y: median and range over the repetitions.
    pub y: Spread,
}

impl Results {
    /// Reads results written by [`Self::to_json`].
    ///
    /// # Errors
    /// Returns an error if the text is of another kind, or written by a newer program.
    pub fn from_json(text: &str) -> Result<Self, ResultsError> {
        /// Read separately, to distinguish an unknown format from invalid input.
        #[derive(Deserialize)]
        struct Format {
            farcall_figures: u32,
        }
        let Format { farcall_figures: found } = serde_json::from_str(text)?;
        if found > FORMAT {
            return Err(ResultsError::Newer { found });
        }
        Ok(serde_json::from_str(text)?)
    }

    /// Returns the results as JSON.
    ///
    /// # Panics
    /// Never: names are text, and all numbers are finite.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("results are plain data")
    }

    /// Returns the experiment `id`, if it ran.
    pub fn of(&self, id: &str) -> Option<&Outcome> {
        self.experiments.iter().find(|outcome| outcome.id == id)
    }

    /// Returns whether the run is complete and without problems.
    pub fn is_sound(&self) -> bool {
        self.is_complete && self.experiments.iter().all(|outcome| outcome.problems.is_empty())
    }
}

impl Outcome {
    /// Creates the outcome of an experiment before its measurement.
    pub fn new(experiment: &Experiment) -> Self {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Self {
            id: experiment.id.to_owned(),
            title: experiment.title.to_owned(),
            paper: experiment.paper.title.to_owned(),
            place: experiment.place.to_owned(),
            paper_conditions: format!("{} {}", experiment.paper.setup, experiment.conditions),
            x: experiment.x.into(),
            y: experiment.y.into(),
            published: experiment.published.iter().map(PublishedSeries::from).collect(),
            statements: texts(experiment.statements),
            not_yet: experiment.not_yet.map(str::to_owned),
            differs: texts(experiment.differs),
            measured: Vec::new(),
            notes: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Returns the measured curve `name`.
    pub fn series(&self, name: &str) -> Option<&Series> {
        self.measured.iter().find(|series| series.name == name)
    }
}

impl Series {
    /// Returns the value measured at `x`.
    pub fn at(&self, x: f64) -> Option<Spread> {
        self.points.iter().find(|point| point.x == Some(x)).map(|point| point.y)
    }
}

impl From<Axis> for AxisLabel {
    fn from(axis: Axis) -> Self {
        Self { name: axis.name.to_owned(), unit: axis.unit.to_owned(), scale: axis.scale }
    }
}

impl From<&Published> for PublishedSeries {
    fn from(published: &Published) -> Self {
        Self {
            name: published.series.to_owned(),
            points: published.points.to_vec(),
            source: published.source.to_owned(),
        }
    }
}
