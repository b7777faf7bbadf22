//! The list of commands in `farcall --help`, grouped by purpose. clap has no headings for subcommands.

use super::Command;
use clap::Subcommand;
use clap::builder::Styles;
use std::fmt::Write;

/// Headings, and the commands below each. Hidden commands are not listed.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Serve", &["kv", "rpc", "grpc", "memory", "mount", "umount", "page"]),
    ("Run programs", &["run", "verbs", "capture"]),
    ("Inspect", &["doctor", "devices", "stats", "explain", "conform"]),
    ("Measure", &["bench", "tune", "advise", "figures"]),
    ("Set up the shell", &["completions", "man"]),
];

/// Width of the column of names.
const NAME_WIDTH: usize = 13;

/// Returns the template of the help text, with the grouped list of commands.
pub fn template() -> String {
    let commands = Command::augment_subcommands(clap::Command::new("farcall"));
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (heading, names) in GROUPS {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{header}{heading}:{header:#}\n");
        for name in names {
            let about = commands.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let padding = " ".repeat(NAME_WIDTH.saturating_sub(name.len()));
            let _ = writeln!(text, "  {literal}{name}{literal:#}{padding}{about}");
        }
    }
    let _ = write!(text, "\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible() -> Vec<clap::Command> {
        let commands = Command::augment_subcommands(clap::Command::new("farcall"));
        commands.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect()
    }

    #[test]
    fn lists_each_visible_command_once() {
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        listed.sort_unstable();
        let commands = visible();
        let mut names: Vec<&str> = commands.iter().map(clap::Command::get_name).collect();
        names.sort_unstable();
        assert_eq!(listed, names);
    }

    #[test]
    fn describes_each_command_in_one_short_line() {
        for command in visible() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let is_line = (10..=80).contains(&about.len()) && !about.contains(['\n', '{', '}']);
            assert!(is_line, "{}: {about:?}", command.get_name());
        }
    }
}
