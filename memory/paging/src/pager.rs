//! The pager: a separate process that serves the kernel's requests for the file from memory nodes.
//!
//! The kernel may send a request because it has no free memory. All memory of the pager is therefore locked, and its
//! own memory allocations in the kernel never wait for pages to be written out (PR_SET_IO_FLUSHER).

use farcall_link::Nic;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_files::{Memory, request_resend, serve_one_file};
use farcall_memory::{IoError, OpenError};
use farcall_stats::Block;
use farcall_verbs::with_sources;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;
use thiserror::Error;

use crate::block_counters::{REPLICAS, Replicas, ThreadCounters, publish_status};
use crate::pages::{Pages, SwapInit};
use crate::resume_file;
use crate::run_paths::{Ready, RunPaths};
use crate::undo::undo;

/// Number of requests served concurrently: each waits for memory nodes.
const THREADS: usize = 8;
/// Interval between updates of the replica counters.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// Value of oom_score_adj that exempts this process from the OOM killer.
const NEVER: &str = "-1000";

/// Error of starting a pager.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PagerError {
    /// Memory nodes cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Memory nodes have no capacity or do not respond.
    #[error("memory nodes do not take pages")]
    Memory(#[from] IoError),
    /// An operation of the system failed.
    #[error("{what}: {why}")]
    System {
        /// The operation.
        what: &'static str,
        /// The error of the operation.
        why: io::Error,
    },
}

pub(crate) fn of(what: &'static str) -> impl Fn(io::Error) -> PagerError {
    move |why| PagerError::System { what, why }
}

/// Serves the pages of a run until its file system is unmounted. `device` is its /dev/fuse; the supervisor is at the
/// other end of `supervisor`. If the supervisor exits, all resources of the run are released. `resume_file_number` is
/// the number of the resume file: the state needed to resume is stored there, and a pager that finds such a state
/// resumes from it.
///
/// # Errors
/// Returns an error if it cannot start to serve.
pub fn serve(
    paths: RunPaths,
    device: OwnedFd,
    supervisor: UnixStream,
    nic: &Nic,
    resume_file_number: Option<i32>,
) -> Result<(), PagerError> {
    let (_lock, config) = paths.join().map_err(of("cannot read what is to be paged"))?;
    lock_memory(config.may_stall)?;
    let resume_file = resume_file_number
        .map(|number| resume_file::open(paths, number))
        .transpose()
        .map_err(of("cannot open what is kept"))?;
    let pages = Pages::open(&config, nic, resume_file)?;
    if pages.begin(&config)? == SwapInit::Existing {
        request_resend(&device).map_err(of("cannot have the kernel ask again (Linux 6.9)"))?;
    }
    let threads =
        start(Arc::new(device), &pages.memory(), config.size_bytes).map_err(of("cannot start threads"))?;
    let line = serde_json::to_string(&Ready::of(&pages.status())).map_err(io::Error::other);
    line.and_then(|line| writeln!(&supervisor, "{line}")).map_err(of("the supervisor has exited"))?;
    supervisor.set_read_timeout(Some(STATUS_EVERY)).map_err(of("cannot wait for the supervisor"))?;
    let replicas = Block::<Replicas>::new(&format!("{REPLICAS} {}", paths.supervisor()), 0);
    while threads.iter().any(|thread| !thread.is_finished()) {
        publish_status(&replicas, &pages.status());
        if has_exited(&supervisor) {
            tracing::error!(
                supervisor = paths.supervisor(),
                "the supervisor has exited: the program and its swap area end"
            );
            for left in undo(paths).err().unwrap_or_default() {
                tracing::error!("left behind: {left}");
            }
            break;
        }
    }
    // Threads whose file system could not be unmounted are not joined; they end with this process.
    threads.into_iter().filter(JoinHandle::is_finished).for_each(|thread| drop(thread.join()));
    Ok(())
}

/// Waits up to the read timeout for the supervisor to exit. It sends no data, so a successful read returns the end of
/// the stream.
fn has_exited(supervisor: &UnixStream) -> bool {
    let mut byte = [0];
    let timed_out = |kind| matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
    match io::Read::read(&mut &*supervisor, &mut byte) {
        Ok(len_bytes) => len_bytes == 0,
        Err(error) => !timed_out(error.kind()),
    }
}

/// Locks the memory of this process so that it is never swapped, and exempts it from the OOM killer.
fn lock_memory(may_stall: bool) -> Result<(), PagerError> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
        .map_err(io::Error::from)
        .map_err(of("cannot lock memory (CAP_IPC_LOCK)"))?;
    // Threads created from now on inherit the flag.
    let first = configure_io_flusher_behavior(true)
        .map_err(io::Error::from)
        .map_err(of("cannot become an I/O flusher (CAP_SYS_RESOURCE)"))
        .and_then(|()| {
            fs::write("/proc/self/oom_score_adj", NEVER).map_err(of("cannot change /proc/self/oom_score_adj"))
        });
    match first {
        Err(error) if may_stall => {
            tracing::info!("{}: it was said that it may stall", with_sources(&error));
            Ok(())
        }
        first => first,
    }
}

fn start(device: Arc<OwnedFd>, memory: &Arc<dyn Memory>, size_bytes: u64) -> io::Result<Vec<JoinHandle<()>>> {
    let spawn = |number| {
        let (device, memory) = (Arc::clone(&device), Arc::clone(memory));
        let counters = ThreadCounters::new(number);
        let run = move || serve_one_file(&device, &*memory, size_bytes, |transfer| counters.count(transfer));
        std::thread::Builder::new().name(format!("pager-{number}")).spawn(run)
    };
    (0..THREADS).map(spawn).collect()
}
