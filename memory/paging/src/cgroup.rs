//! A cgroup with a memory limit, version 1 or 2 (cgroups(7)).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farcall_files::mounts;
use rustix::process::{Pid, Signal, kill_process};

/// Maximum number of passes that search for new processes.
const PASSES: usize = 1_000;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Version of the memory controller's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    One,
    Two,
}

/// The hierarchy in which cgroups with a memory controller are created.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    root: PathBuf,
    version: Version,
}

impl Hierarchy {
    /// Returns the hierarchy of this machine; `None` if it has none.
    ///
    /// # Errors
    /// Returns an error if the list of mounts cannot be read.
    pub fn find() -> io::Result<Option<Self>> {
        let mounts = mounts()?;
        let has_memory = |list: &str, separator: char| list.split(separator).any(|name| name == "memory");
        let one = mounts.iter().find(|m| m.kind == "cgroup" && has_memory(&m.options, ','));
        if let Some(mounted) = one {
            return Ok(Some(Self { root: mounted.at.clone(), version: Version::One }));
        }
        let two = mounts.into_iter().find(|mounted| {
            let controllers = fs::read_to_string(mounted.at.join("cgroup.controllers")).unwrap_or_default();
            mounted.kind == "cgroup2" && has_memory(controllers.trim_end(), ' ')
        });
        Ok(two.map(|mounted| Self { root: mounted.at, version: Version::Two }))
    }

    /// Returns whether the kernel accounts swap: otherwise the limit of a cgroup causes no swapping.
    pub fn counts_swap(&self) -> bool {
        match self.version {
            Version::One => self.root.join("memory.memsw.usage_in_bytes").exists(),
            // In version 2 the root has no such file. Its children have it in a kernel that accounts swap, which is
            // the default.
            Version::Two => {
                fs::read_to_string("/proc/cmdline").is_ok_and(|line| !line.contains("swapaccount=0"))
            }
        }
    }

    /// Returns the cgroup of this name, which may or may not exist.
    pub fn cgroup(&self, name: &str) -> Cgroup {
        Cgroup { path: self.root.join(name), version: self.version }
    }
}

/// One cgroup.
#[derive(Clone, Debug)]
pub struct Cgroup {
    path: PathBuf,
    version: Version,
}

impl Cgroup {
    /// Creates the cgroup with a limit of resident memory.
    ///
    /// # Errors
    /// Returns an error if it exists, or if the kernel rejects it.
    pub fn create(&self, limit_bytes: u64) -> io::Result<()> {
        if let (Version::Two, Some(root)) = (self.version, self.path.parent()) {
            fs::write(root.join("cgroup.subtree_control"), "+memory")?;
        }
        fs::create_dir(&self.path)?;
        fs::write(self.limit_file(), limit_bytes.to_string())
    }

    fn limit_file(&self) -> PathBuf {
        self.path.join(match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        })
    }

    /// Returns the file to which processes are written to move them into the cgroup.
    pub fn processes_file(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Returns whether the cgroup exists.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Returns the directory of the cgroup.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn processes(&self) -> BTreeSet<i32> {
        let text = fs::read_to_string(self.processes_file()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()
    }

    /// Sends SIGKILL to all processes of the cgroup. They execute no further instruction in user mode, but may still
    /// exist.
    pub fn kill_all(&self) {
        let mut killed = BTreeSet::new();
        for _ in 0..PASSES {
            // A process with a pending SIGKILL creates no child, so the loop terminates.
            let fresh: Vec<i32> = self.processes().difference(&killed).copied().collect();
            if fresh.is_empty() {
                return;
            }
            for pid in fresh {
                if let Some(process) = Pid::from_raw(pid) {
                    // The process may have exited in the meantime.
                    let _ = kill_process(process, Signal::KILL);
                }
                killed.insert(pid);
            }
        }
    }

    /// Waits until the cgroup has no processes. Returns `false` if that takes longer than `patience`.
    pub fn wait_until_empty(&self, patience: Duration) -> bool {
        let begun = Instant::now();
        while !self.processes().is_empty() {
            if begun.elapsed() > patience {
                return false;
            }
            self.kill_all();
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Removes the limit, so that pages that remain in swap can be read back.
    ///
    /// # Errors
    /// Returns an error if the kernel rejects it.
    pub fn lift_limit(&self) -> io::Result<()> {
        let all = match self.version {
            Version::One => "-1",
            Version::Two => "max",
        };
        fs::write(self.limit_file(), all)
    }

    /// Removes the cgroup if it exists.
    ///
    /// # Errors
    /// Returns an error if it contains processes.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns the resident memory in bytes.
    pub fn resident_bytes(&self) -> Option<u64> {
        let name = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        fs::read_to_string(self.path.join(name)).ok()?.trim_end().parse().ok()
    }

    /// Returns the number of processes that the kernel killed for lack of memory; `None` if the kernel does not report
    /// it.
    pub fn oom_kills(&self) -> Option<u64> {
        let name = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.path.join(name)).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
    }

    /// Returns the number of major faults, for which a page had to be read.
    pub fn major_faults(&self) -> Option<u64> {
        let text = fs::read_to_string(self.path.join("memory.stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("pgmajfault ")?.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_how_many_processes_the_kernel_killed() {
        let path = std::env::temp_dir().join(format!("farcall-oom-kills-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let cgroup = |version| Cgroup { path: path.clone(), version };
        assert_eq!(cgroup(Version::Two).oom_kills(), None);
        fs::write(path.join("memory.events"), "low 0\noom 3\noom_kill 2\noom_group_kill 0\n").unwrap();
        fs::write(path.join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n").unwrap();
        assert_eq!(cgroup(Version::Two).oom_kills(), Some(2));
        assert_eq!(cgroup(Version::One).oom_kills(), Some(4));
        fs::remove_dir_all(&path).unwrap();
    }
}
