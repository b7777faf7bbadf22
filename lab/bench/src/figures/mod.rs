//! The figures of the papers: what they publish, measured here, side by side.
//!
//! - [`papers`]: one file an experiment, in a folder for each paper;
//! - [`Experiment`]: what such a file says; [`Trial`]: one thing that it measures, by the code of [`crate::experiments`];
//! - [`run`]: measures experiments; [`Results`]: what came of it, as versioned JSON;
//! - [`page`]: the results as one HTML file;
//! - [`auto`]: what the library chooses on the papers' workloads, beside the best preset.

mod auto;
mod channels;
mod experiment;
mod page;
pub mod papers;
mod plot;
mod results;
mod run;
mod servers;
mod span;
mod tables;
mod trial;
mod tuned;
mod verdict;

pub use auto::auto;
pub use experiment::{Axis, Experiment, How, Paper, Published, Scale};
pub use page::page;
pub use results::{FORMAT, Measured, Outcome, PublishedSeries, Results, ResultsError, Series};
pub use run::{RunPlan, run};
pub use trial::Trial;
pub use verdict::{Finding, Verdict};

/// No experiment is named so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no experiment {0:?}; there are those of `farcall figures list`, and the papers A to E as a whole"
)]
pub struct Unknown(pub String);

/// What cannot be measured between two hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotBetweenHosts {
    /// No experiment is named so.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// Nothing of these can be.
    #[error("of one host only: {ids}")]
    OfOneHost {
        /// Which.
        ids: String,
        /// Those that were named and can be.
        rest: String,
    },
}

/// The experiments that `names` stand for, each once, in the order of the list: a paper (`A`), an experiment (`A.5`), or
/// all panels of one (`B.3`).
///
/// # Errors
/// When a name stands for nothing.
pub fn select(names: &[String]) -> Result<Vec<&'static Experiment>, Unknown> {
    if let Some(name) = names.iter().find(|name| !papers::all().any(|experiment| experiment.is_named(name))) {
        return Err(Unknown(name.clone()));
    }
    let is_wanted =
        |experiment: &&Experiment| names.is_empty() || names.iter().any(|name| experiment.is_named(name));
    Ok(papers::all().filter(is_wanted).collect())
}

/// The same for a measurement between two hosts: without names, all of which something can be measured there.
///
/// # Errors
/// When a name stands for nothing, or for an experiment that is of one host.
pub fn select_between_hosts(names: &[String]) -> Result<Vec<&'static Experiment>, NotBetweenHosts> {
    let (of_one_host, rest): (Vec<_>, Vec<_>) =
        select(names)?.into_iter().partition(|experiment| experiment.is_of_one_host());
    if names.is_empty() || of_one_host.is_empty() {
        return Ok(rest);
    }
    let ids = |experiments: &[&Experiment]| {
        let measured = experiments.iter().filter(|experiment| experiment.not_yet().is_none());
        measured.map(|experiment| experiment.id).collect::<Vec<_>>().join(" ")
    };
    Err(NotBetweenHosts::OfOneHost { ids: ids(&of_one_host), rest: ids(&rest) })
}

#[cfg(test)]
mod tests;
