//! The options that say which calls a benchmark makes.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use farcall_link::PRESETS;

/// Stands for every preset.
const ALL: &str = "all";

fn preset_values() -> impl Iterator<Item = PossibleValue> {
    PRESETS.iter().map(|preset| PossibleValue::new(preset.name).help(preset.summary))
}

/// The names of the preset table, for `--preset`.
pub fn one_preset() -> PossibleValuesParser {
    preset_values().collect::<Vec<_>>().into()
}

fn presets_or_all() -> PossibleValuesParser {
    preset_values().chain([PossibleValue::new(ALL).help("All of them")]).collect::<Vec<_>>().into()
}

/// Presets, windows, connections.
#[derive(Debug, Clone, Args)]
pub struct CallArgs {
    /// Measure calls under this preset. May be given several times.
    #[arg(long, value_name = "NAME", value_parser = presets_or_all())]
    preset: Vec<String>,
    /// Outstanding operations on each connection. May be given several times; by default 1 and 16.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    window: Vec<u32>,
    /// Connections, all run by one client thread.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub connections: u32,
}

impl CallArgs {
    /// The presets asked for, in the table's order; `usual` if none was named.
    pub fn presets(&self, usual: &[&str]) -> Vec<&'static str> {
        let is_wanted = |name: &str| {
            if self.preset.is_empty() {
                usual.contains(&name)
            } else {
                self.preset.iter().any(|wanted| wanted == name || wanted == ALL)
            }
        };
        PRESETS.iter().map(|preset| preset.name).filter(|name| is_wanted(name)).collect()
    }

    /// The windows asked for, or the usual ones.
    pub fn windows(&self) -> Vec<u32> {
        if self.window.is_empty() { vec![1, 16] } else { self.window.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presets_of(named: &[&str]) -> Vec<&'static str> {
        let preset = named.iter().map(|&name| name.to_owned()).collect();
        CallArgs { preset, window: Vec::new(), connections: 1 }.presets(&["server-reply", "rf-rpc"])
    }

    #[test]
    fn presets_are_named_each_once_or_all_or_left_out() {
        assert_eq!(presets_of(&["send-send", "fetch", "fetch"]), ["fetch", "send-send"]);
        assert_eq!(presets_of(&["fetch", ALL]).len(), PRESETS.len());
        assert_eq!(presets_of(&[]), ["rf-rpc", "server-reply"]);
    }
}
