//! Where statistics files are, and what is done about old ones.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::retry_on_intr;
use thiserror::Error;

/// How names of our files end.
const ENDING: &str = ".stats";

/// Files of dead processes are kept so long.
const KEPT: Duration = Duration::from_hours(24);

/// And no more than so many.
const KEPT_FILES: usize = 32;

/// Why statistics cannot be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StatsError {
    /// The directory is unusable.
    #[error("statistics directory {path}: {why} (set XDG_RUNTIME_DIR to a directory of yours)")]
    Directory {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No file for the process.
    #[error(
        "process {pid} has no statistics in {path}: it is not a Farcall process of this user, or older than a day"
    )]
    NotFound {
        /// Which process.
        pid: u32,
        /// Where we looked.
        path: PathBuf,
    },
    /// A file that is not one of ours.
    #[error("{path}: not a statistics file of version 1: {why}")]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The system refused something.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The directory, private to the user: `$XDG_RUNTIME_DIR/farcall`, else `farcall-UID` in `/dev/shm` or `/tmp`. In memory if
/// possible: counters on a disk's file system would be written back for ever.
///
/// # Errors
/// If it cannot be made, is a link, or others may enter it.
pub fn directory() -> Result<PathBuf, StatsError> {
    let uid = rustix::process::geteuid().as_raw();
    let path = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(base) if !base.is_empty() => Path::new(&base).join("farcall"),
        _ if Path::new("/dev/shm").is_dir() => PathBuf::from(format!("/dev/shm/farcall-{uid}")),
        _ => PathBuf::from(format!("/tmp/farcall-{uid}")),
    };
    let fail = |why: String| StatsError::Directory { path: path.clone(), why };
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(fail(e.to_string())),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(&path).map_err(|e| fail(e.to_string()))?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o077 != 0 {
        return Err(fail("it is not a directory that only you may enter".into()));
    }
    Ok(path)
}

/// The name of a process's file. The start time tells a reused pid apart; the namespace tells containers apart that share the
/// directory: in each of them the first process is 1, and two may begin in one tick.
pub(crate) fn file_name(pid: u32, start_ticks: u64) -> String {
    format!("{pid}-{start_ticks}{}", suffix())
}

/// How names of files end in this pid namespace.
pub(crate) fn suffix() -> String {
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino());
    format!("-{namespace}{ENDING}")
}

/// Start time of a process in clock ticks since boot; 0 if it is gone.
pub(crate) fn start_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may contain anything; fields are counted behind its closing parenthesis.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields.split_whitespace().nth(19).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Makes a file that nobody else has mapped, and locks it for as long as it stays open: the lock tells everybody, in whatever
/// namespace, that its process lives. What a dead process left under the name goes; its readers keep what they have.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = options.open(path).or_else(|error| {
        if error.kind() != io::ErrorKind::AlreadyExists || !is_of_the_dead(path) {
            return Err(error);
        }
        std::fs::remove_file(path)?;
        options.open(path)
    })?;
    // Waits for those who look whether it is locked.
    retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    Ok(file)
}

/// Removes files of processes that have been dead for long, and of all but the newest dead: they hold memory.
pub(crate) fn tidy(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut dead: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.ends_with(ENDING)))
        .filter(|entry| is_of_the_dead(&entry.path()))
        .filter_map(|entry| Some((entry.metadata().and_then(|meta| meta.modified()).ok()?, entry.path())))
        .collect();
    dead.sort_unstable_by_key(|(modified, _)| std::cmp::Reverse(*modified));
    for (at, (modified, path)) in dead.iter().enumerate() {
        let is_old = SystemTime::now().duration_since(*modified).is_ok_and(|age| age > KEPT);
        if at >= KEPT_FILES || is_old {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a file is the statistics of a process that has ended: nobody holds its lock.
fn is_of_the_dead(path: &Path) -> bool {
    // Not to wait for somebody's pipe.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("farcall-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn only_the_newest_of_the_dead_are_kept_and_the_living_always() {
        let directory = folder("tidy");
        let path = directory.join(file_name(std::process::id(), start_ticks(std::process::id())));
        let living = create(&path).unwrap();
        // Its pid says nothing in another container: the first process of each is 1.
        let elsewhere = create(&directory.join("1-1-1.stats")).unwrap();
        for i in 0..KEPT_FILES as u32 + 10 {
            std::fs::write(directory.join(file_name(u32::MAX - i, 1)), b"").unwrap();
        }
        std::fs::write(directory.join("of somebody else"), b"").unwrap();
        tidy(&directory);
        assert!(path.exists() && directory.join("of somebody else").exists());
        assert!(directory.join("1-1-1.stats").exists());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), KEPT_FILES + 3);
        drop((living, elsewhere));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// Whoever has a file mapped would die of its being cut.
    #[test]
    fn a_file_of_the_living_is_left_alone_and_one_of_the_dead_is_replaced() {
        let directory = folder("create");
        let path = directory.join("1-2-3.stats");
        let first = create(&path).unwrap();
        first.set_len(9).unwrap();
        assert_eq!(create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(first.metadata().unwrap().len(), 9);
        let still_mapped = File::open(&path).unwrap();
        drop(first);
        let second = create(&path).unwrap();
        assert_eq!((still_mapped.metadata().unwrap().len(), second.metadata().unwrap().len()), (9, 0));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
