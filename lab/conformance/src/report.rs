//! What a run found.

use std::fmt;

use serde::Serialize;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// As the specification says.
    Pass,
    /// Otherwise.
    Fail {
        /// What was seen.
        seen: String,
    },
    /// The device does not have what the case needs.
    Unsupported {
        /// Which capability.
        capability: String,
        /// How we know.
        reason: String,
    },
    /// Fails as listed.
    Deviation {
        /// The table's reason.
        reason: &'static str,
        /// What was seen.
        seen: String,
    },
    /// Listed as a deviation, but passes: the table is out of date.
    UnexpectedPass {
        /// The table's reason.
        reason: &'static str,
    },
}

/// A case and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaseReport {
    /// The case.
    pub name: String,
    /// Where its rule is written.
    pub source: &'static str,
    /// How often it was tried.
    pub tries: u32,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What ran where.
    pub world: String,
    /// Case by case.
    pub cases: Vec<CaseReport>,
}

impl Report {
    /// How many cases ended so.
    pub fn count(&self, which: impl Fn(&Outcome) -> bool) -> usize {
        self.cases.iter().filter(|case| which(&case.outcome)).count()
    }

    /// How many failed.
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
