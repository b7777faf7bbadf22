//! The other end of a measurement: a process of its own, pinned to its own core.
//!
//! The peer is this same program started again. What it has to do travels as JSON in an environment variable, its
//! descriptors are inherited by number. It says `1` on its control socket once it is ready; it ends when the parent
//! kills it, which dropping [`Peer`] does, or when the parent dies.

use super::{BaselinePlan, events, shared_line, sockets};
use crate::experiments::own_syscalls;
use crate::measure::{CoreError, pin_thread};
use crate::rnic::echo::{self, EchoTask};
use crate::rnic::{self, RnicError, RnicTask};
use farcall_providers::Selection;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, io};

/// The environment variable that carries the task.
const TASK_VARIABLE: &str = "FARCALL_PEER_TASK";
/// The hidden subcommand of the `farcall` binary that calls [`run_peer`].
const SUBCOMMAND: &str = "__peer";

/// What a peer does until it is killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerTask {
    /// Answers in a shared cache line. One descriptor: the memory.
    SharedLine,
    /// Echoes on a connected stream socket, spinning. One descriptor: the socket.
    EchoSpinning,
    /// Echoes on a connected stream socket, sleeping in epoll. One descriptor: the socket.
    EchoEpoll,
    /// Answers one eventfd with another. Two descriptors.
    Eventfd,
    /// The passive end of a measurement of verbs.
    Rnic {
        /// What is measured.
        task: RnicTask,
        /// Over which provider.
        selection: Selection,
    },
    /// A measurement of verbs as a whole, whose other end is a third process.
    Initiator {
        /// What is measured.
        task: RnicTask,
        /// Over which provider.
        selection: Selection,
        /// How.
        plan: Box<BaselinePlan>,
    },
    /// The server of a measurement of echoes.
    Echo {
        /// What is measured.
        task: EchoTask,
        /// Over which provider.
        selection: Selection,
    },
    /// Counts the system calls of a thread of the parent; see [`crate::experiments::own_syscalls`].
    Tracer {
        /// The thread's kernel id.
        tid: i32,
        /// How long to count.
        window_ms: u64,
    },
}

/// Starting or running the other end failed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The process could not be started.
    #[error("cannot start the peer process {program:?}: {source}")]
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
    /// The passive end of a measurement of verbs failed.
    #[error(transparent)]
    Rnic(Box<RnicError>),
    /// Pinning failed.
    #[error(transparent)]
    Core(#[from] CoreError),
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
    pub(super) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Self {
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
    /// Starts the running binary again with its hidden subcommand, also if the file was replaced meanwhile.
    #[must_use]
    pub fn this_program() -> Self {
        Self::new("/proc/self/exe", [SUBCOMMAND])
    }

    /// Starts `program` with `args`; it must call [`run_peer`].
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(|arg| arg.as_ref().to_os_string()).collect(),
        }
    }

    /// Starts a peer on `core` and waits until it is ready. It inherits `fds` and dies with the calling thread.
    ///
    /// # Errors
    /// When it cannot be started, or ends before it is ready.
    pub fn start(&self, task: PeerTask, core: usize, fds: &[BorrowedFd<'_>]) -> Result<Peer, PeerError> {
        let (mine, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(PeerError::system("socketpair"))?;
        let inherited: Vec<RawFd> =
            std::iter::once(theirs.as_fd()).chain(fds.iter().copied()).map(|fd| fd.as_raw_fd()).collect();
        let order = Order { task, core, fds: inherited.clone() };
        let order = serde_json::to_string(&order).map_err(|error| PeerError::Start {
            program: self.program.clone(),
            source: io::Error::other(error),
        })?;
        let mut command = Command::new(&self.program);
        command.args(&self.args).env(TASK_VARIABLE, order).stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system calls.
        unsafe { command.pre_exec(move || prepare_child(&inherited)) };
        let child =
            command.spawn().map_err(|source| PeerError::Start { program: self.program.clone(), source })?;
        let mut peer = Peer { child, control: mine.into() };
        drop(theirs);
        match peer.control.read_exact(&mut [0]) {
            Ok(()) => Ok(peer),
            Err(_) => Err(PeerError::NotReady),
        }
    }
}

/// What the environment variable carries.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    task: PeerTask,
    core: usize,
    /// The control socket, then those of the task.
    fds: Vec<RawFd>,
}

/// Lets the descriptors pass exec, and ties the child's life to its parent's.
fn prepare_child(fds: &[RawFd]) -> io::Result<()> {
    for fd in fds {
        // SAFETY: the parent keeps these descriptors open until spawn returns, so the number is valid here.
        let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // SAFETY: async-signal-safe. Ctrl-C reaches the whole group, and what it means the parent decides.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    Ok(())
}

/// A running peer; dropping it kills it.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    control: UnixStream,
}

impl Peer {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The stream between the two ends, silent once the peer is ready.
    #[must_use]
    pub fn control(&self) -> &UnixStream {
        &self.control
    }

    /// Whether it is still there. A spinning end asks now and then, so that a dead peer cannot hang it.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails only if it ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does what the environment says, until killed or until the other end is gone. The whole of the hidden subcommand.
///
/// # Errors
/// When it was not started by [`PeerLauncher`], or its system calls fail.
pub fn run_peer() -> Result<(), PeerError> {
    let text = env::var(TASK_VARIABLE).map_err(|_| PeerError::Task("not set"))?;
    let order: Order = serde_json::from_str(&text).map_err(|_| PeerError::Task("not understood"))?;
    let mut fds = order.fds.iter().map(|fd| adopt(*fd)).collect::<Result<Vec<_>, _>>()?.into_iter();
    let mut next = || fds.next().ok_or(PeerError::Task("short of descriptors"));
    let control = next()?;
    pin_thread(order.core)?;
    let speaker = control.try_clone().map_err(PeerError::system("dup"))?;
    let ready = move || match rustix::io::write(&speaker, b"1") {
        Ok(_) => Ok(()),
        Err(errno) => Err(PeerError::System { call: "write", source: errno.into() }),
    };
    match order.task {
        PeerTask::SharedLine => shared_line::answer(&next()?, ready),
        PeerTask::EchoSpinning => sockets::echo(&next()?, sockets::Waiting::Spin, ready),
        PeerTask::EchoEpoll => sockets::echo(&next()?, sockets::Waiting::Epoll, ready),
        PeerTask::Eventfd => events::answer(&next()?, &next()?, ready),
        PeerTask::Tracer { tid, window_ms } => {
            ready()?;
            own_syscalls::trace_parent(UnixStream::from(control), tid, Duration::from_millis(window_ms))
                .map_err(PeerError::system("control socket"))
        }
        PeerTask::Rnic { task, selection } => selection
            .choose()
            .map_err(RnicError::from)
            .and_then(|chosen| rnic::serve(&*chosen.provider, &task, &UnixStream::from(control), ready))
            .map_err(|error| PeerError::Rnic(Box::new(error))),
        PeerTask::Initiator { task, selection, plan } => {
            ready()?;
            rnic::measure_for(task, &selection, &plan, &UnixStream::from(control))
                .map_err(|error| PeerError::Rnic(Box::new(error)))
        }
        PeerTask::Echo { task, selection } => selection
            .choose()
            .map_err(RnicError::from)
            .and_then(|chosen| echo::serve(&*chosen.provider, &task, &UnixStream::from(control), ready))
            .map_err(|error| PeerError::Rnic(Box::new(error))),
    }
}

/// Takes over an inherited descriptor after checking that it is one.
fn adopt(fd: RawFd) -> Result<OwnedFd, PeerError> {
    if fd <= 2 {
        return Err(PeerError::Task("naming a standard stream"));
    }
    // SAFETY: borrowed for one query; an invalid number is reported by it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_getfd(borrowed).map_err(PeerError::system("fcntl"))?;
    // SAFETY: the descriptor is open and was inherited for this purpose; nobody else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Starts this test binary again, running nothing but `entry_of_the_peer_process`.
    pub(crate) fn launcher() -> PeerLauncher {
        PeerLauncher::new(
            env::current_exe().unwrap(),
            ["--exact", "baseline::peer::tests::entry_of_the_peer_process", "--nocapture"],
        )
    }

    /// Not a test of its own: what a peer started by [`launcher`] runs. Without a task it has nothing to do, as an
    /// ordinary test run shows by the error.
    #[test]
    fn entry_of_the_peer_process() {
        match run_peer() {
            Err(PeerError::Task(what)) => assert_eq!(what, "not set"),
            result => result.unwrap(),
        }
    }

    #[test]
    fn a_program_that_is_no_peer_is_not_ready() {
        let launcher = PeerLauncher::new("/bin/true", [""; 0]);
        assert!(matches!(launcher.start(PeerTask::SharedLine, 0, &[]), Err(PeerError::NotReady)));
        let launcher = PeerLauncher::new("/nonexistent/farcall", [""; 0]);
        let error = launcher.start(PeerTask::SharedLine, 0, &[]).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/farcall"));
    }

    #[test]
    fn descriptors_that_are_none_are_refused() {
        assert!(matches!(adopt(1), Err(PeerError::Task(_))));
        assert!(matches!(adopt(987_654), Err(PeerError::System { .. })));
    }
}
