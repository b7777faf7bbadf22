//! What the file of an experiment says.

use super::trial::Trial;

/// A paper.
#[derive(Debug, Clone, Copy)]
pub struct Paper {
    /// By which its experiments are named.
    pub letter: char,
    /// Its title.
    pub title: &'static str,
    /// The machines of its experiments.
    pub setup: &'static str,
}

/// A figure or table of a paper.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Where it was published.
    pub paper: &'static Paper,
    /// The paper's letter and the number of the figure: `A.5`, `B.3a`, `A.table-3`.
    pub id: &'static str,
    /// The place in the paper.
    pub place: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Across.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// The numbers that the paper's text gives for it, in the unit of the axes.
    pub published: &'static [Published],
    /// What else the text says about it.
    pub statements: &'static [&'static str],
    /// What the paper's experiment was like, beyond [`Paper::setup`].
    pub conditions: &'static str,
    /// How the same is measured here.
    pub how: How,
    /// The file that says all this.
    pub file: &'static str,
}

/// What is shown along an axis.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    /// What.
    pub name: &'static str,
    /// In which unit; may be empty.
    pub unit: &'static str,
    /// Spaced how.
    pub scale: Scale,
}

/// How an axis is spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By powers.
    Logarithmic,
}

impl Axis {
    /// An evenly spaced axis.
    #[must_use]
    pub const fn linear(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, scale: Scale::Linear }
    }

    /// An axis of powers.
    #[must_use]
    pub const fn logarithmic(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, scale: Scale::Logarithmic }
    }
}

/// Numbers of one curve, as the paper's text gives them.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// The curve; one measured under the same name is its counterpart.
    pub series: &'static str,
    /// Across and upwards; `None` where the text does not say for which x.
    pub points: &'static [(Option<f64>, f64)],
    /// Where the text says it.
    pub source: &'static str,
}

/// How an experiment is measured here.
#[derive(Clone, Copy)]
pub enum How {
    /// Between two processes, of one host or of two.
    Here {
        /// How this differs from the paper's experiment.
        differs: &'static [&'static str],
        /// What is measured.
        trials: fn() -> Vec<Trial>,
    },
    /// Not yet, because of this.
    NotYet(&'static str),
}

impl Experiment {
    /// Whether `name` stands for it: its own, that of all panels of its figure, or its paper's.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        let (id, name) = (self.id.to_ascii_lowercase(), name.to_ascii_lowercase());
        let is_panel = |rest: &str| {
            name.ends_with(|last: char| last.is_ascii_digit())
                && rest.starts_with(|first: char| first.is_ascii_lowercase() || first == '-')
        };
        match id.strip_prefix(&name) {
            Some("") => true,
            Some(rest) if name.contains('.') => is_panel(rest),
            Some(rest) => name.len() == 1 && rest.starts_with('.'),
            None => false,
        }
    }

    /// Whether nothing of it can be measured between two hosts, though it can on one.
    #[must_use]
    pub fn is_of_one_host(&self) -> bool {
        match self.how {
            How::Here { trials, .. } => {
                !trials().iter().any(|trial| trial.spans_hosts() && !trial.is_limit())
            }
            How::NotYet(_) => false,
        }
    }

    /// Why it is not measured, if so.
    #[must_use]
    pub fn not_yet(&self) -> Option<&'static str> {
        match self.how {
            How::Here { .. } => None,
            How::NotYet(because) => Some(because),
        }
    }
}
