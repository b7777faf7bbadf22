//! The figures of the papers: published values, next to those measured here.
//!
//! - [`papers`]: one file per experiment, in a directory for each paper;
//! - [`Experiment`]: the content of such a file; [`Trial`]: one of its measurements, executed by the code of
//!   [`crate::experiments`];
//! - [`run`]: measures experiments; [`Results`]: their results, as versioned JSON;
//! - [`page`]: the results as one HTML file;
//! - [`auto`]: the library's choice on the papers' workloads, compared with the best preset.

mod auto;
mod channels;
mod experiment;
mod page;
pub mod papers;
mod plot;
mod results;
mod run;
mod sample;
mod servers;
mod span;
mod tables;
mod trial;
mod tuned;
mod verdict;

pub use auto::auto;
pub use experiment::{Axis, Experiment, Paper, Published, Scale};
pub use page::page;
pub use results::{FORMAT, Measured, Outcome, PublishedSeries, Results, ResultsError, Series};
pub use run::{RunPlan, run};
pub use trial::Trial;
pub use verdict::{Finding, Verdict};

/// There is no experiment of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no experiment {0:?}; there are those of `farcall figures list`, and the papers A to E as a whole"
)]
pub struct Unknown(pub String);

/// Reason why a selection cannot be measured between two hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotBetweenHosts {
    /// There is no experiment of this name.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// No part of these experiments can be measured between two hosts.
    #[error("of one host only: {ids}")]
    OfOneHost {
        /// Names of these experiments.
        ids: String,
        /// Names of the selected experiments that can be measured.
        rest: String,
    },
}

/// Returns the experiments that `names` select, each once, in the order of the list: a paper (`A`), an experiment
/// (`A.5`), or all panels of one (`B.3`).
///
/// # Errors
/// Returns an error if there is no experiment of a name.
pub fn select(names: &[String]) -> Result<Vec<&'static Experiment>, Unknown> {
    if let Some(name) = names.iter().find(|name| !papers::all().any(|experiment| experiment.is_named(name))) {
        return Err(Unknown(name.clone()));
    }
    let is_wanted =
        |experiment: &&Experiment| names.is_empty() || names.iter().any(|name| experiment.is_named(name));
    Ok(papers::all().filter(is_wanted).collect())
}

/// Returns the selected experiments for a measurement between two hosts. Without names, returns all experiments of
/// which some part can be measured between hosts.
///
/// # Errors
/// Returns an error if there is no experiment of a name, or if it can only be measured on one host.
pub fn select_between_hosts(names: &[String]) -> Result<Vec<&'static Experiment>, NotBetweenHosts> {
    let (of_one_host, rest): (Vec<_>, Vec<_>) =
        select(names)?.into_iter().partition(|experiment| experiment.is_of_one_host());
    if names.is_empty() || of_one_host.is_empty() {
        return Ok(rest);
    }
    let ids = |experiments: &[&Experiment]| {
        let measured = experiments.iter().filter(|experiment| experiment.not_yet.is_none());
        measured.map(|experiment| experiment.id).collect::<Vec<_>>().join(" ")
    };
    Err(NotBetweenHosts::OfOneHost { ids: ids(&of_one_host), rest: ids(&rest) })
}

#[cfg(test)]
mod tests;
