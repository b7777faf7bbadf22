//! The pager: a process of its own that answers what the kernel asks of the file, from memory nodes.
//!
//! The kernel may ask because it has no memory left. So all memory of the pager is locked, and what it still asks of the
//! kernel never waits for pages to be written out, by itself of all processes (PR_SET_IO_FLUSHER).

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_files::{Memory, ask_again, serve_one_file};
use farcall_memory::{IoError, OpenError};
use farcall_stats::Block;
use farcall_verbs::Provider;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;
use thiserror::Error;

use crate::block_counters::{OfThread, REPLICAS, Replicas, tell};
use crate::kept;
use crate::pages::{Begun, Pages};
use crate::place::{Place, Ready};
use crate::undo::undo;

/// Requests that are worked on at once: each waits for memory nodes.
const THREADS: usize = 8;
/// How often counters are told how replicas stand.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// For the system's choice whom to end when memory is short: never this process.
const NEVER: &str = "-1000";

/// Why pages are not served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PagerError {
    /// Memory nodes cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// They have no room, or do not answer.
    #[error("memory nodes do not take pages: {0}")]
    Memory(#[from] IoError),
    /// The system refuses something.
    #[error("{what}: {why}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        why: io::Error,
    },
}

pub(crate) fn of(what: &'static str) -> impl Fn(io::Error) -> PagerError {
    move |why| PagerError::System { what, why }
}

/// Serves the pages of a place until its file system is unmounted. `device` is its /dev/fuse; the keeper is at the
/// other end of `keeper`. When the keeper is gone everything is undone. With a number, what is needed to go on is kept
/// in that file of the keeper's; a pager that finds something there goes on where the last one has ended.
///
/// # Errors
/// If it cannot begin.
pub fn serve(
    place: Place,
    device: OwnedFd,
    keeper: UnixStream,
    provider: Arc<dyn Provider>,
    kept: Option<i32>,
) -> Result<(), PagerError> {
    let (_held, config) = place.join().map_err(of("cannot read what is to be paged"))?;
    stay_awake(config.may_stall)?;
    let kept =
        kept.map(|number| kept::open(place, number)).transpose().map_err(of("cannot open what is kept"))?;
    let pages = Pages::open(&config, provider, kept)?;
    if pages.begin(&config)? == Begun::Before {
        ask_again(&device).map_err(of("cannot have the kernel ask again (Linux 6.9)"))?;
    }
    let threads =
        start(Arc::new(device), &pages.memory(), config.size_bytes).map_err(of("cannot start threads"))?;
    let line = serde_json::to_string(&Ready::of(&pages.status())).map_err(io::Error::other);
    line.and_then(|line| writeln!(&keeper, "{line}")).map_err(of("the keeper is gone"))?;
    keeper.set_read_timeout(Some(STATUS_EVERY)).map_err(of("cannot wait for the keeper"))?;
    let replicas = Block::<Replicas>::new(&format!("{REPLICAS} {}", place.keeper()), 0);
    while threads.iter().any(|thread| !thread.is_finished()) {
        tell(&replicas, &pages.status());
        if is_gone(&keeper) {
            tracing::error!(keeper = place.keeper(), "the keeper is gone: the program and its swap area end");
            for left in undo(place).err().unwrap_or_default() {
                tracing::error!("left behind: {left}");
            }
            break;
        }
    }
    // Where something is in use that could not be undone they end with this process.
    threads.into_iter().filter(JoinHandle::is_finished).for_each(|thread| drop(thread.join()));
    Ok(())
}

/// Waits for a while whether the keeper ends. It says nothing more: what can be read is the end.
fn is_gone(keeper: &UnixStream) -> bool {
    let mut byte = [0];
    let timed_out = |kind| matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
    match io::Read::read(&mut &*keeper, &mut byte) {
        Ok(len_bytes) => len_bytes == 0,
        Err(error) => !timed_out(error.kind()),
    }
}

/// From now on nothing of this process has to come from swap, and it is not the one to end for want of memory.
fn stay_awake(may_stall: bool) -> Result<(), PagerError> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
        .map_err(io::Error::from)
        .map_err(of("cannot lock memory (CAP_IPC_LOCK)"))?;
    // Threads that are made from now on have it, too.
    let first = configure_io_flusher_behavior(true)
        .map_err(io::Error::from)
        .map_err(of("cannot become an I/O flusher (CAP_SYS_RESOURCE)"))
        .and_then(|()| {
            fs::write("/proc/self/oom_score_adj", NEVER).map_err(of("cannot change /proc/self/oom_score_adj"))
        });
    match first {
        Err(error) if may_stall => {
            tracing::info!("{error}: it was said that it may stall");
            Ok(())
        }
        first => first,
    }
}

fn start(device: Arc<OwnedFd>, memory: &Arc<dyn Memory>, size_bytes: u64) -> io::Result<Vec<JoinHandle<()>>> {
    let spawn = |number| {
        let (device, memory) = (Arc::clone(&device), Arc::clone(memory));
        let counters = OfThread::new(number);
        let run = move || serve_one_file(&device, &*memory, size_bytes, |transfer| counters.count(transfer));
        std::thread::Builder::new().name(format!("pager-{number}")).spawn(run)
    };
    (0..THREADS).map(spawn).collect()
}
