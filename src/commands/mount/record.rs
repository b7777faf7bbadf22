//! Records of mounts: what `farcall umount` waits for, and `farcall mount list` shows.
//!
//! Each record is a file of the system's root user, named after the device number of its mount, and locked by the
//! process of `farcall mount` until it exits. The volume is free then.

use farcall_files::farcall_mounted_at;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DIRECTORY: &str = "/run/farcall-mount";
/// Interval between two checks for the end of a mount.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of reads of a record that is being written.
const READS_MAX: u32 = 50;

/// The record of a mount. Dropping it removes it.
pub struct Record {
    path: PathBuf,
    locked: File,
    about: About,
}

/// Contents of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Process ID of `farcall mount`.
    pub pid: u32,
    /// Directory of the mount.
    pub dir: PathBuf,
    /// Name of the volume.
    pub volume: Option<String>,
    /// Reason for which programs wait; `None` while files are served.
    pub waits_for: Option<String>,
}

impl Record {
    /// Records the file system that is mounted at a directory as served by this process.
    ///
    /// # Errors
    /// If nothing is mounted there, or the record cannot be written.
    pub fn create(dir: &Path, volume: Option<String>) -> io::Result<Self> {
        let device = farcall_mounted_at(dir)?.ok_or(io::ErrorKind::NotFound)?.device;
        DirBuilder::new().recursive(true).mode(0o755).create(DIRECTORY)?;
        let path = path_of(&device);
        let locked = File::options().write(true).create(true).truncate(false).mode(0o644).open(&path)?;
        flock(&locked, FlockOperation::NonBlockingLockExclusive)?;
        let about = About { pid: std::process::id(), dir: dir.to_owned(), volume, waits_for: None };
        let record = Self { path, locked, about };
        record.write()?;
        Ok(record)
    }

    /// Records the reason for which programs wait.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn waits_for(&mut self, waits_for: Option<String>) -> io::Result<()> {
        if self.about.waits_for == waits_for {
            return Ok(());
        }
        self.about.waits_for = waits_for;
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        let line = serde_json::to_string(&self.about)?;
        // A concurrent reader may read a part, which is not valid JSON, and then reads again.
        self.locked.set_len(0)?;
        self.locked.write_all_at(line.as_bytes(), 0)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // The lock is released when this process exits, and does not depend on the name.
        let _ = fs::remove_file(&self.path);
    }
}

fn path_of(device: &str) -> PathBuf {
    Path::new(DIRECTORY).join(device)
}

/// Waits until the process that served the mount with this device number has exited. Returns whether it did before the
/// timeout.
///
/// # Errors
/// If its record cannot be read.
pub fn wait_until_free(device: &str, timeout: Duration) -> io::Result<bool> {
    let record = match File::open(path_of(device)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        record => record?,
    };
    let begun = Instant::now();
    loop {
        match flock(&record, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if begun.elapsed() >= timeout {
            return Ok(false);
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// The mounts of this system whose processes run, by directory.
///
/// # Errors
/// If records cannot be read.
pub fn running() -> io::Result<Vec<About>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(read(&entry?.path())?);
    }
    found.sort_unstable_by(|one: &About, other| one.dir.cmp(&other.dir));
    Ok(found)
}

/// Reads a record; `None` if its process has ended.
fn read(path: &Path) -> io::Result<Option<About>> {
    for _ in 0..READS_MAX {
        let record = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            record => record?,
        };
        match flock(&record, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(None),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if let Ok(about) = serde_json::from_reader(record) {
            return Ok(Some(about));
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    Err(io::Error::other(format!("{}: not a record of a mount", path.display())))
}
