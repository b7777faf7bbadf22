//! Programs in Python that print one line of JSON and exit.

use super::NotHere;
use super::confinement::Confinement;
use crate::experiments::ExperimentError;
use crate::peer::{ChildProcess, next_line};
use serde::de::DeserializeOwned;
use std::io::BufReader;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Timeout of a program, which may be paged from a slow disk on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// Timeout of its exit, including its confinement.
const END_PATIENCE: Duration = Duration::from_secs(60);

/// Exit status by which a shell, and `farcall page`, report SIGKILL.
const KILLED: i32 = 128 + 9;

/// Runs a script to its end. Returns its output.
///
/// # Errors
/// Returns [`NotHere`] if it was killed because it cannot run in so little memory.
pub(super) fn run<T: DeserializeOwned>(
    confinement: &Confinement,
    python: &Path,
    script: &str,
    args: &[String],
    cores: &[usize],
) -> Result<T, ExperimentError> {
    let mut command = confinement.command(python);
    command.args(["-c", script]).args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = ChildProcess::start(&mut command, cores, &[])?;
    let output = child.0.stdout.take().ok_or("the program has no standard output")?;
    let line = next_line(&mut BufReader::new(output), PATIENCE)
        .map_err(|error| format!("the program did not report its results: {error}"))?;
    let ended = child.wait_until_ended(END_PATIENCE)?.ok_or("the program does not end")?;
    if ended.signal() == Some(9) || ended.code() == Some(KILLED) {
        return Err(NotHere("it was killed, as a rule since it has too little memory".to_owned()).into());
    }
    if !ended.success() {
        return Err(format!("the program ended with {ended}; its own message is on standard error").into());
    }
    serde_json::from_str(&line).map_err(|_| format!("the program said {:?}", line.trim()).into())
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::supported;
    use super::*;

    /// Returns the interpreter for tests, if there is one.
    pub(in crate::paged) fn python() -> Option<&'static Path> {
        let python = Path::new("/usr/bin/env");
        let found = std::process::Command::new(python).args(["python3", "-c", ""]).output();
        let is_there = found.is_ok_and(|found| found.status.success());
        if !is_there {
            println!("SKIPPED: there is no python3");
        }
        is_there.then_some(Path::new("python3"))
    }

    #[test]
    fn a_script_says_one_line_and_ends_well_or_it_is_an_error() {
        let Some(python) = python() else { return };
        let core = crate::measure::Cores::allowed().unwrap().as_slice()[0];
        let run = |script| run::<u32>(&Confinement::none(), python, script, &["7".to_owned()], &[core]);
        assert_eq!(run("import sys; print(sys.argv[1])").unwrap(), 7);
        let killed = supported(run("import os; os.kill(os.getpid(), 9)")).unwrap().unwrap_err();
        assert!(killed.to_string().contains("too little memory"), "{killed}");
        let error = |script| run(script).unwrap_err().to_string();
        assert!(error("print('many')").contains("many"));
        assert!(error("print(7); raise SystemExit(3)").contains("exit status: 3"));
        assert!(error("raise SystemExit(3)").contains("exit status: 3"));
    }
}
