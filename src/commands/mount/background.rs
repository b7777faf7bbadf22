//! A mount in the background: the parent ends when the file system serves, or with the failure of its child.

use crate::failure::{Exit, Failure};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

/// The journal's socket for standard output and standard error of a process.
const JOURNAL: &str = "/run/systemd/journal/stdout";
/// The first lines of a stream to the journal: identifier, unit, priority (info), whether lines begin with a priority, and
/// whether they are forwarded to syslog, the kernel's log and the console.
const JOURNAL_HEADER: &[u8] = b"farcall-mount\n\n6\n0\n0\n0\n0\n";
/// Sent by the child over its standard input when it serves.
const READY: &[u8] = b"r";

/// Starts the process that serves, and waits until it does.
///
/// # Errors
/// If it cannot be started. The process itself prints a failure that occurs later.
pub fn start(mut command: Command) -> Result<Exit, Failure> {
    let cannot = |error: io::Error| Failure::because("cannot start a process in the background", &error);
    let (mut parent, child_end) = UnixStream::pair().map_err(cannot)?;
    let mut child = command.stdin(OwnedFd::from(child_end)).spawn().map_err(cannot)?;
    // The command has a copy of the child's end, which would prevent detecting that the child has exited.
    drop(command);
    let mut ready = [0; READY.len()];
    if parent.read_exact(&mut ready).is_ok() {
        return Ok(Exit::Success);
    }
    let status = child.wait().map_err(cannot)?;
    Ok(Exit::Program(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Called by the child: leaves the session of the parent, whose terminal may be closed.
///
/// # Errors
/// If the system call fails.
pub fn detach() -> Result<(), Failure> {
    rustix::process::setsid()
        .map(drop)
        .map_err(|error| Failure::because("cannot continue in the background", &error))
}

/// Called by the child: reports that it serves. Its messages go to the journal from now on, if there is one.
///
/// # Errors
/// If the parent has exited: nothing depends on the mount then.
pub fn ready() -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::because("cannot report that the file system serves", &error);
    let null = File::options().read(true).write(true).open("/dev/null").map_err(cannot)?;
    let reported = rustix::io::write(io::stdin(), READY);
    let redirected = dup2_stdin(&null).and_then(|()| dup2_stdout(&null)).map_err(io::Error::from);
    reported.map_err(io::Error::from).and(redirected).and_then(|()| log_to_journal()).map_err(cannot)
}

/// Redirects standard error to the journal, or to /dev/null.
///
/// # Errors
/// If a system call fails.
pub fn log_to_journal() -> io::Result<()> {
    let journal = UnixStream::connect(JOURNAL).and_then(|mut journal| {
        journal.write_all(JOURNAL_HEADER)?;
        Ok(OwnedFd::from(journal))
    });
    let log = match journal {
        Ok(journal) => journal,
        Err(_) => File::options().write(true).open("/dev/null")?.into(),
    };
    Ok(dup2_stderr(log)?)
}
