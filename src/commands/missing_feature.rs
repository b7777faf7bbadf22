//! Commands that this build does not have.

use std::ffi::OsString;

use clap::Args;

use crate::console::Console;
use crate::failure::{Exit, Failure};

/// Description of such a command in lists of commands.
const ABOUT: &str = "Not built in: needs the feature `full`";

/// Replaces a command of the feature `full`, and accepts any arguments.
#[derive(Debug, Args)]
#[command(about = ABOUT, disable_help_flag = true)]
pub struct MissingFeature {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

impl MissingFeature {
    /// Returns a failure that names the required feature.
    ///
    /// # Errors
    /// Always.
    pub fn run(self, _console: Console) -> Result<Exit, Failure> {
        let command: Vec<OsString> = std::env::args_os().skip(1).collect();
        let command = command[..command.len() - self.arguments.len()].join(" ".as_ref());
        Err(Failure::new(format!("farcall {} is not built in", command.display()))
            .why("it needs the feature `full`, which this binary was built without")
            .remedy("build with it: cargo build --release --features full")
            .exit(Exit::Usage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_feature_of_a_command_that_is_not_built_in() {
        let refusal = MissingFeature { arguments: Vec::new() }.run(Console::new(false, false)).unwrap_err();
        assert!(refusal.to_string().contains("cargo build --release --features full"), "{refusal}");
        assert!(ABOUT.contains("`full`"));
    }
}
