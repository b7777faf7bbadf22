//! Checks of free memory, for allocations that take their pages now or on first use. The kernel grants more memory than
//! there is and later kills processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

/// Number of bytes allocated between two checks. A check costs more than a small segment.
const CHECK_INTERVAL_BYTES: u64 = 1 << 20;

/// Reciprocal of the part of free memory that an allocation must leave to others: the kernel counts some pages as free
/// that it can free only after some time.
const LEFT_TO_OTHERS: u64 = 16;

/// Checks whether the machine, and the control groups of this process, have `len_bytes` of free memory. Call it before
/// the allocation.
///
/// # Errors
/// Returns `ENOMEM` if they do not.
pub fn require_memory(len_bytes: u64) -> rustix::io::Result<()> {
    static UNCHECKED_BYTES: AtomicU64 = AtomicU64::new(CHECK_INTERVAL_BYTES);
    if len_bytes < CHECK_INTERVAL_BYTES
        && UNCHECKED_BYTES.fetch_add(len_bytes, Ordering::Relaxed) < CHECK_INTERVAL_BYTES
    {
        return Ok(());
    }
    match free_bytes(Path::new("/")) {
        Some(free) if len_bytes > free - free / LEFT_TO_OTHERS => Err(Errno::NOMEM),
        _ => {
            UNCHECKED_BYTES.store(0, Ordering::Relaxed);
            Ok(())
        }
    }
}

/// Returns the memory of the machine in bytes, or the smallest limit of the control groups of this process if that is
/// less; `None` if the kernel does not report it.
pub fn total_memory_bytes() -> Option<u64> {
    total_bytes(Path::new("/"))
}

/// A reservation of memory that takes its pages on first use. All reservations of a process together are at most half
/// of the memory that was free at the last reservation. The other half remains for other processes' allocations in the
/// meantime.
pub(crate) struct MemoryReservation {
    len_bytes: u64,
    all_bytes: &'static AtomicU64,
}

impl MemoryReservation {
    /// Reserves memory. Returns `None` if there is too little, if the kernel does not report it, or if the kernel does
    /// strict accounting (`vm.overcommit_memory` 2) and may fail an access. The caller must then allocate the memory.
    pub(crate) fn of(len_bytes: u64) -> Option<Self> {
        static ALL_BYTES: AtomicU64 = AtomicU64::new(0);
        let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
        let free = free_bytes(Path::new("/")).filter(|_| mode.trim() != "2")?;
        Self::within(&ALL_BYTES, free / 2, len_bytes)
    }

    fn within(all_bytes: &'static AtomicU64, limit_bytes: u64, len_bytes: u64) -> Option<Self> {
        let more = |all: u64| all.checked_add(len_bytes).filter(|sum| *sum <= limit_bytes);
        all_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self { len_bytes, all_bytes })
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.all_bytes.fetch_sub(self.len_bytes, Ordering::Relaxed);
    }
}

/// Returns the free memory according to the kernel's files below `root`; `None` if they do not contain it.
fn free_bytes(root: &Path) -> Option<u64> {
    let machine = entry(&root.join("proc/meminfo"), "MemAvailable:").map(|kib| kib << 10);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_groups = groups.lines().filter_map(|line| in_groups(root, line, free_in));
    machine.into_iter().chain(of_groups).min()
}

/// Returns the total memory according to the kernel's files below `root`.
fn total_bytes(root: &Path) -> Option<u64> {
    let machine = entry(&root.join("proc/meminfo"), "MemTotal:").map(|kib| kib << 10);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_groups = groups.lines().filter_map(|line| in_groups(root, line, limit_of));
    machine.into_iter().chain(of_groups).min()
}

/// File names of a version of control groups (cgroups(7)).
struct Version {
    mounts: &'static [&'static str],
    limit: &'static str,
    used: &'static str,
    /// Entry of `memory.stat`: page cache that the kernel frees on demand.
    reclaimable: &'static str,
}

const V1: Version = Version {
    mounts: &["sys/fs/cgroup/memory"],
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const V2: Version = Version {
    mounts: &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
    limit: "memory.max",
    used: "memory.current",
    reclaimable: "inactive_file",
};

/// Returns the smallest value of `number` over the group of a line of `/proc/self/cgroup` and all of its ancestors.
fn in_groups(root: &Path, line: &str, number: fn(&Path, &Version) -> Option<u64>) -> Option<u64> {
    let (_, line) = line.split_once(':')?;
    let (controllers, group) = line.split_once(':')?;
    let version = match controllers {
        "" => V2,
        _ if controllers.split(',').any(|name| name == "memory") => V1,
        _ => return None,
    };
    // In a container, the group's own directory is often mounted as the root of the hierarchy.
    let folders = version.mounts.iter().flat_map(|mount| {
        let group = Path::new(group.trim_start_matches('/'));
        group.ancestors().map(|group| root.join(mount).join(group)).collect::<Vec<PathBuf>>()
    });
    folders.filter_map(|folder| number(&folder, &version)).min()
}

fn number(folder: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
}

fn limit_of(folder: &Path, version: &Version) -> Option<u64> {
    number(folder, version.limit)
}

fn free_in(folder: &Path, version: &Version) -> Option<u64> {
    let (limit, used) = (number(folder, version.limit)?, number(folder, version.used)?);
    let reclaimable = entry(&folder.join("memory.stat"), version.reclaimable).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

/// Returns the number after the name `name` at the beginning of a line.
fn entry(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let mut line = lines.find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
    line.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies of the kernel's files in a directory of the test.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("farcall-free-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal: 900 kB\nMemAvailable:   100 kB\n");

    #[test]
    fn the_narrowest_of_machine_and_groups_counts() {
        let machine = Files::new("machine", &[MACHINE]);
        assert_eq!(free_bytes(&machine.0), Some(100 << 10));
        assert_eq!(total_bytes(&machine.0), Some(900 << 10));
        let v1 = Files::new(
            "v1",
            &[
                MACHINE,
                ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n"),
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "7000\n"),
                ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "3000\n"),
                ("sys/fs/cgroup/memory/a/memory.stat", "cache 9\ntotal_inactive_file 1000\n"),
                ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "3000\n"),
            ],
        );
        assert_eq!(total_bytes(&v1.0), Some(7000));
        assert_eq!(free_bytes(&v1.0), Some(5000), "the outer group's limit, less what is used for good");
        let v2 = Files::new(
            "v2",
            &[
                MACHINE,
                ("proc/self/cgroup", "0::/of/the/host\n"),
                ("sys/fs/cgroup/memory.max", "4096\n"),
                ("sys/fs/cgroup/memory.current", "5000\n"),
            ],
        );
        assert_eq!(free_bytes(&v2.0), Some(0), "a container's own group, mounted as the whole tree");
        fs::write(v2.0.join("sys/fs/cgroup/memory.max"), "max\n").unwrap();
        assert_eq!(free_bytes(&v2.0), Some(100 << 10));
        assert_eq!(free_bytes(Path::new("/nowhere")), None);
    }

    #[test]
    fn more_than_the_machine_has_is_refused_and_little_is_not() {
        for len_bytes in [1 << 50, u64::MAX] {
            assert_eq!(require_memory(len_bytes), Err(Errno::NOMEM));
        }
        for _ in 0..3000 {
            assert_eq!(require_memory(1000), Ok(()));
        }
    }

    #[test]
    fn counts_and_bounds_memory_reservations() {
        static ALL_BYTES: AtomicU64 = AtomicU64::new(0);
        let reservation = |len_bytes| MemoryReservation::within(&ALL_BYTES, 100, len_bytes);
        let first = reservation(60).unwrap();
        assert!(reservation(41).is_none() && reservation(u64::MAX).is_none());
        let second = reservation(40).unwrap();
        assert!(reservation(1).is_none());
        drop(first);
        assert!(reservation(60).is_some());
        drop(second);
        assert_eq!(ALL_BYTES.load(Ordering::Relaxed), 0);
    }
}
