//! `--config FILE`: a command's options from a TOML file. Each key is the long name of an option of the command. Its
//! value is used as if it were on the command line, which has precedence if both contain an option.

use crate::bounded_file;
use crate::commands::Cli;
use crate::failure::{Exit, Failure};
use crate::log;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use toml::de::DeTable;
use toml::{Table, Value};

/// The option that names the file.
const CONFIG: &str = "config";

/// Maximum length of a configuration file in bytes: many times what all options of a command take.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Minimum similarity (Jaro-Winkler) of an unknown key to an option that is suggested for it.
const SIMILAR_ENOUGH: f64 = 0.85;

/// The file in use, and its contents when it was last read.
static CURRENT: Mutex<Option<(PathBuf, Table)>> = Mutex::new(None);

/// A configuration file as read: its options, and its text, which gives their lines.
struct ConfigFile<'a> {
    path: &'a Path,
    text: String,
    table: Table,
}

/// Reason for which a configuration is rejected.
struct RejectedConfig {
    /// The key concerned, if there is one.
    key: Option<String>,
    why: String,
    remedy: String,
}

impl RejectedConfig {
    fn key(key: &str, why: String) -> Self {
        let remedy = "each key is the long name of an option: see --help".to_owned();
        Self { key: Some(key.to_owned()), why, remedy }
    }
}

impl<'a> ConfigFile<'a> {
    fn read(path: &'a Path) -> Result<Self, Failure> {
        let text = bounded_file::read(path, FILE_BYTES_MAX).map_err(|error| {
            Failure::because("cannot read the configuration", &error).at(path.display()).exit(Exit::Usage)
        })?;
        match text.parse() {
            Ok(table) => Ok(Self { path, text, table }),
            Err(error) => {
                let error: toml::de::Error = error;
                let place = match error.span() {
                    Some(span) => format!("{}:{}", path.display(), line_number(&text, span.start)),
                    None => path.display().to_string(),
                };
                Err(Failure::new("invalid configuration")
                    .at(place)
                    .why(error.to_string().trim_end())
                    .remedy("write TOML: key = value, with strings in quotes")
                    .exit(Exit::Usage))
            }
        }
    }

    fn refuse(&self, refused: RejectedConfig) -> Failure {
        let line = refused.key.and_then(|key| self.line_of(&key));
        let place = match line {
            Some(line) => format!("{}:{line}", self.path.display()),
            None => self.path.display().to_string(),
        };
        Failure::new("invalid configuration")
            .at(place)
            .why(refused.why)
            .remedy(refused.remedy)
            .exit(Exit::Usage)
    }

    /// Returns the line of a key, counted from 1.
    fn line_of(&self, key: &str) -> Option<usize> {
        let table = DeTable::parse(&self.text).ok()?;
        let found = table.get_ref().keys().find(|found| found.get_ref().as_ref() == key)?;
        Some(line_number(&self.text, found.span().start))
    }
}

fn line_number(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}

/// Parses the command line, together with the options of its configuration file. Ends the program if the command line
/// is invalid.
///
/// # Errors
/// If the file cannot be read, or contains an option that the command does not have.
pub fn parse(mut line: Vec<OsString>) -> Result<Cli, Failure> {
    let mut root = Cli::command();
    root.build();
    let mut matches = root.clone().get_matches_from(&line);
    let (command, leaf) = leaf(&root, &matches);
    if command.get_arguments().any(|arg| arg.get_id() == CONFIG)
        && let Some(path) = leaf.get_one::<PathBuf>(CONFIG)
    {
        let file = ConfigFile::read(path)?;
        line.extend(options(command, leaf, &file.table).map_err(|refused| file.refuse(refused))?);
        // The command line alone was parsed above, so any error now is due to the file.
        let with_file = root.clone().try_get_matches_from(line);
        let with_file = with_file.map_err(|error| file.refuse(of_parser(&error)))?;
        *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some((path.clone(), file.table));
        matches = with_file;
    }
    Ok(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

/// Returns whether a configuration file is in use.
pub fn is_used() -> bool {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Reads the file again, for SIGHUP. The log filter changes at once; other differences are logged and require a
/// restart.
pub fn reload() {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((path, before)) = current.as_mut() else { return };
    let after = match ConfigFile::read(path) {
        Ok(file) => file.table,
        Err(failure) => return tracing::error!("the configuration is unchanged: {failure}"),
    };
    let filter = after.get("log").and_then(Value::as_str).unwrap_or("warn").parse();
    match filter {
        Ok(filter) if after.get("log") != before.get("log") => log::change(filter),
        Ok(_) => {}
        Err(why) => return tracing::error!("the configuration is unchanged: log: {why}"),
    }
    let keys = before.keys().chain(after.keys()).filter(|key| *key != "log");
    let mut changed: Vec<&str> =
        keys.filter(|key| before.get(*key) != after.get(*key)).map(String::as_str).collect();
    changed.sort_unstable();
    changed.dedup();
    if !changed.is_empty() {
        tracing::warn!(
            "changed in {}, effective after a restart of the service: {}",
            path.display(),
            changed.join(", ")
        );
    }
    // Differences that require a restart are logged again at each reload until then.
    before.remove("log");
    before.extend(after.get("log").map(|log| ("log".to_owned(), log.clone())));
    tracing::info!("reloaded {}", path.display());
}

/// Returns the command that was named, and its arguments.
fn leaf<'a>(mut command: &'a Command, mut matches: &'a ArgMatches) -> (&'a Command, &'a ArgMatches) {
    while let Some((name, below)) = matches.subcommand()
        && let Some(found) = command.find_subcommand(name)
    {
        (command, matches) = (found, below);
    }
    (command, matches)
}

/// Converts an error of the command-line parser about options from the file.
fn of_parser(error: &clap::Error) -> RejectedConfig {
    let text = error.to_string();
    let why = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    let key = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) => option
            .strip_prefix("--")
            .map(|option| option.split([' ', '=']).next().unwrap_or_default().to_owned()),
        _ => None,
    };
    RejectedConfig { key, why, remedy: "see --help for the values of the option".to_owned() }
}

/// Converts the options of a file to arguments, without those that are on the command line.
fn options(command: &Command, matches: &ArgMatches, table: &Table) -> Result<Vec<OsString>, RejectedConfig> {
    let mut arguments = Vec::new();
    for (key, value) in table {
        let option = configurable(command)
            .find(|arg| arg.get_long() == Some(key))
            .ok_or_else(|| unknown_key(command, key, value))?;
        if matches.value_source(option.get_id().as_str()) != Some(ValueSource::CommandLine) {
            arguments.extend(argument(option, key, value).map_err(|why| RejectedConfig::key(key, why))?);
        }
    }
    Ok(arguments)
}

/// Returns the options of a command that its configuration may contain.
fn configurable(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| {
        arg.get_id() != CONFIG
            && !matches!(
                arg.get_action(),
                ArgAction::Help | ArgAction::HelpLong | ArgAction::HelpShort | ArgAction::Version
            )
    })
}

fn unknown_key(command: &Command, key: &str, value: &Value) -> RejectedConfig {
    let mut refused = RejectedConfig::key(key, format!("{} has no option --{key}", command.get_name()));
    // In the notation of options: `memory_mib` and `MEMORY-MIB` mean `memory-mib`, and are not merely similar to it.
    let written = key.to_ascii_lowercase().replace(['_', ' '], "-");
    let similarity = |long: &&str| strsim::jaro_winkler(long, &written);
    let nearest = configurable(command)
        .filter_map(Arg::get_long)
        .max_by(|one, other| similarity(one).total_cmp(&similarity(other)))
        .filter(|long| similarity(long) >= SIMILAR_ENOUGH);
    if let Some(long) = nearest {
        refused.remedy = format!("did you mean {long}?");
    } else if value.is_table() {
        refused.remedy = "write the options without a [table] around them".to_owned();
    }
    refused
}

fn argument(option: &Arg, key: &str, value: &Value) -> Result<Vec<OsString>, String> {
    let takes_value = option.get_action().takes_values();
    let one = |value: &Value| match value {
        Value::String(text) if takes_value => Ok(format!("--{key}={text}").into()),
        Value::Integer(number) if takes_value => Ok(format!("--{key}={number}").into()),
        other if takes_value => {
            Err(format!("{key} must be a string or a number, but is of type {}", other.type_str()))
        }
        other => Err(format!("{key} must be true or false, but is of type {}", other.type_str())),
    };
    match value {
        Value::Boolean(is_set) if !takes_value => {
            Ok(is_set.then(|| format!("--{key}").into()).into_iter().collect())
        }
        Value::Array(values) if matches!(option.get_action(), ArgAction::Append) => {
            values.iter().map(one).collect()
        }
        value => Ok(vec![one(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments_of(line: &[&str], file: &str) -> Result<Vec<String>, String> {
        let mut root = Cli::command();
        root.build();
        let matches = root.clone().try_get_matches_from(line).unwrap();
        let (command, leaf) = leaf(&root, &matches);
        let arguments = options(command, leaf, &file.parse().unwrap())
            .map_err(|refused| format!("{} ({})", refused.why, refused.remedy))?;
        Ok(arguments.into_iter().map(|argument| argument.into_string().unwrap()).collect())
    }

    const SERVE: [&str; 3] = ["farcall", "kv", "serve"];

    #[test]
    fn converts_options_of_a_file_to_arguments() {
        let file =
            "tcp = ['127.0.0.1:1', '[::1]:2']\nmemory-mib = 100\nno-evict = true\njson = false\nlog = 'info'";
        let mut arguments = arguments_of(&SERVE, file).unwrap();
        arguments.sort();
        assert_eq!(
            arguments,
            ["--log=info", "--memory-mib=100", "--no-evict", "--tcp=127.0.0.1:1", "--tcp=[::1]:2"]
        );
    }

    #[test]
    fn prefers_the_command_line() {
        let line = [&SERVE[..], &["--tcp", "127.0.0.1:9", "--log", "debug"]].concat();
        let file = "tcp = ['127.0.0.1:1']\nlog = 'info'\npartitions = 2";
        assert_eq!(arguments_of(&line, file).unwrap(), ["--partitions=2"]);
    }

    #[test]
    fn rejects_options_that_the_command_does_not_have() {
        for (file, part) in [
            ("memory_mib = 1", "no option --memory_mib (did you mean memory-mib?)"),
            ("Memory-MiB = 1", "(did you mean memory-mib?)"),
            ("partition = 1", "(did you mean partitions?)"),
            ("value_max_bytes = 1", "(did you mean value-max?)"),
            ("no_evict = true", "(did you mean no-evict?)"),
            ("[kv]\ntcp = 'x'", "without a [table]"),
            ("zzz = 1", "no option --zzz (each key"),
            ("config = 'x'", "no option --config"),
            ("help = true", "no option --help"),
            ("no-evict = 'yes'", "true or false"),
            ("partitions = 1.5", "a string or a number"),
            ("partitions = true", "a string or a number"),
            ("partitions = [1, 2]", "a string or a number"),
        ] {
            let why = arguments_of(&SERVE, file).unwrap_err();
            assert!(why.contains(part), "{file}: {why}");
        }
    }

    #[test]
    fn names_file_and_line_of_a_refusal() {
        let directory = std::env::temp_dir().join(format!("farcall-config-lines-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("kv.toml");
        let line = ["farcall", "kv", "serve", "--config", path.to_str().unwrap()].map(OsString::from);
        for (text, number, part) in [
            ("# first\n\nmemory_mib = 7\n", 3, "did you mean memory-mib?"),
            ("tcp = ['127.0.0.1:0']\npartitions = 0\n", 2, "0 is not in 1..=256"),
            ("partitions = 1\n\nno-evict = 'yes'", 3, "true or false"),
            ("partitions = 1\ntcp = 7 7\n", 2, "TOML"),
        ] {
            std::fs::write(&path, text).unwrap();
            let message = parse(line.to_vec()).map(|_| ()).unwrap_err().to_string();
            assert!(message.contains(&format!("kv.toml:{number}")), "{text:?}: {message}");
            assert!(message.contains(part), "{text:?}: {message}");
        }
        // A missing option has no line.
        std::fs::write(&path, "log = 'info'\nrecords = 5\n").unwrap();
        let message = parse(line.to_vec()).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains("kv.toml") && message.contains("--preset"), "{message}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
