//! The options that select the operations of a benchmark.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use farcall_bench::load::AUTO;
use farcall_link::PRESETS;

/// Selects all presets.
const ALL: &str = "all";

/// The name of a preset and a one-sentence description.
pub type Named = (&'static str, &'static str);

/// Returns the presets of calls and the automatic choice.
pub fn call_presets() -> impl Iterator<Item = Named> {
    let auto =
        (AUTO, "The preset that clients choose by rules, from the profile of farcall tune if there is one");
    PRESETS.iter().map(|preset| (preset.name, preset.summary)).chain([auto])
}

fn values(presets: impl Iterator<Item = Named>) -> PossibleValuesParser {
    presets.map(|(name, summary)| PossibleValue::new(name).help(summary)).collect::<Vec<_>>().into()
}

/// Returns a parser for the name of a preset, for `--preset`.
pub fn one_preset() -> PossibleValuesParser {
    values(call_presets())
}

/// Returns a parser for one of `presets` or all of them, for `--preset`.
pub fn presets_or_all(presets: impl Iterator<Item = Named>) -> PossibleValuesParser {
    values(presets.chain([(ALL, "All presets")]))
}

/// Returns the presets whose names are in `named`, in the order of `presets`; those that satisfy `usual` if none is
/// named. The automatic choice is included only if it is named.
pub fn chosen_presets(
    named: &[String],
    presets: impl Iterator<Item = Named>,
    usual: impl Fn(&str) -> bool,
) -> Vec<&'static str> {
    let is_wanted = |name: &str| match named {
        [] => usual(name),
        named => named.iter().any(|wanted| wanted == name || (wanted == ALL && name != AUTO)),
    };
    presets.map(|(name, _)| name).filter(|name| is_wanted(name)).collect()
}

/// Window, connections, clients and rate of a load.
#[derive(Debug, Clone, Args)]
pub struct CallArgs {
    /// Number of outstanding operations on each connection. May be given several times [default: 1 and 16].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    window: Vec<u32>,
    /// Number of connections of each client, which has one thread.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub connections: u32,
    /// Number of client processes, which are distributed over the cores.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub clients: u32,
    /// Number of operations per second that all clients together begin, at fixed intervals (open loop). Latencies are
    /// measured from the intended start, including delays by a stalled service. By default an operation begins when
    /// another has completed.
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub rate: Option<u32>,
}

impl CallArgs {
    /// Returns the requested windows, or the default ones.
    pub fn windows(&self) -> Vec<u32> {
        if self.window.is_empty() { vec![1, 16] } else { self.window.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presets_of(named: &[&str]) -> Vec<&'static str> {
        let named: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
        chosen_presets(&named, call_presets(), |name| ["server-reply", "rf-rpc"].contains(&name))
    }

    #[test]
    fn selects_each_named_preset_once() {
        assert_eq!(presets_of(&["send-send", "fetch", "fetch"]), ["fetch", "send-send"]);
        assert_eq!(presets_of(&["fetch", ALL]).len(), PRESETS.len());
        assert_eq!(presets_of(&["auto", ALL]).len(), PRESETS.len() + 1);
        assert_eq!(presets_of(&[]), ["rf-rpc", "server-reply"]);
    }
}
