//! `mount -t fuse.farcall`: mount(8) runs `mount.fuse.farcall`, a script that runs this command.

use crate::commands::Cli;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::{Args, Parser};
use std::ffi::OsString;

/// Sources that do not name a volume.
const NO_VOLUME: [&str; 2] = ["farcall", "none"];
/// Options that every mount of Farcall has, or that mount(8) handles.
const WITHOUT_EFFECT: [&str; 15] = [
    "defaults", "rw", "nosuid", "nodev", "exec", "async", "relatime", "auto", "noauto", "nofail", "_netdev",
    "user", "nouser", "users", "silent",
];

/// Mount as requested by mount(8); see mount.fuse.farcall.
#[derive(Debug, Args)]
pub struct Helper {
    /// Name of the volume; `farcall` or `none` means no volume.
    source: String,
    /// The directory.
    dir: OsString,
    /// Options of farcall mount without their dashes, separated by commas; a value with commas is quoted.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Do everything but mounting.
    #[arg(short = 'f')]
    fake: bool,
    #[arg(short = 's', hide = true)]
    sloppy: bool,
    #[arg(short = 'n', hide = true)]
    no_table: bool,
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    #[arg(short = 't', hide = true)]
    kind: Option<OsString>,
}

impl Helper {
    /// Mounts in the background, and returns when the file system serves.
    ///
    /// # Errors
    /// Like `farcall mount`; also fails if an option is not supported.
    pub fn run(self, _console: Console) -> Result<Exit, Failure> {
        let arguments = self.arguments()?;
        let parsed = Cli::try_parse_from(arguments).map_err(|error| {
            // Only the first line is used; the others describe a command line that the user did not write.
            let text = error.to_string();
            let why = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            unsupported(why)
        })?;
        if self.fake { Ok(Exit::Success) } else { parsed.run() }
    }

    /// Returns the command line of `farcall mount`.
    fn arguments(&self) -> Result<Vec<OsString>, Failure> {
        let mut arguments: Vec<OsString> = ["farcall", "mount", "--background"].map(OsString::from).into();
        arguments.push(self.dir.clone());
        if !NO_VOLUME.contains(&&*self.source) {
            arguments.push(format!("--volume={}", self.source).into());
        }
        for option in self.options.iter().flat_map(|options| split(options)) {
            let (name, value) =
                option.split_once('=').map_or((&*option, None), |(name, value)| (name, Some(value)));
            if name.is_empty() || WITHOUT_EFFECT.contains(&name) || name.starts_with("x-") {
                continue;
            }
            let name = if name == "ro" { "read-only".to_owned() } else { name.replace('_', "-") };
            arguments.push(value.map_or(format!("--{name}"), |value| format!("--{name}={value}")).into());
        }
        Ok(arguments)
    }
}

fn unsupported(why: String) -> Failure {
    Failure::new("cannot mount with these options")
        .why(why)
        .remedy("options are those of farcall mount without dashes: nodes=\"HOST:PORT,...\",size=8G,volume-key=FILE")
        .exit(Exit::Usage)
}

/// Splits a list of options at the commas outside quotes, and removes the quotes.
fn split(options: &str) -> Vec<String> {
    let (mut items, mut item, mut is_quoted) = (Vec::new(), String::new(), false);
    for character in options.chars() {
        match character {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => items.push(std::mem::take(&mut item)),
            _ => item.push(character),
        }
    }
    items.push(item);
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(source: &str, options: &str) -> Vec<String> {
        let helper = Helper {
            source: source.to_owned(),
            dir: "/mnt".into(),
            options: vec![options.to_owned()],
            fake: true,
            sloppy: false,
            no_table: false,
            verbose: false,
            kind: None,
        };
        let arguments = helper.arguments().unwrap().into_iter();
        arguments.skip(3).map(|argument| argument.into_string().unwrap()).collect()
    }

    #[test]
    fn translates_options_of_mount_and_keeps_quoted_commas() {
        assert_eq!(
            arguments(
                "files",
                r#"rw,nosuid,nodes="a:1,b:2",size=8G,volume_key=/k,x-systemd.automount,_netdev"#
            ),
            ["/mnt", "--volume=files", "--nodes=a:1,b:2", "--size=8G", "--volume-key=/k"]
        );
        assert_eq!(arguments("none", "noexec,,nodes=a:1"), ["/mnt", "--noexec", "--nodes=a:1"]);
        assert_eq!(arguments("files", "ro,survivor=b:2")[2..], ["--read-only", "--survivor=b:2"]);
    }
}
