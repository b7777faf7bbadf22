//! Findings of a case.

use std::fmt::Debug;

use crate::executor::{Reason, Refusal};

/// Reason why a case ended early.
#[derive(Debug)]
pub struct Finding {
    /// Observed and expected behaviour.
    pub text: String,
    /// `true` if the provider reported that it does not support what the case needs.
    pub is_unsupported: bool,
}

/// Result of a case.
pub type Verdict<T = ()> = Result<T, Finding>;

impl Finding {
    /// Creates the finding that the behaviour is not as expected.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_unsupported: false }
    }
}

impl From<Refusal> for Finding {
    fn from(refusal: Refusal) -> Self {
        Self { text: refusal.to_string(), is_unsupported: refusal.reason == Reason::Unsupported }
    }
}

/// Expects a value.
pub(crate) fn same<T: PartialEq + Debug>(what: &str, seen: T, expected: T) -> Verdict {
    if seen == expected {
        return Ok(());
    }
    Err(Finding::new(format!("{what}: {}, expected {}", short(&seen), short(&expected))))
}

/// Expects a condition.
pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Finding::new(otherwise())) }
}

/// Expects equal bytes; the finding names the first that differs.
pub(crate) fn same_bytes(what: &str, seen: &[u8], expected: &[u8]) -> Verdict {
    if seen == expected {
        return Ok(());
    }
    let at = seen.iter().zip(expected).position(|(s, e)| s != e).unwrap_or(seen.len().min(expected.len()));
    let byte = |bytes: &[u8]| bytes.get(at).map_or("none".into(), |byte| format!("{byte:#04x}"));
    Err(Finding::new(format!(
        "{what}: byte {at} of {} is {}, expected {} (of {})",
        seen.len(),
        byte(seen),
        byte(expected),
        expected.len()
    )))
}

/// Expects the provider to refuse a call; returns the refusal.
pub(crate) fn refused<T: Debug>(what: &str, result: Result<T, Refusal>) -> Verdict<Refusal> {
    match result {
        Err(refusal) if refusal.reason != Reason::Harness => Ok(refusal),
        Err(refusal) => Err(refusal.into()),
        Ok(value) => Err(Finding::new(format!("{what}: accepted ({}), must be refused", short(&value)))),
    }
}

fn short(value: &impl Debug) -> String {
    const MOST: usize = 400;
    let mut text = format!("{value:?}");
    if text.len() > MOST {
        let mut at = MOST;
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        text.truncate(at);
        text.push('…');
    }
    text
}
