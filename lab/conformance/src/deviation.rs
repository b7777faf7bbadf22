//! Known deviations of providers from the specification, each with its reason.
//!
//! A listed case that fails counts as a known deviation. One that passes is reported as well, so that the table is
//! kept up to date.

mod rxe;

use crate::glob;

/// Cases that deviate.
#[derive(Clone, Copy, Debug)]
pub struct Deviation {
    /// Pattern of their names.
    pub pattern: &'static str,
    /// Part of their failure text: another failure of such a case is not a known deviation. Empty matches any text.
    pub saying: &'static str,
    /// Reason, and the behaviour instead.
    pub reason: &'static str,
}

impl Deviation {
    /// Returns whether the pattern matches a case.
    pub(crate) fn concerns(&self, case: &str) -> bool {
        glob::matches(self.pattern, case)
    }

    /// Returns whether it explains the failure text of a case.
    pub(crate) fn explains(&self, case: &str, seen: &str) -> bool {
        self.concerns(case) && seen.contains(self.saying)
    }
}

const SOFTNIC: &[Deviation] = &[];

const DROP_IN: &[Deviation] = &[Deviation {
    pattern: "*/transition/reset-to-err",
    saying: "Invalid argument",
    reason: "refused, as the kernel refuses it to every device: programs of libibverbs know nothing else",
}];

const SIM: &[Deviation] = &[];

/// Returns the known deviations of a provider. Through libibverbs, `rxe` is the kernel's software RNIC, and `drop-in`
/// that of Farcall.
pub fn of_provider(provider: &str) -> &'static [Deviation] {
    match provider {
        "softnic" => SOFTNIC,
        "sim" => SIM,
        "drop-in" => DROP_IN,
        "rxe" => rxe::RXE,
        _ => &[],
    }
}
