//! One line of the doctor's report.

use serde_json::json;
use std::fmt;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Farcall works, but something is slower or missing.
    Warn,
    /// Farcall cannot work so.
    Fail,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub verdict: Verdict,
    name: &'static str,
    found: String,
    /// What it means for the user, and what to do; empty when all is well.
    meaning: String,
    remedy: String,
}

impl Finding {
    /// All is well.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Ok,
            name,
            found: found.into(),
            meaning: String::new(),
            remedy: String::new(),
        }
    }

    /// Works, with a drawback.
    pub fn warn(name: &'static str, found: impl Into<String>, meaning: &str, remedy: &str) -> Self {
        Self {
            verdict: Verdict::Warn,
            meaning: meaning.into(),
            remedy: remedy.into(),
            ..Self::ok(name, found)
        }
    }

    /// Does not work.
    pub fn fail(name: &'static str, found: impl Into<String>, meaning: &str, remedy: &str) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, found, meaning, remedy) }
    }

    /// For `--json`.
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
    fn a_warning_carries_its_meaning_and_remedy() {
        let finding = Finding::warn("huge pages", "none", "more TLB misses", "set vm.nr_hugepages");
        let text = finding.to_string();
        assert!(text.starts_with("warn  huge pages") && text.contains("remedy: set vm.nr_hugepages"));
        assert_eq!(finding.to_json()["verdict"], "warn");
        assert!(!Finding::ok("x", "y").to_string().contains("remedy"));
    }
}
