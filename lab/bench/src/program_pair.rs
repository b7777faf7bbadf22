//! Benchmarks of other projects that consist of two processes: a server that listens, and a client that prints the
//! results.

use crate::peer::ChildProcess;
use farcall_verbs::with_sources;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

/// Timeout for the server to start listening.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// Timeout of one test.
const RUN_PATIENCE: Duration = Duration::from_secs(60);

/// Returns the path of a program in `PATH`, if it is installed.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Starts the server, which listens at `port`, then the client, each pinned to its core. Returns the client's output,
/// or an error message.
pub(crate) fn run_pair(
    server: &mut Command,
    server_core: usize,
    client: &mut Command,
    client_core: usize,
    port: u16,
) -> Result<String, String> {
    let start = |command: &mut Command, core| {
        ChildProcess::start(command, &[core], &[]).map_err(|error| with_sources(&error))
    };
    let mut server = start(server.stdout(Stdio::null()).stderr(Stdio::null()), server_core)?;
    server
        .wait_until_serving(START_PATIENCE, || is_listening(port))
        .map_err(|why| format!("the server {why}"))?;
    let client = start(client.stdout(Stdio::piped()).stderr(Stdio::piped()), client_core)?;
    let (is_success, out, err) = finish(client)?;
    if is_success {
        return Ok(out);
    }
    let message = last_line(&err).or_else(|| last_line(&out)).unwrap_or("it failed without a message");
    Err(message.to_owned())
}

/// Returns whether the kernel's table of listening sockets contains `port`. A trial connection is not possible: the
/// server would take it for the client.
fn is_listening(port: u16) -> bool {
    const STATE_LISTEN: &str = "0A";
    let suffix = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let (local, state) = (fields.next(), fields.nth(1));
            local.is_some_and(|local| local.ends_with(&suffix)) && state == Some(STATE_LISTEN)
        })
    })
}

/// Waits until the client exits; its output is short enough for the pipes' buffers. Returns whether it succeeded, its
/// standard output and its standard error.
fn finish(mut client: ChildProcess) -> Result<(bool, String, String), String> {
    let ended = client.wait_until_ended(RUN_PATIENCE).map_err(|error| error.to_string())?;
    let ended = ended.ok_or_else(|| format!("it did not finish within {RUN_PATIENCE:?}"))?;
    let (mut out, mut err) = (String::new(), String::new());
    // Read errors are ignored: callers notice that the output is incomplete.
    if let Some(mut pipe) = client.0.stdout.take() {
        let _ = pipe.read_to_string(&mut out);
    }
    if let Some(mut pipe) = client.0.stderr.take() {
        let _ = pipe.read_to_string(&mut err);
    }
    Ok((ended.success(), out, err))
}

/// Returns the last line that is not blank.
pub(crate) fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_a_server_that_exits_and_a_missing_program() {
        let core = crate::measure::Cores::allowed().unwrap().as_slice()[0];
        let why = run_pair(&mut Command::new("true"), core, &mut Command::new("true"), core, 1).unwrap_err();
        assert_eq!(why, "the server ended before it served");
        let mut missing = Command::new("/nonexistent/server");
        let why = run_pair(&mut missing, core, &mut Command::new("true"), core, 1).unwrap_err();
        assert!(why.contains("/nonexistent/server"), "{why}");
        assert_eq!(in_path("no-such-program-of-anybody"), None);
        assert_eq!(last_line("first\n last \n\n"), Some("last"));
    }
}
