//! What running experiments gave: versioned JSON that holds all a report needs.

use super::experiment::{Axis, Experiment, Published, Scale};
use super::verdict::Finding;
use crate::measure::Spread;
use serde::{Deserialize, Serialize};

/// The layout below. A change that older programs would misread raises it.
pub const FORMAT: u32 = 1;

/// Results cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// Not JSON, or of another kind.
    #[error("these are no results of `farcall figures run`: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// Of a later program.
    #[error(
        "these results are of format {found}, and this farcall reads formats up to {FORMAT}: \
         a newer farcall wrote them; read them with that one"
    )]
    Newer {
        /// Their format.
        found: u32,
    },
}

/// Everything that was measured in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub farcall_figures: u32,
    /// Of the program that measured.
    pub version: String,
    /// The provider of both ends.
    pub provider: String,
    /// Of everything random.
    pub seed: u64,
    /// Machine, date, device, cores, repetitions: names and values.
    pub conditions: Vec<(String, String)>,
    /// What a reader must know to read them.
    pub notes: Vec<String>,
    /// In the order in which they ran.
    pub experiments: Vec<Outcome>,
    /// What the papers found, and whether it was found here.
    pub findings: Vec<Finding>,
    /// Whether everything that was asked for was run.
    pub is_complete: bool,
}

/// An axis, as in [`Axis`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AxisLabel {
    /// What it shows.
    pub name: String,
    /// In which unit.
    pub unit: String,
    /// Spaced how.
    pub scale: Scale,
}

/// An experiment with what was published and what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// As in [`Experiment`].
    pub id: String,
    /// As in [`Experiment`].
    pub title: String,
    /// The paper.
    pub paper: String,
    /// The place in it.
    pub place: String,
    /// The paper's machines and conditions.
    pub paper_conditions: String,
    /// Across.
    pub x: AxisLabel,
    /// Upwards.
    pub y: AxisLabel,
    /// The paper's numbers.
    pub published: Vec<PublishedSeries>,
    /// What else the paper says.
    pub statements: Vec<String>,
    /// Why nothing was measured, if it cannot be here yet.
    pub not_yet: Option<String>,
    /// How the conditions here differ from the paper's.
    pub differs: Vec<String>,
    /// The numbers measured.
    pub measured: Vec<Series>,
    /// What a reader must know to read them.
    pub notes: Vec<String>,
    /// What went wrong.
    pub problems: Vec<String>,
}

/// A curve of the paper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PublishedSeries {
    /// Its name.
    pub name: String,
    /// Across (`None`: not said) and upwards.
    pub points: Vec<(Option<f64>, f64)>,
    /// Where the paper says so.
    pub source: String,
}

/// A measured curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points, in the order in which they were measured.
    pub points: Vec<Measured>,
}

/// A measured point.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Across; `None` of a level.
    pub x: Option<f64>,
    /// Upwards: median and range over the repetitions.
    pub y: Spread,
}

impl Results {
    /// Reads what [`Self::to_json`] wrote.
    ///
    /// # Errors
    /// When it is something else, or of a newer program.
    pub fn from_json(text: &str) -> Result<Self, ResultsError> {
        /// Alone, so that a format which this program does not know is told from nonsense.
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

    /// As JSON.
    ///
    /// # Panics
    /// Never: names are text, and all numbers are finite.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("results are plain data")
    }

    /// The experiment `id`, if it ran.
    #[must_use]
    pub fn of(&self, id: &str) -> Option<&Outcome> {
        self.experiments.iter().find(|outcome| outcome.id == id)
    }

    /// Whether nothing went wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.is_complete && self.experiments.iter().all(|outcome| outcome.problems.is_empty())
    }
}

impl Outcome {
    /// What is known before anything is measured.
    #[must_use]
    pub fn new(experiment: &Experiment) -> Self {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let differs = match experiment.how {
            super::How::Here { differs, .. } => differs,
            super::How::NotYet(_) => &[],
        };
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
            not_yet: experiment.not_yet().map(str::to_owned),
            differs: texts(differs),
            measured: Vec::new(),
            notes: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// The measured curve `name`.
    #[must_use]
    pub fn series(&self, name: &str) -> Option<&Series> {
        self.measured.iter().find(|series| series.name == name)
    }
}

impl Series {
    /// What was measured at `x`.
    #[must_use]
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
