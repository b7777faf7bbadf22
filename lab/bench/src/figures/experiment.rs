//! Description of an experiment, as its file states it.

use super::trial::Trial;

/// A paper.
#[derive(Debug, Clone, Copy)]
pub struct Paper {
    /// Letter that begins the names of its experiments.
    pub letter: char,
    /// Title.
    pub title: &'static str,
    /// Machines of its experiments.
    pub setup: &'static str,
    /// Source file that describes its experiments.
    pub file: &'static str,
}

/// A figure or table of a paper.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// The paper that published it.
    pub paper: &'static Paper,
    /// The paper's letter and the number of the figure: `A.5`, `B.3a`, `A.table-3`.
    pub id: &'static str,
    /// Location in the paper.
    pub place: &'static str,
    /// Title.
    pub title: &'static str,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Numbers that the paper's text states for it, in the unit of the axes.
    pub published: &'static [Published],
    /// Other statements of the text about it.
    pub statements: &'static [&'static str],
    /// Conditions of the paper's experiment, in addition to [`Paper::setup`].
    pub conditions: &'static str,
    /// Differences of the measurement here from the paper's experiment.
    pub differs: &'static [&'static str],
    /// Returns the measurements, between two processes on one host or on two. Empty if it is not measured yet.
    pub trials: fn() -> Vec<Trial>,
    /// Reason why it is not measured yet; `None` if it is.
    pub not_yet: Option<&'static str>,
}

/// Quantity of an axis.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    /// Name of the quantity.
    pub name: &'static str,
    /// Unit; may be empty.
    pub unit: &'static str,
    /// Scale of the axis.
    pub scale: Scale,
}

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By powers.
    Logarithmic,
}

impl Axis {
    /// Returns an axis with linear scale.
    pub const fn linear(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, scale: Scale::Linear }
    }

    /// Returns an axis with logarithmic scale.
    pub const fn logarithmic(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, scale: Scale::Logarithmic }
    }
}

/// Numbers of one curve, as the paper's text states them.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// Name of the curve; a measured curve of the same name is its counterpart.
    pub series: &'static str,
    /// x and y; `None` if the text does not state the x.
    pub points: &'static [(Option<f64>, f64)],
    /// Location of the statement in the paper.
    pub source: &'static str,
}

/// Returns the numbers of the curve `series`, with their location in the paper.
pub(super) const fn published(
    series: &'static str,
    points: &'static [(Option<f64>, f64)],
    source: &'static str,
) -> Published {
    Published { series, points, source }
}

impl Experiment {
    /// Returns an experiment of `paper` whose other fields are empty, for struct updates in descriptions.
    pub(super) const fn of(paper: &'static Paper) -> Self {
        let (none, axis) = ("", Axis::linear("", ""));
        Self {
            paper,
            id: none,
            place: none,
            title: none,
            x: axis,
            y: axis,
            published: &[],
            statements: &[],
            conditions: none,
            differs: &[],
            trials: Vec::new,
            not_yet: None,
        }
    }

    /// Returns whether `name` selects it: its own name, that of all panels of its figure, or that of its paper.
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

    /// Returns whether it can be measured on one host but no part of it between two hosts.
    pub fn is_of_one_host(&self) -> bool {
        self.not_yet.is_none()
            && !(self.trials)().iter().any(|trial| trial.spans_hosts() && !trial.is_limit())
    }
}
