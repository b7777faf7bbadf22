//! Results of a run.

use std::fmt;

use serde::Serialize;

/// Outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// Conforms to the specification.
    Pass,
    /// Does not conform.
    Fail {
        /// Observed behaviour.
        seen: String,
    },
    /// The device does not support what the case needs.
    Unsupported {
        /// Missing capability.
        capability: String,
        /// Evidence of the lack.
        reason: String,
    },
    /// Fails as listed.
    Deviation {
        /// Reason in the table.
        reason: &'static str,
        /// Observed behaviour.
        seen: String,
    },
    /// Listed as a deviation, but passes: the table is out of date.
    UnexpectedPass {
        /// Reason in the table.
        reason: &'static str,
    },
}

/// A case and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaseReport {
    /// Name of the case.
    pub name: String,
    /// Source of its rule.
    pub source: &'static str,
    /// Number of attempts.
    pub tries: u32,
    /// Outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Description of the world.
    pub world: String,
    /// Results of the cases.
    pub cases: Vec<CaseReport>,
}

impl Report {
    /// Returns the number of cases with such outcomes.
    pub fn count(&self, which: impl Fn(&Outcome) -> bool) -> usize {
        self.cases.iter().filter(|case| which(&case.outcome)).count()
    }

    /// Returns the number of failed cases.
    pub fn failed(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Fail { .. }))
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, source, tries, outcome } = self;
        match outcome {
            Outcome::Pass if *tries > 1 => write!(f, "pass         {name} (when it was tried {tries} times)"),
            Outcome::Pass => write!(f, "pass         {name}"),
            Outcome::Fail { seen } => {
                write!(f, "FAIL         {name}\n             {seen}\n             ({source})")
            }
            Outcome::Unsupported { capability, reason } => {
                write!(f, "unsupported  {name}\n             {capability}: {reason}")
            }
            Outcome::Deviation { reason, seen } => {
                write!(f, "deviation    {name}\n             {reason}\n             seen: {seen}")
            }
            Outcome::UnexpectedPass { reason } => {
                write!(f, "no deviation {name}\n             passes, but is listed: {reason}")
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in self.cases.iter().filter(|case| case.outcome != Outcome::Pass || case.tries > 1) {
            writeln!(f, "{case}")?;
        }
        let unsupported = self.count(|outcome| matches!(outcome, Outcome::Unsupported { .. }));
        let deviations = self.count(|outcome| matches!(outcome, Outcome::Deviation { .. }));
        let unexpected = self.count(|outcome| matches!(outcome, Outcome::UnexpectedPass { .. }));
        write!(
            f,
            "{}: {} cases: {} passed, {} failed, {unsupported} unsupported, {deviations} known deviations, \
             {unexpected} listed deviations that pass",
            self.world,
            self.cases.len(),
            self.count(|outcome| *outcome == Outcome::Pass),
            self.failed()
        )
    }
}
