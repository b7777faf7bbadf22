//! Resources of a process, to verify that it releases them.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::{LOST, pair};

/// Descriptors, mappings of segments, memory of its own segments, threads.
pub struct Holdings {
    pub descriptors: Vec<String>,
    pub mappings: Vec<String>,
    pub memory_bytes: u64,
    pub threads: usize,
}

impl Holdings {
    pub fn now() -> Self {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            // The process that a pidfd refers to.
            let info = format!("/proc/self/fdinfo/{}", entry.file_name().display());
            let info = std::fs::read_to_string(info).unwrap_or_default();
            let pid = info.lines().find(|line| line.starts_with("Pid:")).unwrap_or_default();
            format!("{} → {} {pid}", entry.file_name().display(), target.display())
        });
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            descriptors: descriptors.collect(),
            mappings: maps.lines().filter(|line| line.contains("memfd:farcall")).map(Into::into).collect(),
            memory_bytes: memory_bytes(),
            threads: std::fs::read_dir("/proc/self/task").unwrap().count(),
        }
    }

    /// Like [`Holdings::now`], after everything that a process creates at first use exists: the service thread, and the
    /// connection to itself, which is used by queue pairs that are both its own.
    pub fn at_rest() -> Self {
        drop(pair());
        Self::now()
    }

    /// Returns whether there is more of any resource than before, with `more` descriptors and mappings permitted in
    /// addition. (There may be less, because of what the service thread had not closed then.)
    fn exceeds(&self, before: &Self, more: (usize, usize)) -> bool {
        self.descriptors.len() > before.descriptors.len() + more.0
            || self.mappings.len() > before.mappings.len() + more.1
            || self.threads > before.threads
    }

    /// Waits until there is no more than this, regardless of what the service thread still has to close; `meanwhile` is
    /// called repeatedly.
    pub fn wait_for(&self, meanwhile: impl FnMut()) {
        self.wait_for_about((0, 0), meanwhile);
    }

    /// Like [`Holdings::wait_for`], with the given numbers of additional descriptors and mappings permitted.
    pub fn wait_for_about(&self, more: (usize, usize), mut meanwhile: impl FnMut()) {
        let start = Instant::now();
        loop {
            let now = Self::now();
            if !now.exceeds(self, more) {
                return;
            }
            assert!(start.elapsed() < LOST, "not given back:\n{now}\nbefore:\n{self}");
            meanwhile();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the memory of the memfds that this process has open.
fn memory_bytes() -> u64 {
    let mut memfds: Vec<(u64, u64)> = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let is_ours = target.to_string_lossy().starts_with("/memfd:farcall");
        if let (true, Ok(file)) = (is_ours, std::fs::metadata(entry.path())) {
            memfds.push((file.ino(), file.blocks() * 512));
        }
    }
    memfds.sort_unstable();
    memfds.dedup_by_key(|(inode, _)| *inode);
    memfds.iter().map(|(_, bytes)| bytes).sum()
}

impl fmt::Display for Holdings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} threads, process {}", self.threads, std::process::id())?;
        self.descriptors.iter().chain(&self.mappings).try_for_each(|line| writeln!(f, "{line}"))
    }
}
