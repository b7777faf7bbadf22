//! What providers are known to do otherwise than the specification says, each with its reason.
//!
//! A listed case that fails counts as a known deviation; one that passes is reported too, so that the table is kept.

/// Cases that deviate.
#[derive(Clone, Copy, Debug)]
pub struct Deviation {
    /// Their names, as a pattern.
    pub pattern: &'static str,
    /// Why, and what happens instead.
    pub reason: &'static str,
}

const SOFTNIC: &[Deviation] = &[Deviation {
    pattern: "rc/recv/local-protection/*",
    reason: "a receive's elements are checked when it is posted and refused there: a sender places into them without \
                 asking their owner again",
}];

const SIM: &[Deviation] = &[];

const IBV: &[Deviation] = &[];

/// What a provider is known to deviate in.
pub fn of_provider(provider: &str) -> &'static [Deviation] {
    match provider {
        "softnic" => SOFTNIC,
        "sim" => SIM,
        "ibv" => IBV,
        _ => &[],
    }
}
