//! A cgroup with a limit of memory, of version 1 or 2 (cgroups(7)).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farcall_files::mounts;
use rustix::process::{Pid, Signal, kill_process};

/// How often processes are looked for that were not there before.
const PASSES: usize = 1_000;
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Which interface the machine has for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    One,
    Two,
}

/// Where cgroups with a memory controller are made.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    root: PathBuf,
    version: Version,
}

impl Hierarchy {
    /// The machine's; `None` if it has none.
    ///
    /// # Errors
    /// If mounts cannot be read.
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

    /// Whether it counts what is swapped: without that nothing of a cgroup is swapped by its limit.
    pub fn counts_swap(&self) -> bool {
        match self.version {
            Version::One => self.root.join("memory.memsw.usage_in_bytes").exists(),
            // The root of version 2 has no such file; its children have it, and so has a kernel with that counting.
            Version::Two => {
                fs::read_to_string("/proc/cmdline").is_ok_and(|line| !line.contains("swapaccount=0"))
            }
        }
    }

    /// One of a name: it may be there or not.
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
    /// Makes it, with a limit of resident memory.
    ///
    /// # Errors
    /// If it is there, or the system refuses.
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

    /// The file that takes processes.
    pub fn processes_file(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Whether it is there.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn processes(&self) -> BTreeSet<i32> {
        let text = fs::read_to_string(self.processes_file()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()
    }

    /// Sends SIGKILL to all its processes: none of them executes an instruction after that. They may still be there.
    pub fn kill_all(&self) {
        let mut killed = BTreeSet::new();
        for _ in 0..PASSES {
            // Who has a signal to die by makes no child any more: this ends.
            let fresh: Vec<i32> = self.processes().difference(&killed).copied().collect();
            if fresh.is_empty() {
                return;
            }
            for pid in fresh {
                if let Some(process) = Pid::from_raw(pid) {
                    // It may have ended by itself.
                    let _ = kill_process(process, Signal::KILL);
                }
                killed.insert(pid);
            }
        }
    }

    /// Waits until no process is there. Returns whether that came to be.
    pub fn wait_until_empty(&self, patience: Duration) -> bool {
        let begun = Instant::now();
        while !self.processes().is_empty() {
            if begun.elapsed() > patience {
                return false;
            }
            self.kill_all();
            std::thread::sleep(LOOK_AGAIN);
        }
        true
    }

    /// From now on it has no limit: what is left of it can come back from swap.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn lift_limit(&self) -> io::Result<()> {
        let all = match self.version {
            Version::One => "-1",
            Version::Two => "max",
        };
        fs::write(self.limit_file(), all)
    }

    /// Removes it; nothing if it is not there.
    ///
    /// # Errors
    /// If processes are there.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    /// Memory that is resident now.
    pub fn resident_bytes(&self) -> Option<u64> {
        let name = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        fs::read_to_string(self.path.join(name)).ok()?.trim_end().parse().ok()
    }

    /// Processes of it that the kernel killed for lack of memory; `None` if it does not say.
    pub fn oom_kills(&self) -> Option<u64> {
        let name = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.path.join(name)).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
    }

    /// Major faults so far: pages that were waited for.
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
