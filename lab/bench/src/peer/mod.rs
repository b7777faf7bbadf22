//! The other end of a measurement: a process of its own, pinned to its own core.
//!
//! The peer is this same program started again. What it has to do travels as JSON in an environment variable, its
//! descriptors are inherited by number. It says `1` on its control stream once it is ready; it ends when the parent
//! kills it, which dropping [`Peer`] does, or when the parent dies.
//!
//! A peer on another host is started by a server half there ([`Listener`]), for a client half ([`Run`]) here: its
//! control stream is the TCP connection between them, and everything else is the same.

mod child;
mod control;
mod far;
#[doc(hidden)]
pub mod foreign;
mod listener;

pub use control::Control;
pub use far::{Far, Run};
pub use listener::Listener;

pub(crate) use child::{ChildProcess, adopt, free_ports, next_line};
pub(crate) use control::{receive, send};
pub(crate) use far::{FarProcess, stop_server};

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

/// The environment variable that carries the task.
const TASK_VARIABLE: &str = "FARCALL_PEER_TASK";
/// The hidden subcommand of the `farcall` binary that does a peer's task.
const SUBCOMMAND: &str = "__peer";

/// What a peer does until it is killed: plain data that travels to its process.
pub trait PeerTask: Serialize + DeserializeOwned {
    /// The name of this kind of tasks.
    const KIND: &'static str;

    /// Does it, in the peer's process.
    ///
    /// # Errors
    /// When it cannot be done.
    fn run(self, place: PeerPlace) -> Result<(), PeerError>;
}

/// Two processes on a core each: where and how long to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairPlan {
    /// How to start the other end.
    pub launcher: PeerLauncher,
    /// Core of the other end.
    pub server_core: usize,
    /// Where the other end is started instead, on a core that is chosen there.
    pub server_half: Option<Far>,
    /// Core of the calling thread, which is pinned to it.
    pub client_core: usize,
    /// Unrecorded start.
    pub warm_up: Duration,
    /// Recorded stretch.
    pub duration: Duration,
}

impl PairPlan {
    /// Starts the other end and waits until it is ready.
    ///
    /// # Errors
    /// When it cannot be started, or ends before it is ready.
    pub fn start<T: PeerTask>(&self, task: &T) -> Result<Peer, PeerError> {
        match &self.server_half {
            Some(far) => far.peer(task),
            None => self.launcher.start(task, self.server_core, &[]),
        }
    }
}

/// Starting or running the other end failed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The process could not be started.
    #[error("cannot start the process {program:?}: {source}")]
    Start {
        /// Which program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The peer ended before it was ready.
    #[error("the peer process ended before it was ready; its own message is on standard error")]
    NotReady,
    /// The peer ended during the measurement.
    #[error("the peer process ended during the measurement")]
    Ended,
    /// What came back is not what was sent.
    #[error("the peer answered with other bytes than were sent, in round trip {0}")]
    WrongEcho(u64),
    /// The task in the environment is missing or not understood: this subcommand is internal.
    #[error("{SUBCOMMAND} is started by farcall itself; {TASK_VARIABLE} is {0}")]
    Task(&'static str),
    /// The peer's part of the measurement failed.
    #[error("{0}")]
    Part(String),
    /// The two ends did not understand each other.
    #[error("the two ends did not come together: {0}")]
    Exchange(String),
    /// Pinning failed.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// Memory could not be shared.
    #[error(transparent)]
    Memory(#[from] farcall_verbs::Error),
    /// What a process used could not be read.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Nobody is there.
    #[error("cannot reach the server half at {address}: {source}")]
    Unreachable {
        /// Where it should be.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// A server half cannot listen.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where it should.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Somebody else is there.
    #[error("{address} is no server half of a measurement; it said {said:?}")]
    Stranger {
        /// Where the server half should be.
        address: SocketAddr,
        /// The beginning of what was said.
        said: String,
    },
    /// The two halves are of different versions.
    #[error("the server half at {address} is {theirs:?}, this client half is {mine:?}; use the same release")]
    Version {
        /// Where the server half is.
        address: SocketAddr,
        /// How it greets.
        theirs: String,
        /// How this half greets.
        mine: String,
    },
    /// The server half does not do it.
    #[error("the server half at {address} refused: {why}")]
    Refused {
        /// Where it is.
        address: SocketAddr,
        /// Its words.
        why: String,
    },
    /// The server half does not answer.
    #[error("the server half at {address} gave no answer: {why}")]
    Lost {
        /// Where it was.
        address: SocketAddr,
        /// How that was found.
        why: String,
    },
    /// A system call failed.
    #[error("{call} failed: {source}")]
    System {
        /// Which call.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl PeerError {
    /// Wraps the error of a system call.
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { call, source: source.into() }
    }
}

/// How to start this program again as a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLauncher {
    program: PathBuf,
    args: Vec<OsString>,
}

impl PeerLauncher {
    /// Starts the running binary again with its hidden subcommand.
    #[must_use]
    pub fn this_program() -> Self {
        Self::with_args([SUBCOMMAND])
    }

    /// Starts the running binary again with `args`, also if the file was replaced meanwhile.
    pub fn with_args(args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self::new("/proc/self/exe", args)
    }

    /// Starts `program` with `args`; it must do what its [`Order`] says.
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self { program: program.into(), args: args.into_iter().map(Into::into).collect() }
    }

    /// The command, without input.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null());
        command
    }

    /// Starts a peer on `core` and waits until it is ready. It inherits `fds` and dies with the calling thread.
    ///
    /// # Errors
    /// When it cannot be started, or ends before it is ready.
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

    /// Starts a peer. It inherits `fds`, of which the first is its control stream.
    fn spawn(&self, order: Order, core: usize, fds: &[BorrowedFd<'_>]) -> Result<ChildProcess, PeerError> {
        let mut command = self.command();
        let order = Order { fds: fds.iter().map(AsRawFd::as_raw_fd).collect(), ..order };
        let order = serde_json::to_string(&order).map_err(|error| PeerError::Exchange(error.to_string()))?;
        ChildProcess::start(command.env(TASK_VARIABLE, order).stdout(Stdio::null()), &[core], fds)
    }
}

/// What the environment variable carries.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// [`PeerTask::KIND`] of the task.
    pub kind: String,
    task: serde_json::Value,
    /// The control stream, then those of the task.
    fds: Vec<RawFd>,
    /// What the server half was told about its RNIC, if it started the peer.
    own_nic: Option<Selection>,
}

impl Order {
    fn of<T: PeerTask>(task: &T) -> Result<Self, PeerError> {
        let task = serde_json::to_value(task).map_err(|error| PeerError::Exchange(error.to_string()))?;
        Ok(Self { kind: T::KIND.to_owned(), task, fds: Vec::new(), own_nic: None })
    }

    /// What the environment says.
    ///
    /// # Errors
    /// When this process was not started by [`PeerLauncher`].
    pub fn of_this_process() -> Result<Self, PeerError> {
        let text = env::var(TASK_VARIABLE).map_err(|_| PeerError::Task("not set"))?;
        serde_json::from_str(&text).map_err(|_| PeerError::Task("not understood"))
    }

    /// Does the task, until killed or until the other end is gone.
    ///
    /// # Errors
    /// When it is not such a task, its descriptors are not there, or it fails.
    pub fn run<T: PeerTask>(self) -> Result<(), PeerError> {
        let task: T = serde_json::from_value(self.task).map_err(|_| PeerError::Task("not understood"))?;
        let mut fds = self.fds.iter().map(|fd| adopt(*fd)).collect::<Result<Vec<_>, _>>()?.into_iter();
        let control = fds.next().ok_or(PeerError::Task("short of descriptors"))?;
        task.run(PeerPlace { control: control.into(), fds, own_nic: self.own_nic })
    }
}

/// What a peer inherited.
#[derive(Debug)]
pub struct PeerPlace {
    control: Control,
    fds: std::vec::IntoIter<OwnedFd>,
    own_nic: Option<Selection>,
}

impl PeerPlace {
    /// The stream between the two ends.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The RNIC to use where the other end uses `theirs`.
    #[must_use]
    pub fn nic(&self, theirs: &Selection) -> Selection {
        self.own_nic.as_ref().map_or_else(|| theirs.clone(), |own| listener::nic_of(own, theirs))
    }

    /// The next of the task's descriptors.
    ///
    /// # Errors
    /// When there is none left.
    pub fn next_fd(&mut self) -> Result<OwnedFd, PeerError> {
        self.fds.next().ok_or(PeerError::Task("short of descriptors"))
    }

    /// Tells the parent that the measurement may begin.
    ///
    /// # Errors
    /// When the parent is gone.
    pub fn ready(&self) -> Result<(), PeerError> {
        (&self.control).write_all(b"1").map_err(PeerError::system("write"))
    }
}

/// A running peer; dropping it kills it.
#[derive(Debug)]
pub struct Peer {
    process: Process,
    control: Control,
}

#[derive(Debug)]
enum Process {
    Here(ChildProcess),
    There(FarProcess),
}

impl Peer {
    fn when_ready(self) -> Result<Self, PeerError> {
        (&self.control).read_exact(&mut [0]).map_err(|_| PeerError::NotReady)?;
        Ok(self)
    }

    /// Its process id, if it is on this host.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::Here(child) => Some(child.0.id()),
            Process::There(_) => None,
        }
    }

    /// The CPU time that it has used so far.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu_time(&self) -> Result<Duration, PeerError> {
        match &self.process {
            Process::Here(child) => Ok(cpu_time(child.0.id())?),
            Process::There(process) => process.cpu_time(),
        }
    }

    /// The stream between the two ends, silent once the peer is ready.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Whether it is still there. A spinning end asks now and then, so that a dead peer cannot hang it.
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

    /// Starts this test binary again, running nothing but the entry of the peer process.
    pub(crate) fn launcher() -> PeerLauncher {
        PeerLauncher::new(
            env::current_exe().unwrap(),
            ["--exact", "tasks::tests::entry_of_the_peer_process", "--nocapture"],
        )
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
