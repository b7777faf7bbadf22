//! A server as a process of its own: this program started again, pinned, monitored, and killed on request.

use super::env::ExperimentEnv;
use super::ready::Ready;
use super::service::Service;
use crate::measure::{SharedAllocations, cpu_time};
use crate::peer::{
    ChildProcess, Control, PeerError, PeerLauncher, RemoteProcess, adopt, next_line, stop_server,
};
use crate::report::Report;
use farcall_verbs::with_sources;
use std::env;
use std::io::BufReader;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Environment variable that names the inherited memory in which a server counts its heap operations.
const ALLOCATIONS_VARIABLE: &str = "FARCALL_ALLOCATIONS_FD";
/// Timeout for a server to report that it serves.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// Reason why a server could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The process could not be started.
    #[error(transparent)]
    Start(#[from] PeerError),
    /// The process did not report that it serves.
    #[error("the server process {0}; its own message is on standard error")]
    NotReady(String),
    /// A program of another project is not installed.
    #[error("{0} is not installed (Debian: apt-get install {0})")]
    NotInstalled(&'static str),
    /// The process did not end after a request to end.
    #[error("the server process {0} did not end within {1:?} of SIGTERM; it was killed")]
    Stuck(u32, Duration),
    /// The server reported a failure when it ended.
    #[error("the server process ended with {0}; its own message is on standard error")]
    Failed(ExitStatus),
    /// Its heap operations cannot be counted.
    #[error("cannot count heap operations of the server")]
    Allocations(#[from] farcall_verbs::Error),
}

/// A running server, which is killed when this is dropped.
pub struct ServerProcess {
    process: Process,
    ready: Ready,
}

enum Process {
    Here {
        child: ChildProcess,
        /// `None` for a program of another project.
        own: Option<Own>,
    },
    There {
        process: RemoteProcess,
        control: Control,
    },
}

/// Resources shared with a server of this program.
struct Own {
    /// Kept open, because the server may still write to it.
    _output: BufReader<ChildStdout>,
    allocations: SharedAllocations,
}

impl ServerProcess {
    /// Starts a server at the environment's server half, or on its server core if there is none.
    ///
    /// # Errors
    /// Returns an error if the server cannot be started, or if it exits or hangs before it serves.
    pub(crate) fn serve(env: &ExperimentEnv, service: &Service) -> Result<Self, ServerError> {
        let Some(run) = env.server_half() else {
            let args = service.args(Ipv4Addr::LOCALHOST.into());
            return Self::start(&PeerLauncher::with_args(args), &env.server_cores(service.threads()));
        };
        let (process, control, ready) = run.agent().serve(service)?;
        Ok(Self { process: Process::There { process, control }, ready })
    }

    /// Starts a server on `cores` of this host and waits until it reports that it serves. The kernel kills it when the
    /// calling thread exits.
    ///
    /// # Errors
    /// Returns an error if the server cannot be started, or if it exits or hangs before it serves.
    pub fn start(launcher: &PeerLauncher, cores: &[usize]) -> Result<Self, ServerError> {
        let allocations = SharedAllocations::create()?;
        let mut command = launcher.command();
        command.env(ALLOCATIONS_VARIABLE, allocations.fd().as_raw_fd().to_string()).stdout(Stdio::piped());
        let mut child = ChildProcess::start(&mut command, cores, &[allocations.fd()])?;
        let output = child.0.stdout.take().ok_or_else(|| not_ready("has no standard output"))?;
        let mut output = BufReader::new(output);
        let ready = wait_until_ready(&mut output)?;
        let own = Some(Own { _output: output, allocations });
        Ok(Self { process: Process::Here { child, own }, ready })
    }

    /// Starts a program of another project on `cores`, and waits until it accepts connections at the addresses in
    /// `ready`.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started, or if it exits or hangs before it serves.
    pub(crate) fn start_foreign(
        command: &mut Command,
        cores: &[usize],
        ready: Ready,
    ) -> Result<Self, ServerError> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = ChildProcess::start(command, cores, &[])?;
        child.wait_until_serving(START_PATIENCE, || takes_connections(&ready)).map_err(not_ready)?;
        let ready = Ready { pid: child.0.id(), ..ready };
        Ok(Self { process: Process::Here { child, own: None }, ready })
    }

    /// Returns its process id, if it runs on this host.
    pub fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::Here { child, .. } => Some(child.0.id()),
            Process::There { .. } => None,
        }
    }

    /// Returns its addresses.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Returns the CPU time that it has used so far.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn cpu_time(&self) -> Result<Duration, PeerError> {
        match &self.process {
            Process::Here { child, .. } => Ok(cpu_time(child.0.id())?),
            Process::There { process, .. } => process.cpu_time(),
        }
    }

    /// Returns the number of its heap allocations so far, if it is this program on this host.
    pub fn allocations(&self) -> Option<u64> {
        match &self.process {
            Process::Here { own, .. } => own.as_ref().map(|own| own.allocations.read()),
            Process::There { .. } => None,
        }
    }

    /// Ends it as [`Self::stop`] does; a failure is a problem of `report`.
    pub(crate) fn end(self, patience: Duration, report: &mut Report) {
        report.problems.extend(self.stop(patience).err().map(|error| with_sources(&error)));
    }

    /// Requests it to end (SIGTERM) and waits until it has ended.
    ///
    /// # Errors
    /// Returns an error if it does not end in time, or ends with a failure.
    pub fn stop(mut self, patience: Duration) -> Result<(), ServerError> {
        let child = match &mut self.process {
            Process::Here { child, .. } => child,
            Process::There { control, .. } => return Ok(stop_server(control)?),
        };
        let pid = rustix::process::Pid::from_child(&child.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .map_err(PeerError::system("kill"))?;
        match child.wait_until_ended(patience).map_err(PeerError::system("waitpid"))? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(ServerError::Failed(status)),
            None => Err(ServerError::Stuck(child.0.id(), patience)),
        }
    }
}

fn takes_connections(at: &Ready) -> bool {
    let over_tcp = at.tcp.iter().all(|address| TcpStream::connect(address).is_ok());
    over_tcp && at.unix.iter().all(|path| UnixStream::connect(path).is_ok())
}

/// Waits for the line that a server writes when it serves.
fn wait_until_ready(output: &mut BufReader<ChildStdout>) -> Result<Ready, ServerError> {
    let line = next_line(output, START_PATIENCE)
        .map_err(|error| not_ready(format!("did not say that it serves: {error}")))?;
    if line.is_empty() {
        return Err(not_ready("ended before it served"));
    }
    serde_json::from_str(&line)
        .map_err(|_| not_ready(format!("said {:?} instead of being ready", line.trim())))
}

fn not_ready(what: impl Into<String>) -> ServerError {
    ServerError::NotReady(what.into())
}

/// Publishes the count of this process's heap operations to the benchmark that started it, if one did. Servers call it
/// first.
///
/// # Errors
/// Returns an error if the environment names memory that a benchmark did not pass.
pub fn count_allocations_for_parent() -> Result<(), ServerError> {
    let Ok(text) = env::var(ALLOCATIONS_VARIABLE) else { return Ok(()) };
    let memory = adopt(text.parse().unwrap_or(-1))?;
    Ok(SharedAllocations::publish_in(memory.as_fd())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<ServerProcess, ServerError> {
        let core = crate::measure::Cores::allowed().unwrap().as_slice()[0];
        ServerProcess::start(&PeerLauncher::new("/bin/sh", ["-c", script]), &[core])
    }

    #[test]
    fn a_server_is_ready_when_it_says_so_and_ends_when_asked() {
        let script = r#"trap 'exit 0' TERM; echo '{"serving":"kv","pid":7,"tcp":["127.0.0.1:9"]}'; while :; do sleep 0.01; done"#;
        let server = shell(script).unwrap();
        assert_eq!(server.ready().tcp, ["127.0.0.1:9"]);
        assert_eq!(server.allocations(), Some(0));
        server.stop(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn distinguishes_an_exited_server_from_an_unready_one() {
        let error = |script| shell(script).err().unwrap().to_string();
        assert!(error("exit 3").contains("ended before"));
        assert!(error("echo hello; sleep 9").contains("hello"));
    }

    #[test]
    fn a_failing_end_is_an_error() {
        let script = r#"trap 'exit 5' TERM; echo '{"serving":"kv","pid":7}'; while :; do sleep 0.01; done"#;
        let server = shell(script).unwrap();
        assert!(matches!(server.stop(Duration::from_secs(10)), Err(ServerError::Failed(_))));
    }
}
