//! A single result of `farcall doctor`.

use serde_json::json;
use std::fmt;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No problem.
    Ok,
    /// Farcall works, but with lower performance or without a feature.
    Warn,
    /// Farcall does not work in this state.
    Fail,
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Severity of the finding.
    pub verdict: Verdict,
    name: &'static str,
    found: String,
    /// Consequence for the user, and remedy; empty if there is no problem.
    meaning: String,
    remedy: String,
}

impl Finding {
    /// Creates a finding without a problem.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Ok,
            name,
            found: found.into(),
            meaning: String::new(),
            remedy: String::new(),
        }
    }

    /// Creates a finding with a drawback.
    pub fn warn(name: &'static str, found: impl Into<String>, meaning: &str, remedy: &str) -> Self {
        Self {
            verdict: Verdict::Warn,
            meaning: meaning.into(),
            remedy: remedy.into(),
            ..Self::ok(name, found)
        }
    }

    /// Creates a finding of a failure.
    pub fn fail(name: &'static str, found: impl Into<String>, meaning: &str, remedy: &str) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, found, meaning, remedy) }
    }

    /// Returns the finding as JSON, for `--json`.
    pub fn to_json(&self) -> serde_json::Value {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        };
        json!({ "name": self.name, "verdict": verdict, "found": self.found, "meaning": self.meaning, "remedy": self.remedy })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        write!(f, "{verdict}  {:<24} {}", self.name, self.found)?;
        if !self.meaning.is_empty() {
            write!(f, "\n        {}", self.meaning)?;
        }
        if !self.remedy.is_empty() {
            write!(f, "\n        remedy: {}", self.remedy)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_the_meaning_and_remedy_of_a_warning() {
        let finding = Finding::warn("huge pages", "none", "more TLB misses", "set vm.nr_hugepages");
        let text = finding.to_string();
        assert!(text.starts_with("warn  huge pages") && text.contains("remedy: set vm.nr_hugepages"));
        assert_eq!(finding.to_json()["verdict"], "warn");
        assert!(!Finding::ok("x", "y").to_string().contains("remedy"));
    }
}
