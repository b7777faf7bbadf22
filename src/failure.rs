//! Failures of commands: what failed, where, why, and the remedy.

use std::fmt;
use std::process::ExitCode;

use farcall_verbs::with_sources;

/// Exit codes of the program. Stable: scripts may rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded.
    Success,
    /// The command failed, or a check found a fault.
    Failure,
    /// The command line is invalid (the parser uses the same number).
    Usage,
    /// The result is negative: no such key, not stored, no such process.
    Negative,
    /// The service cannot be reached.
    Unreachable,
    /// Ended by SIGINT or SIGTERM before the work was done.
    Interrupted,
    /// The exit code of a program that was run.
    #[cfg(feature = "full")]
    Program(u8),
}

impl Exit {
    /// Returns the number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Negative => 3,
            Self::Unreachable => 4,
            Self::Interrupted => 130,
            #[cfg(feature = "full")]
            Self::Program(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Remedy for a service that did not reply in time.
pub const NO_REPLY_REMEDY: &str =
    "check whether it is stopped, overloaded or another program; or wait longer: --timeout-ms";

/// A failure as displayed to users.
#[derive(Debug)]
pub struct Failure {
    /// Exit code of the program.
    pub exit: Exit,
    what: String,
    place: Option<String>,
    why: Option<String>,
    remedy: Option<String>,
}

impl Failure {
    /// Creates the failure of an action `what`.
    pub fn new(what: impl Into<String>) -> Self {
        Self { exit: Exit::Failure, what: what.into(), place: None, why: None, remedy: None }
    }

    /// Creates the failure of an action `what` because of `error` and its causes.
    pub fn because(what: impl Into<String>, error: &dyn std::error::Error) -> Self {
        Self::new(what).why(with_sources(error))
    }

    /// Names the address, file or process concerned.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.place = Some(place.to_string());
        self
    }

    /// Sets the reason.
    #[must_use]
    pub fn why(mut self, why: impl fmt::Display) -> Self {
        self.why = Some(why.to_string());
        self
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = Some(remedy.to_string());
        self
    }

    /// Sets an exit code other than [`Exit::Failure`].
    #[must_use]
    pub fn exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Returns the reason, or otherwise the action that failed.
    #[cfg(feature = "full")]
    pub fn reason(&self) -> &str {
        self.why.as_deref().unwrap_or(&self.what)
    }

    /// The failure as JSON, for `--json`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "error": {
            "what": self.what, "where": self.place, "why": self.why, "remedy": self.remedy, "exit": self.exit.code(),
        }})
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        for (name, text) in [("where", &self.place), ("why", &self.why), ("remedy", &self.remedy)] {
            if let Some(text) = text {
                write!(f, "\n  {:<8}{text}", format!("{name}:"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_all_parts_of_a_failure() {
        let io = std::io::Error::other("connection refused");
        let failure = Failure::because("cannot reach the service", &io)
            .at("127.0.0.1:1")
            .remedy("start it: farcall kv serve")
            .exit(Exit::Unreachable);
        let text = failure.to_string();
        assert_eq!(
            text,
            "error: cannot reach the service\n  where:  127.0.0.1:1\n  why:    connection refused\n  remedy: start it: farcall kv serve"
        );
        assert_eq!(failure.to_json()["error"]["exit"], 4);
    }

    #[test]
    fn reports_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::io::Error);
        let failure = Failure::because("x", &Outer(std::io::Error::other("inner")));
        assert!(failure.to_string().contains("why:    outer: inner"));
    }
}
