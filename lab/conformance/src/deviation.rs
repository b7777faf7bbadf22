//! What providers are known to do otherwise than the specification says, each with its reason.
//!
//! A listed case that fails counts as a known deviation; one that passes is reported too, so that the table is kept.

mod rxe;

use crate::glob;

/// Cases that deviate.
#[derive(Clone, Copy, Debug)]
pub struct Deviation {
    /// Their names, as a pattern.
    pub pattern: &'static str,
    /// What they then say, in part: another failure of such a case is no known deviation. Empty: anything.
    pub saying: &'static str,
    /// Why, and what happens instead.
    pub reason: &'static str,
}

impl Deviation {
    /// Whether it is about a case.
    pub(crate) fn concerns(&self, case: &str) -> bool {
        glob::matches(self.pattern, case)
    }

    /// Whether it explains what a case says.
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

/// What a provider is known to deviate in; through libibverbs, `rxe` is the kernel's software RNIC, `drop-in` ours.
pub fn of_provider(provider: &str) -> &'static [Deviation] {
    match provider {
        "softnic" => SOFTNIC,
        "sim" => SIM,
        "drop-in" => DROP_IN,
        "rxe" => rxe::RXE,
        _ => &[],
    }
}
