//! `--config FILE`: a command's options from a file of TOML. Each key is the long name of an option of the command; its
//! value is taken as if it stood on the command line, which wins where both name an option.

use crate::commands::Cli;
use crate::failure::{Exit, Failure};
use crate::log;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use toml::{Table, Value};

/// The option that names the file.
const CONFIG: &str = "config";

/// The file in use, and what was read from it last.
static CURRENT: Mutex<Option<(PathBuf, Table)>> = Mutex::new(None);

/// What the command line says, with the options of its configuration file. Ends the program if that makes no sense.
///
/// # Errors
/// When the file cannot be read, or names what the command does not have.
pub fn parse(mut line: Vec<OsString>) -> Result<Cli, Failure> {
    let mut root = Cli::command();
    root.build();
    let mut matches = root.clone().get_matches_from(&line);
    let (command, leaf) = leaf(&root, &matches);
    if command.get_arguments().any(|arg| arg.get_id() == CONFIG)
        && let Some(path) = leaf.get_one::<PathBuf>(CONFIG)
    {
        let table = read(path)?;
        line.extend(options(command, leaf, &table).map_err(|why| wrong(path, why))?);
        *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some((path.clone(), table));
        matches = root.get_matches_from(line);
    }
    Ok(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

/// Whether there is a file to be read again.
pub fn is_used() -> bool {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Reads the file again, for SIGHUP: the log changes at once; what else differs is told, and needs a restart.
pub fn reload() {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((path, before)) = current.as_mut() else { return };
    let after = match read(path) {
        Ok(table) => table,
        Err(failure) => return tracing::error!("the configuration stays as it was: {failure}"),
    };
    let filter = after.get("log").and_then(Value::as_str).unwrap_or("warn").parse();
    match filter {
        Ok(filter) if after.get("log") != before.get("log") => log::change(filter),
        Ok(_) => {}
        Err(why) => return tracing::error!("the configuration stays as it was: log: {why}"),
    }
    let keys = before.keys().chain(after.keys()).filter(|key| *key != "log");
    let mut changed: Vec<&str> =
        keys.filter(|key| before.get(*key) != after.get(*key)).map(String::as_str).collect();
    changed.sort_unstable();
    changed.dedup();
    if !changed.is_empty() {
        tracing::warn!(
            "changed in {}, and to take effect when the service starts again: {}",
            path.display(),
            changed.join(", ")
        );
    }
    // What needs a restart is told again, until there was one.
    before.remove("log");
    before.extend(after.get("log").map(|log| ("log".to_owned(), log.clone())));
    tracing::info!("read {} again", path.display());
}

/// The command that was named, and what was said to it.
fn leaf<'a>(mut command: &'a Command, mut matches: &'a ArgMatches) -> (&'a Command, &'a ArgMatches) {
    while let Some((name, below)) = matches.subcommand()
        && let Some(found) = command.find_subcommand(name)
    {
        (command, matches) = (found, below);
    }
    (command, matches)
}

fn read(path: &Path) -> Result<Table, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::because("cannot read the configuration", &error).at(path.display()).exit(Exit::Usage)
    })?;
    text.parse().map_err(|error: toml::de::Error| wrong(path, error.to_string()))
}

fn wrong(path: &Path, why: String) -> Failure {
    Failure::new("the configuration makes no sense")
        .at(path.display())
        .why(why.trim_end())
        .remedy("each key is the long name of an option: see --help")
        .exit(Exit::Usage)
}

/// The options of a file as arguments, without those that the command line has.
fn options(command: &Command, matches: &ArgMatches, table: &Table) -> Result<Vec<OsString>, String> {
    let mut arguments = Vec::new();
    for (key, value) in table {
        let option = command
            .get_arguments()
            .find(|arg| arg.get_long() == Some(key) && arg.get_id() != CONFIG)
            .filter(|arg| {
                !matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpLong | ArgAction::Version)
            })
            .ok_or_else(|| format!("{} has no option --{key}", command.get_name()))?;
        if matches.value_source(option.get_id().as_str()) != Some(ValueSource::CommandLine) {
            arguments.extend(argument(option, key, value)?);
        }
    }
    Ok(arguments)
}

fn argument(option: &Arg, key: &str, value: &Value) -> Result<Vec<OsString>, String> {
    let takes_value = option.get_action().takes_values();
    let one = |value: &Value| match value {
        Value::String(text) if takes_value => Ok(format!("--{key}={text}").into()),
        Value::Integer(number) if takes_value => Ok(format!("--{key}={number}").into()),
        other if takes_value => Err(format!("{key} is a text or a number, not of type {}", other.type_str())),
        other => Err(format!("{key} is true or false, not of type {}", other.type_str())),
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

    fn said(line: &[&str], file: &str) -> Result<Vec<String>, String> {
        let mut root = Cli::command();
        root.build();
        let matches = root.clone().try_get_matches_from(line).unwrap();
        let (command, leaf) = leaf(&root, &matches);
        let arguments = options(command, leaf, &file.parse().unwrap())?;
        Ok(arguments.into_iter().map(|argument| argument.into_string().unwrap()).collect())
    }

    const SERVE: [&str; 3] = ["farcall", "kv", "serve"];

    #[test]
    fn every_option_of_a_file_is_one_of_the_command_line() {
        let file =
            "tcp = ['127.0.0.1:1', '[::1]:2']\nmemory-mib = 100\nno-evict = true\njson = false\nlog = 'info'";
        let mut arguments = said(&SERVE, file).unwrap();
        arguments.sort();
        assert_eq!(
            arguments,
            ["--log=info", "--memory-mib=100", "--no-evict", "--tcp=127.0.0.1:1", "--tcp=[::1]:2"]
        );
    }

    #[test]
    fn the_command_line_wins() {
        let line = [&SERVE[..], &["--tcp", "127.0.0.1:9", "--log", "debug"]].concat();
        let file = "tcp = ['127.0.0.1:1']\nlog = 'info'\npartitions = 2";
        assert_eq!(said(&line, file).unwrap(), ["--partitions=2"]);
    }

    #[test]
    fn what_the_command_does_not_have_is_refused() {
        for (file, part) in [
            ("memory_mib = 1", "no option --memory_mib"),
            ("config = 'x'", "no option --config"),
            ("help = true", "no option --help"),
            ("no-evict = 'yes'", "true or false"),
            ("partitions = 1.5", "a text or a number"),
            ("partitions = true", "a text or a number"),
            ("partitions = [1, 2]", "a text or a number"),
        ] {
            let why = said(&SERVE, file).unwrap_err();
            assert!(why.contains(part), "{file}: {why}");
        }
    }
}
