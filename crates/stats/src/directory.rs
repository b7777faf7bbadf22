//! Where statistics files are, and what is done about old ones.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use thiserror::Error;

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

/// The name of a process's file. The start time tells a reused pid apart.
pub(crate) fn file_name(pid: u32, start_ticks: u64) -> String {
    format!("{pid}-{start_ticks}.stats")
}

/// Start time of a process in clock ticks since boot; 0 if it is gone.
pub(crate) fn start_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may contain anything; fields are counted behind its closing parenthesis.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields.split_whitespace().nth(19).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Removes files of processes that have been dead for long, and of all but the newest dead: they hold memory.
pub(crate) fn tidy(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut dead: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| is_of_the_dead(entry.file_name().to_str()))
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

/// Whether a file is the statistics of a process that has ended.
fn is_of_the_dead(name: Option<&str>) -> bool {
    let owner = name.and_then(|name| name.strip_suffix(".stats")?.split_once('-'));
    matches!(owner.map(|(pid, start)| (pid.parse(), start.parse::<u64>())),
        Some((Ok(pid), Ok(start))) if start_ticks(pid) != start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_of_the_dead_are_kept_and_the_living_always() {
        let directory = std::env::temp_dir().join(format!("farcall-tidy-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let living = directory.join(file_name(std::process::id(), start_ticks(std::process::id())));
        std::fs::write(&living, b"").unwrap();
        // No process has so large a pid.
        for i in 0..KEPT_FILES as u32 + 10 {
            std::fs::write(directory.join(file_name(u32::MAX - i, 1)), b"").unwrap();
        }
        std::fs::write(directory.join("of somebody else"), b"").unwrap();
        tidy(&directory);
        assert!(living.exists() && directory.join("of somebody else").exists());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), KEPT_FILES + 2);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
