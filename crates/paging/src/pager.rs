//! The pager: a process of its own that answers what the kernel asks of the file, from memory nodes.
//!
//! The kernel may ask because it has no memory left. So all memory of the pager is locked, and what it still asks of the
//! kernel never waits for pages to be written out, by itself of all processes (PR_SET_IO_FLUSHER).

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_files::{ask_again, serve_one_file};
use farcall_link::os_random;
use farcall_membership::{Directory, Joining, NODES_MAX};
use farcall_memory::{ClientConfig, IoError, OpenError, PAGE_BYTES, RemoteMemory};
use farcall_stats::Block;
use farcall_verbs::Provider;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;
use thiserror::Error;

use crate::block_counters::{OfThread, REPLICAS, Replicas, tell};
use crate::kept;
use crate::place::{Config, Place};
use crate::swap::{header, is_header};
use crate::undo::undo;

/// Requests that are worked on at once: each waits for memory nodes.
const THREADS: usize = 8;
/// How often counters are told how replicas stand.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// What tells the keeper that pages are served.
const READY: &[u8] = b"ready\n";
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

fn of(what: &'static str) -> impl Fn(io::Error) -> PagerError {
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
    let memory = Arc::new(open(&config, provider, kept)?);
    if begin(&config, &memory)? == Begun::Before {
        ask_again(&device).map_err(of("cannot have the kernel ask again (Linux 6.9)"))?;
    }
    let joining = join(&config, &memory)?;
    let threads = start(Arc::new(device), &memory, config.size_bytes).map_err(of("cannot start threads"))?;
    (&keeper).write_all(READY).map_err(of("the keeper is gone"))?;
    keeper.set_read_timeout(Some(STATUS_EVERY)).map_err(of("cannot wait for the keeper"))?;
    let replicas = Block::<Replicas>::new(&format!("{REPLICAS} {}", place.keeper()), 0);
    while threads.iter().any(|thread| !thread.is_finished()) {
        tell(&replicas, &memory.status());
        if is_gone(&keeper) {
            tracing::error!(keeper = place.keeper(), "the keeper is gone: the program and its swap area end");
            for left in undo(place).err().unwrap_or_default() {
                tracing::error!("left behind: {left}");
            }
            break;
        }
    }
    drop(joining);
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

/// Opens the memory: that of the last pager, if it has kept something.
fn open(config: &Config, provider: Arc<dyn Provider>, kept: Option<File>) -> Result<RemoteMemory, OpenError> {
    let config = ClientConfig {
        name: format!("page {}", std::process::id()),
        nodes: config.nodes.iter().map(ToString::to_string).collect(),
        nodes_max: if config.directory.is_some() { NODES_MAX } else { 0 },
        size_bytes: config.size_bytes,
        replicas: config.replicas.into(),
        slab_bytes: config.slab_bytes,
        // The kernel asks for many pages together, and a thread that polls on while it does has them sooner.
        callers_drive: false,
        ..ClientConfig::default()
    };
    match kept {
        Some(kept) => RemoteMemory::resume(provider, config, kept),
        None => RemoteMemory::open(provider, config),
    }
}

/// Has nodes join that register later.
fn join(config: &Config, memory: &Arc<RemoteMemory>) -> Result<Option<Joining>, PagerError> {
    let Some(directory) = &config.directory else { return Ok(None) };
    let parsed = directory.parse::<Directory>().map_err(io::Error::other);
    let joining = parsed.and_then(|directory| Joining::start(directory, memory));
    joining.map(Some).map_err(of("cannot look for memory nodes"))
}

/// When the memory became a swap area.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    Now,
    /// By an earlier pager.
    Before,
}

/// Makes the memory a swap area, if it is none yet, with all of its slabs: who has no room says so now. The header is
/// written last.
fn begin(config: &Config, memory: &RemoteMemory) -> Result<Begun, PagerError> {
    let mut first = [0; PAGE_BYTES];
    memory.read(0, &mut first)?;
    if is_header(&first) {
        return Ok(Begun::Before);
    }
    let slab_bytes = usize::try_from(config.slab_bytes).unwrap_or(usize::MAX);
    for at in (0..config.size_bytes).step_by(slab_bytes).skip(1) {
        memory.write(at, &[0])?;
    }
    let uuid = os_random().map_err(of("no random number"))?;
    memory.write(0, &header(config.size_bytes, uuid))?;
    Ok(Begun::Now)
}

fn start(
    device: Arc<OwnedFd>,
    memory: &Arc<RemoteMemory>,
    size_bytes: u64,
) -> io::Result<Vec<JoinHandle<()>>> {
    let spawn = |number| {
        let (device, memory) = (Arc::clone(&device), Arc::clone(memory));
        let counters = OfThread::new(number);
        let run = move || serve_one_file(&device, &*memory, size_bytes, |transfer| counters.count(transfer));
        std::thread::Builder::new().name(format!("pager-{number}")).spawn(run)
    };
    (0..THREADS).map(spawn).collect()
}
