//! Commands that are not part of this build.

use std::ffi::OsString;

use clap::Args;

use crate::console::Console;
use crate::failure::{Exit, Failure};

/// Text for such a command in the list of commands.
pub const NOT_BUILT_IN: &str = "Not built in: needs the feature `full`";

/// Says which feature has the command, whatever its arguments are.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct NotBuiltIn {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

impl NotBuiltIn {
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
    fn a_command_that_is_not_built_in_names_its_feature() {
        let refusal = NotBuiltIn { arguments: Vec::new() }.run(Console::new(false, false)).unwrap_err();
        assert!(refusal.to_string().contains("cargo build --release --features full"), "{refusal}");
        assert!(NOT_BUILT_IN.contains("`full`"));
    }
}
