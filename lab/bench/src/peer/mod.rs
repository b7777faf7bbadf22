//! The other end of a measurement: a process of its own, pinned to its own core.
//!
//! The peer is this program, started again. Its task is passed as JSON in an environment variable, and its descriptors
//! are inherited by number. It writes `1` to its control stream when it is ready. It ends when the parent kills it,
//! which dropping [`Peer`] does, or when the parent exits.
//!
//! A peer on another host is started by a server half there ([`Listener`]) for a client half ([`Run`]) on this host.
//! Its control stream is the TCP connection between them; everything else is the same.

mod child;
mod control;
#[cfg(feature = "verbs")]
mod cost;
#[doc(hidden)]
pub mod fuzzing;
mod listener;
mod remote_agent;

pub use control::Control;
#[cfg(feature = "verbs")]
pub use cost::BothEnds;
pub use listener::Listener;
pub use remote_agent::{RemoteAgent, Run};

pub(crate) use child::{ChildProcess, adopt, free_ports, next_line};
pub(crate) use control::{receive, send};
#[cfg(feature = "verbs")]
pub(crate) use cost::Meter;
pub(crate) use remote_agent::{RemoteProcess, stop_server};

use crate::measure::{CoreError, ProcessError, cpu_time};
use farcall::select::Selection;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, io};

/// Environment variable that contains the task.
const TASK_VARIABLE: &str = "FARCALL_PEER_TASK";
/// Hidden subcommand of the `farcall` binary that runs a peer's task.
const SUBCOMMAND: &str = "__peer";

/// Task that a peer runs until it is killed: plain data that is sent to its process.
pub trait PeerTask: Serialize + DeserializeOwned {
    /// Name of this kind of task.
    const KIND: &'static str;

    /// Runs the task in the peer's process.
    ///
    /// # Errors
    /// Returns an error if the task cannot be completed.
    fn run(self, place: PeerPlace) -> Result<(), PeerError>;
}

/// Plan of a measurement between two processes on one core each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairPlan {
    /// Launcher of the other end.
    pub launcher: PeerLauncher,
    /// Core of the other end.
    pub server_core: usize,
    /// Run at which the other end is started instead, on a core chosen there.
    pub server_half: Option<RemoteAgent>,
    /// Core of the calling thread, which is pinned to it.
    pub client_core: usize,
    /// Unrecorded time at the start.
    pub warm_up: Duration,
    /// Recorded period.
    pub duration: Duration,
}

impl PairPlan {
    /// Starts the other end and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error if the other end cannot be started, or exits before it is ready.
    pub fn start<T: PeerTask>(&self, task: &T) -> Result<Peer, PeerError> {
        match &self.server_half {
            Some(agent) => agent.peer(task),
            None => self.launcher.start(task, self.server_core, &[]),
        }
    }
}

/// Error of starting or running the other end.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The process could not be started.
    #[error("cannot start the process {program:?}")]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// Error of starting it.
        source: io::Error,
    },
    /// The peer exited before it was ready.
    #[error("the peer process ended before it was ready; its own message is on standard error")]
    NotReady,
    /// The peer exited during the measurement.
    #[error("the peer process ended during the measurement")]
    Ended,
    /// The returned bytes are not those sent.
    #[error("the peer answered with other bytes than were sent, in round trip {0}")]
    WrongEcho(u64),
    /// The task in the environment is missing or invalid; only [`PeerLauncher`] starts this subcommand.
    #[error("{SUBCOMMAND} is started by farcall itself; {TASK_VARIABLE} is {0}")]
    Task(&'static str),
    /// The peer's side of the measurement failed.
    #[error("{0}")]
    Part(String),
    /// A message between the two ends was invalid.
    #[error("the two ends did not come together: {0}")]
    Exchange(String),
    /// Pinning failed.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// Memory could not be shared.
    #[error(transparent)]
    Memory(#[from] farcall_verbs::Error),
    /// The resources of a process could not be read.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The server half cannot be reached.
    #[error("cannot reach the server half at {address}")]
    Unreachable {
        /// Address of the server half.
        address: SocketAddr,
        /// Error of connecting.
        source: io::Error,
    },
    /// A server half cannot listen.
    #[error("cannot listen on {address}")]
    Listen {
        /// Address to listen on.
        address: SocketAddr,
        /// Error of listening.
        source: io::Error,
    },
    /// Another service listens on the address.
    #[error("{address} is no server half of a measurement; it said {said:?}")]
    UnexpectedPeer {
        /// Address of the expected server half.
        address: SocketAddr,
        /// Beginning of the received text.
        said: String,
    },
    /// The two halves are of different versions.
    #[error("the server half at {address} is {theirs:?}, this client half is {mine:?}; use the same release")]
    Version {
        /// Address of the server half.
        address: SocketAddr,
        /// Greeting of the server half.
        theirs: String,
        /// Greeting of this half.
        mine: String,
    },
    /// The server half refused the request.
    #[error("the server half at {address} refused: {why}")]
    Refused {
        /// Address of the server half.
        address: SocketAddr,
        /// Reason that it sent.
        why: String,
    },
    /// The server half does not reply.
    #[error("the server half at {address} gave no answer: {why}")]
    Lost {
        /// Address of the server half.
        address: SocketAddr,
        /// Symptom.
        why: String,
    },
    /// A system call failed.
    #[error("{call} failed")]
    System {
        /// Name of the system call.
        call: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
}

impl PeerError {
    /// Converts the error of a system call.
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { call, source: source.into() }
    }
}

/// Command that starts this program again as a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLauncher {
    program: PathBuf,
    args: Vec<OsString>,
}

impl PeerLauncher {
    /// Creates a launcher that starts the running binary with its hidden subcommand.
    pub fn this_program() -> Self {
        Self::with_args([SUBCOMMAND])
    }

    /// Creates a launcher that starts the running binary with `args`, even if its file has been replaced since.
    pub fn with_args(args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self::new("/proc/self/exe", args)
    }

    /// Creates a launcher that starts `program` with `args`; the program must execute its [`Order`].
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self { program: program.into(), args: args.into_iter().map(Into::into).collect() }
    }

    /// Returns the command, without standard input.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null());
        command
    }

    /// Starts a peer on `core` and waits until it is ready. The peer inherits `fds`. The kernel kills it when the
    /// calling thread exits.
    ///
    /// # Errors
    /// Returns an error if the peer cannot be started, or exits before it is ready.
    pub fn start<T: PeerTask>(
        &self,
        task: &T,
        core: usize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Peer, PeerError> {
        let (control, theirs) = Control::pair()?;
        let child = self.spawn(Order::of(task)?, core, &[&[theirs.as_fd()], fds].concat())?;
        drop(theirs);
        Peer { process: Process::Here(child), control }.when_ready()
    }

    /// Starts a peer, which inherits `fds`. The first of them is its control stream.
    fn spawn(&self, order: Order, core: usize, fds: &[BorrowedFd<'_>]) -> Result<ChildProcess, PeerError> {
        let mut command = self.command();
        let order = Order { fds: fds.iter().map(AsRawFd::as_raw_fd).collect(), ..order };
        let order = serde_json::to_string(&order).map_err(|error| PeerError::Exchange(error.to_string()))?;
        ChildProcess::start(command.env(TASK_VARIABLE, order).stdout(Stdio::null()), &[core], fds)
    }
}

/// Content of the environment variable.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// [`PeerTask::KIND`] of the task.
    pub kind: String,
    task: serde_json::Value,
    /// Descriptor of the control stream, then those of the task.
    fds: Vec<RawFd>,
    /// RNIC specified at the server half, if that started the peer.
    own_nic: Option<Selection>,
}

impl Order {
    fn of<T: PeerTask>(task: &T) -> Result<Self, PeerError> {
        let task = serde_json::to_value(task).map_err(|error| PeerError::Exchange(error.to_string()))?;
        Ok(Self { kind: T::KIND.to_owned(), task, fds: Vec::new(), own_nic: None })
    }

    /// Reads the order from the environment.
    ///
    /// # Errors
    /// Returns an error if this process was not started by [`PeerLauncher`].
    pub fn of_this_process() -> Result<Self, PeerError> {
        let text = env::var(TASK_VARIABLE).map_err(|_| PeerError::Task("not set"))?;
        serde_json::from_str(&text).map_err(|_| PeerError::Task("not understood"))
    }

    /// Runs the task, until this process is killed or the other end exits.
    ///
    /// # Errors
    /// Returns an error if the task is of another kind, if its descriptors are missing, or if it fails.
    pub fn run<T: PeerTask>(self) -> Result<(), PeerError> {
        let task: T = serde_json::from_value(self.task).map_err(|_| PeerError::Task("not understood"))?;
        let mut fds = self.fds.iter().map(|fd| adopt(*fd)).collect::<Result<Vec<_>, _>>()?.into_iter();
        let control = fds.next().ok_or(PeerError::Task("short of descriptors"))?;
        task.run(PeerPlace { control: control.into(), fds, own_nic: self.own_nic })
    }
}

/// Resources inherited by a peer.
#[derive(Debug)]
pub struct PeerPlace {
    control: Control,
    fds: std::vec::IntoIter<OwnedFd>,
    own_nic: Option<Selection>,
}

impl PeerPlace {
    /// Returns the control stream.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Returns the RNIC to use if the other end uses `theirs`.
    pub fn nic(&self, theirs: &Selection) -> Selection {
        self.own_nic.as_ref().map_or_else(|| theirs.clone(), |own| listener::nic_of(own, theirs))
    }

    /// Returns the next descriptor of the task.
    ///
    /// # Errors
    /// Returns an error if there is none left.
    pub fn next_fd(&mut self) -> Result<OwnedFd, PeerError> {
        self.fds.next().ok_or(PeerError::Task("short of descriptors"))
    }

    /// Notifies the parent that the measurement may begin.
    ///
    /// # Errors
    /// Returns an error if the parent has exited.
    pub fn ready(&self) -> Result<(), PeerError> {
        (&self.control).write_all(b"1").map_err(PeerError::system("write"))
    }
}

/// A running peer, which is killed when this is dropped.
#[derive(Debug)]
pub struct Peer {
    process: Process,
    control: Control,
}

#[derive(Debug)]
enum Process {
    Here(ChildProcess),
    There(RemoteProcess),
}

impl Peer {
    fn when_ready(self) -> Result<Self, PeerError> {
        (&self.control).read_exact(&mut [0]).map_err(|_| PeerError::NotReady)?;
        Ok(self)
    }

    /// Returns its process id, if it runs on this host.
    pub fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::Here(child) => Some(child.0.id()),
            Process::There(_) => None,
        }
    }

    /// Returns the CPU time that it has used so far.
    ///
    /// # Errors
    /// Returns an error if it has exited.
    pub fn cpu_time(&self) -> Result<Duration, PeerError> {
        match &self.process {
            Process::Here(child) => Ok(cpu_time(child.0.id())?),
            Process::There(process) => process.cpu_time(),
        }
    }

    /// Returns the control stream, which carries no further messages of this module once the peer is ready.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Returns whether the peer has not exited. A polling end calls it at intervals, so that it does not poll forever
    /// for a crashed peer.
    pub fn is_alive(&mut self) -> bool {
        match &mut self.process {
            Process::Here(child) => child.is_alive(),
            Process::There(_) => !self.control.is_closed(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiments::ExperimentEnv;

    /// Returns a launcher that starts this test binary with only the entry point of the peer process.
    pub(crate) fn launcher() -> PeerLauncher {
        PeerLauncher::new(
            env::current_exe().unwrap(),
            ["--exact", "tasks::tests::entry_of_the_peer_process", "--nocapture"],
        )
    }

    /// Returns an environment with one short measurement, whose peers run this test binary.
    pub(crate) fn env(duration_ms: u64) -> ExperimentEnv {
        let mut env = ExperimentEnv::new(1, Duration::from_millis(duration_ms), 7).unwrap();
        env.launcher = launcher();
        env
    }

    /// Returns the plan of a measurement in [`env`](fn@env).
    pub(crate) fn plan(duration_ms: u64) -> PairPlan {
        env(duration_ms).pair_plan()
    }

    #[derive(Serialize, Deserialize)]
    struct Nothing;

    impl PeerTask for Nothing {
        const KIND: &'static str = "nothing";

        fn run(self, _place: PeerPlace) -> Result<(), PeerError> {
            Ok(())
        }
    }

    #[test]
    fn a_program_that_is_no_peer_is_not_ready() {
        let launcher = PeerLauncher::new("/bin/true", [""; 0]);
        assert!(matches!(launcher.start(&Nothing, 0, &[]), Err(PeerError::NotReady)));
        let launcher = PeerLauncher::new("/nonexistent/farcall", [""; 0]);
        let error = launcher.start(&Nothing, 0, &[]).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/farcall"));
    }
}
