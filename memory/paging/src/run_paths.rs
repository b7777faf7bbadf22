//! Names of the resources of a run. They are derived from the supervisor's process id alone, so that cleanup needs no
//! other information. The run's record contains the configuration for the pager and for `farcall page status`;
//! supervisor and pager hold a lock on it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farcall_files::ONE_FILE_NAME;
use farcall_memory::SpaceStatus;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Accessible to root only, and on a file system that is empty after a restart of the machine, like all other
/// resources of a run.
const DIRECTORY: &str = "/run/farcall-page";
const VERSION: u32 = 2;
const RECORD_BYTES_MAX: u64 = 1 << 20;

/// Configuration of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Version of this format.
    pub version: u32,
    /// Memory nodes; if empty, the pager stores the pages itself, as a baseline for measurements.
    pub nodes: Vec<SocketAddr>,
    /// Directory where further nodes register (`farcall_memory::membership::Directory`).
    pub directory: Option<String>,
    /// Number of replicas of each page.
    pub replicas: u8,
    /// Size of the swap area in bytes.
    pub size_bytes: u64,
    /// Size in bytes of the slabs that are requested from nodes.
    pub slab_bytes: u64,
    /// Limit of the program's resident memory in bytes.
    pub resident_bytes: u64,
    /// `true` if the run may start although the kernel does not give the pager's own memory allocations precedence.
    pub may_stall: bool,
    /// The program, for display.
    pub program: String,
}

impl Config {
    /// The format version that this build writes.
    pub const VERSION: u32 = VERSION;
}

/// Report of the pager when it begins to serve pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Number of slabs of the swap area.
    pub slabs: usize,
    /// Number of slabs with fewer replicas than configured, because the memory nodes lack capacity.
    pub degraded: usize,
}

impl Ready {
    pub(crate) const fn of(status: &SpaceStatus) -> Self {
        Self { slabs: status.extents, degraded: status.degraded }
    }
}

/// Names of the resources of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPaths {
    supervisor: u32,
}

impl RunPaths {
    /// Returns the names of the run of a supervisor process.
    pub const fn of(supervisor: u32) -> Self {
        Self { supervisor }
    }

    /// Returns the process id of the supervisor.
    pub const fn supervisor(self) -> u32 {
        self.supervisor
    }

    fn record(self) -> PathBuf {
        Path::new(DIRECTORY).join(self.supervisor.to_string())
    }

    /// Returns the mount point of the file system.
    pub fn mount(self) -> PathBuf {
        Path::new(DIRECTORY).join(format!("{}.mount", self.supervisor))
    }

    /// Returns the file below the loop device.
    pub fn file(self) -> PathBuf {
        self.mount().join(ONE_FILE_NAME)
    }

    /// Returns the name of the cgroup.
    pub fn cgroup(self) -> String {
        format!("farcall-page-{}", self.supervisor)
    }

    /// Begins a run: writes and locks its record, and creates its mount point.
    pub fn create(self, config: &Config) -> io::Result<RunLock> {
        make_directory()?;
        // Written under a temporary name first, so that no process finds a record that is not locked yet.
        let temporary = Path::new(DIRECTORY).join(format!(".{}", self.supervisor));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        file.write_all(&serde_json::to_vec(config)?)?;
        fs::rename(&temporary, self.record())?;
        DirBuilder::new().mode(0o700).create(self.mount())?;
        Ok(RunLock { _record: file })
    }

    /// Adds this process's lock on the record to that of the supervisor, and reads the configuration.
    pub fn join(self) -> io::Result<(RunLock, Config)> {
        let file = File::open(self.record())?;
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        let config = read_record(&file)?;
        Ok((RunLock { _record: file }, config))
    }

    /// Returns the configuration.
    pub fn config(self) -> io::Result<Config> {
        read_record(&File::open(self.record())?)
    }

    /// Locks the record if no other process does; returns `None` otherwise.
    pub fn try_lock(self) -> io::Result<Option<RunLock>> {
        let file = match File::open(self.record()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(RunLock { _record: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the mount point and the record, as the last step of cleanup.
    pub fn remove(self) -> io::Result<()> {
        for gone in [fs::remove_dir(self.mount()), fs::remove_file(self.record())] {
            match gone {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A lock on the record of a run: no other process cleans it up in the meantime.
#[derive(Debug)]
pub struct RunLock {
    _record: File,
}

/// A run whose processes have exited.
#[derive(Debug)]
pub struct StaleRun {
    /// Names of its resources.
    pub paths: RunPaths,
    /// Lock: no other process cleans it up.
    _lock: RunLock,
}

fn read_record(file: &File) -> io::Result<Config> {
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut bytes)?;
    let config: Config = serde_json::from_slice(&bytes)?;
    if config.version != VERSION {
        let why = format!("its record has version {}; this build knows {VERSION}", config.version);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(config)
}

fn make_directory() -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(DIRECTORY)?;
    let owner = fs::metadata(DIRECTORY)?;
    if owner.uid() != rustix::process::geteuid().as_raw() || owner.mode() & 0o077 != 0 {
        let why = format!("{DIRECTORY} is another's, or others may go there");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// Returns all runs, active or left over.
pub fn all_runs() -> io::Result<Vec<RunPaths>> {
    let directory = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        directory => directory?,
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(directory.filter_map(name).map(RunPaths::of).collect())
}

/// Returns the runs whose processes have exited.
pub fn stale_runs() -> io::Result<Vec<StaleRun>> {
    let lock = |paths: RunPaths| {
        let lock = paths.try_lock().transpose()?;
        Some(lock.map(|lock| StaleRun { paths, _lock: lock }))
    };
    all_runs()?.into_iter().filter_map(lock).collect()
}
