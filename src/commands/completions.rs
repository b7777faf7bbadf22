//! `farcall completions SHELL`.

use super::Cli;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print the completions of this program for a shell.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall completions bash > ~/.local/share/bash-completion/completions/farcall\n  \
                        farcall completions zsh > ~/.zfunc/_farcall\n  \
                        farcall completions fish > ~/.config/fish/completions/farcall.fish"
)]
pub struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    /// Prints the completions.
    ///
    /// # Errors
    /// If standard output cannot be written to.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "farcall", &mut script);
        console.raw(&script)?;
        Ok(Exit::Success)
    }
}
