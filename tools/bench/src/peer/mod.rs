//! The other end of a measurement: a process of its own, pinned to its own core.
//!
//! The peer is this same program started again. What it has to do travels as JSON in an environment variable, its
//! descriptors are inherited by number. It says `1` on its control socket once it is ready; it ends when the parent
//! kills it, which dropping [`Peer`] does, or when the parent dies.

mod child;

pub(crate) use child::{ChildProcess, adopt};

use crate::measure::CoreError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, io};

/// The environment variable that carries the task.
const TASK_VARIABLE: &str = "FARCALL_PEER_TASK";
/// The hidden subcommand of the `farcall` binary that does a peer's task.
const SUBCOMMAND: &str = "__peer";
/// A longer message between the two ends is not ours.
const MESSAGE_LEN_BYTES_MAX: u32 = 1 << 26;

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
    /// Core of the calling thread, which is pinned to it.
    pub client_core: usize,
    /// Unrecorded start.
    pub warm_up: Duration,
    /// Recorded stretch.
    pub duration: Duration,
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
        let (control, theirs) = UnixStream::pair().map_err(PeerError::system("socketpair"))?;
        let fds = [&[theirs.as_fd()], fds].concat();
        let order = serde_json::to_value(task).and_then(|task| {
            let fds = fds.iter().map(AsRawFd::as_raw_fd).collect();
            serde_json::to_string(&Order { kind: T::KIND.to_owned(), task, fds })
        });
        let order = order.map_err(|error| PeerError::Exchange(error.to_string()))?;
        let mut command = self.command();
        let child = ChildProcess::start(command.env(TASK_VARIABLE, order).stdout(Stdio::null()), core, &fds)?;
        drop(theirs);
        (&control).read_exact(&mut [0]).map_err(|_| PeerError::NotReady)?;
        Ok(Peer { child, control })
    }
}

/// What the environment variable carries.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// [`PeerTask::KIND`] of the task.
    pub kind: String,
    task: serde_json::Value,
    /// The control socket, then those of the task.
    fds: Vec<RawFd>,
}

impl Order {
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
        task.run(PeerPlace { control: control.into(), fds })
    }
}

/// What a peer inherited.
#[derive(Debug)]
pub struct PeerPlace {
    control: UnixStream,
    fds: std::vec::IntoIter<OwnedFd>,
}

impl PeerPlace {
    /// The stream between the two ends.
    #[must_use]
    pub fn control(&self) -> &UnixStream {
        &self.control
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
        rustix::io::write(&self.control, b"1").map(drop).map_err(PeerError::system("write"))
    }
}

/// A running peer; dropping it kills it.
#[derive(Debug)]
pub struct Peer {
    child: ChildProcess,
    control: UnixStream,
}

impl Peer {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// The stream between the two ends, silent once the peer is ready.
    #[must_use]
    pub fn control(&self) -> &UnixStream {
        &self.control
    }

    /// Whether it is still there. A spinning end asks now and then, so that a dead peer cannot hang it.
    pub fn is_alive(&mut self) -> bool {
        self.child.is_alive()
    }
}

/// Sends a message to the other end: its length, then JSON.
pub(crate) fn send<T: Serialize>(mut control: &UnixStream, message: &T) -> Result<(), PeerError> {
    let text = serde_json::to_vec(message).map_err(not_understood)?;
    let len = u32::try_from(text.len()).map_err(not_understood)?;
    control.write_all(&len.to_le_bytes()).and_then(|()| control.write_all(&text)).map_err(not_understood)
}

/// Receives a message of the other end.
pub(crate) fn receive<T: DeserializeOwned>(mut control: &UnixStream) -> Result<T, PeerError> {
    let mut len = [0; 4];
    control.read_exact(&mut len).map_err(not_understood)?;
    let len = u32::from_le_bytes(len);
    if len > MESSAGE_LEN_BYTES_MAX {
        return Err(PeerError::Exchange(format!("a message of {len} bytes")));
    }
    let mut text = vec![0; len as usize];
    control.read_exact(&mut text).map_err(not_understood)?;
    serde_json::from_slice(&text).map_err(not_understood)
}

fn not_understood(error: impl std::fmt::Display) -> PeerError {
    PeerError::Exchange(error.to_string())
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

    #[test]
    fn messages_arrive_whole_and_garbage_is_refused() {
        let (left, right) = UnixStream::pair().unwrap();
        send(&left, &"first").unwrap();
        send(&left, &2).unwrap();
        assert_eq!(receive::<String>(&right).unwrap(), "first");
        assert_eq!(receive::<u32>(&right).unwrap(), 2);
        (&left).write_all(&[255; 8]).unwrap();
        assert!(receive::<String>(&right).is_err());
        send(&left, &"something else").unwrap();
        drop(left);
        assert!(receive::<u32>(&right).is_err());
    }
}
