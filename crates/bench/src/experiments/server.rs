//! A server as a process of its own: this program started again, pinned, watched, and killed when asked.

use crate::measure::{CoreError, SharedAllocations, pin_thread};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};
use std::{env, thread};

/// The environment variable that names the inherited memory in which a server counts its heap operations.
const ALLOCATIONS_VARIABLE: &str = "FARCALL_ALLOCATIONS_FD";
/// How long a server may take until it serves.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// No ready line is longer.
const READY_LINE_LEN_BYTES_MAX: u64 = 64 << 10;

/// What a server says on standard output, as one line of JSON, once it serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// What is served: `kv` or `rpc`.
    pub serving: String,
    /// The server's process.
    pub pid: u32,
    /// Addresses of memcached doors over TCP.
    #[serde(default)]
    pub tcp: Vec<String>,
    /// Paths of memcached doors over Unix sockets.
    #[serde(default)]
    pub unix: Vec<PathBuf>,
    /// Address where RPC clients connect.
    #[serde(default)]
    pub rpc: Option<String>,
}

/// A server could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The process could not be started.
    #[error("cannot start the server process {program:?}: {source}")]
    Start {
        /// Which program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The process did not say that it serves.
    #[error("the server process {what}; its own message is on standard error")]
    NotReady {
        /// What happened instead.
        what: String,
    },
    /// The process did not end when asked to.
    #[error("the server process {pid} did not end within {patience:?} of SIGTERM; it was killed")]
    Stuck {
        /// Which process.
        pid: u32,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The server reported a failure when it ended.
    #[error("the server process ended with {0}; its own message is on standard error")]
    Failed(ExitStatus),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Pinning failed.
    #[error(transparent)]
    Core(#[from] CoreError),
}

/// How to start a server.
#[derive(Debug, Clone)]
pub struct ServerCommand {
    /// The program; normally [`ServerCommand::this_program`].
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// The core all its threads are pinned to.
    pub core: usize,
}

impl ServerCommand {
    /// This program again with `args`, on `core`.
    pub fn this_program(args: impl IntoIterator<Item = impl Into<OsString>>, core: usize) -> Self {
        Self { program: "/proc/self/exe".into(), args: args.into_iter().map(Into::into).collect(), core }
    }
}

/// A running server; dropping it kills it.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    ready: Ready,
    allocations: SharedAllocations,
}

impl ServerProcess {
    /// Starts a server and waits until it says that it serves. It dies with the calling thread.
    ///
    /// # Errors
    /// When it cannot be started, or ends or hangs before it serves.
    pub fn start(command: &ServerCommand) -> Result<Self, ServerError> {
        let allocations = SharedAllocations::create().map_err(|errno| ServerError::System {
            what: "cannot share memory with the server",
            source: errno.into(),
        })?;
        let memory = allocations.fd().as_raw_fd();
        let core = command.core;
        let mut process = Command::new(&command.program);
        process
            .args(&command.args)
            .env(ALLOCATIONS_VARIABLE, memory.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system calls; the descriptor
        // is open until spawn returns, because `allocations` owns it.
        unsafe {
            process.pre_exec(move || {
                rustix::io::fcntl_setfd(BorrowedFd::borrow_raw(memory), rustix::io::FdFlags::empty())?;
                rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
                pin_thread(core).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
            });
        }
        let child = process
            .spawn()
            .map_err(|source| ServerError::Start { program: command.program.clone(), source })?;
        let mut server = Self { child, ready: Ready::default(), allocations };
        server.ready = server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<Ready, ServerError> {
        let not_ready = |what: String| ServerError::NotReady { what };
        let output =
            self.child.stdout.take().ok_or_else(|| not_ready("has no standard output".to_owned()))?;
        let (sender, receiver) = sync_channel(1);
        // Reads one line, then keeps the pipe empty so that the server never blocks on it.
        thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut line = String::new();
            let result = (&mut reader).take(READY_LINE_LEN_BYTES_MAX).read_line(&mut line).map(|_| line);
            // Nobody waits any more if the server took too long.
            let _ = sender.send(result);
            let _ = io::copy(&mut reader, &mut io::sink());
        });
        let line = match receiver.recv_timeout(START_PATIENCE) {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return Err(not_ready(format!("closed its output: {error}"))),
            Err(RecvTimeoutError::Timeout) => {
                return Err(not_ready(format!("said nothing for {START_PATIENCE:?}")));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(not_ready("closed its output".to_owned())),
        };
        if line.is_empty() {
            return Err(not_ready("ended before it served".to_owned()));
        }
        serde_json::from_str(&line)
            .map_err(|_| not_ready(format!("said {:?} instead of being ready", line.trim())))
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it serves.
    #[must_use]
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Its heap operations so far.
    #[must_use]
    pub fn allocations(&self) -> crate::measure::AllocationCounts {
        self.allocations.read()
    }

    /// Kills it at once, as a crash would.
    pub fn kill(mut self) {
        self.kill_and_wait();
    }

    /// Asks it to end (SIGTERM) and waits.
    ///
    /// # Errors
    /// When it does not end in time, or ends with a failure.
    pub fn stop(mut self, patience: Duration) -> Result<(), ServerError> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).map_err(|errno| {
            ServerError::System { what: "cannot signal the server", source: errno.into() }
        })?;
        let deadline = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(ServerError::Failed(status)),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                Ok(None) => return Err(ServerError::Stuck { pid: self.pid(), patience }),
                Err(source) => {
                    return Err(ServerError::System { what: "cannot wait for the server", source });
                }
            }
        }
    }

    fn kill_and_wait(&mut self) {
        // Fails only if it ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill_and_wait();
    }
}

/// Counts this process's heap operations where the starting benchmark wants them, if one does. Servers call it first.
///
/// # Errors
/// When the environment names memory that is not what a benchmark hands over.
pub fn count_allocations_for_parent() -> Result<(), ServerError> {
    let Ok(text) = env::var(ALLOCATIONS_VARIABLE) else { return Ok(()) };
    let refused =
        |source| ServerError::System { what: "FARCALL_ALLOCATIONS_FD is internal to benchmarks", source };
    let fd = text
        .parse::<i32>()
        .ok()
        .filter(|fd| *fd > 2)
        .ok_or_else(|| refused(io::ErrorKind::InvalidInput.into()))?;
    // SAFETY: borrowed for one query; an invalid number is reported by it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_getfd(borrowed).map_err(|errno| refused(errno.into()))?;
    // SAFETY: open, inherited for this purpose, and owned by nobody else in this process.
    let memory = unsafe { OwnedFd::from_raw_fd(fd) };
    SharedAllocations::publish_in(std::os::fd::AsFd::as_fd(&memory)).map_err(|errno| refused(errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> ServerCommand {
        ServerCommand {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            core: crate::measure::Cores::allowed().unwrap().as_slice()[0],
        }
    }

    #[test]
    fn a_server_is_ready_when_it_says_so_and_ends_when_asked() {
        let script = r#"trap 'exit 0' TERM; echo '{"serving":"kv","pid":7,"tcp":["127.0.0.1:9"]}'; while :; do sleep 0.01; done"#;
        let server = ServerProcess::start(&shell(script)).unwrap();
        assert_eq!(server.ready().tcp, ["127.0.0.1:9"]);
        assert_eq!(server.allocations().allocations, 0);
        server.stop(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn servers_that_are_not_ready_are_told_apart() {
        let error = |script| ServerProcess::start(&shell(script)).unwrap_err().to_string();
        assert!(error("exit 3").contains("ended before"));
        assert!(error("echo hello; sleep 9").contains("hello"));
    }

    #[test]
    fn a_failing_end_is_an_error() {
        let script = r#"trap 'exit 5' TERM; echo '{"serving":"kv","pid":7}'; while :; do sleep 0.01; done"#;
        let server = ServerProcess::start(&shell(script)).unwrap();
        assert!(matches!(server.stop(Duration::from_secs(10)), Err(ServerError::Failed(_))));
    }
}
