//! What a process costs: CPU time, context switches, descriptors and memory, read from the system without its help.

use serde::{Deserialize, Serialize};
use std::{fs, io, path::PathBuf, time::Duration};

/// A figure of a process could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// A file under /proc could not be read.
    #[error("cannot read {path}: {source}; the process may have ended, or belong to another user")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file under /proc has another shape than the kernel documents.
    #[error("{path} has no {what}: this kernel is not understood")]
    Shape {
        /// Which file.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
    },
    /// The process's CPU clock is not readable.
    #[error("cannot read the CPU clock of process {pid}: {source}; the process may have ended")]
    Clock {
        /// Whose clock.
        pid: u32,
        /// Why not.
        source: io::Error,
    },
}

/// CPU time a process used, over all its threads, those that ended included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuTime {
    /// User and system time together, from the process's CPU clock: exact to the nanosecond.
    pub total_ns: u64,
    /// System time alone, in clock ticks of 10 ms: coarse.
    pub system_ns: u64,
}

impl CpuTime {
    /// What process `pid` used so far.
    ///
    /// # Errors
    /// When it ended or may not be watched.
    pub fn of(pid: u32) -> Result<Self, ProcessError> {
        Ok(Self { total_ns: cpu_clock_ns(pid)?, system_ns: system_time_ns(pid)? })
    }

    /// What was used since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }

    /// Microseconds of CPU per operation; `None` without operations.
    #[must_use]
    pub fn us_per_op(self, ops: u64) -> Option<f64> {
        (ops > 0).then(|| self.total_ns as f64 / 1000.0 / ops as f64)
    }

    /// Share of one core over `wall`: 1.0 is a core kept busy.
    #[must_use]
    pub fn core_share(self, wall: Duration) -> f64 {
        self.total_ns as f64 / wall.as_nanos().max(1) as f64
    }
}

/// Measures the CPU time of one process between two moments.
#[derive(Debug, Clone, Copy)]
pub struct CpuMeter {
    pid: u32,
    start: CpuTime,
}

impl CpuMeter {
    /// Starts measuring process `pid`.
    ///
    /// # Errors
    /// When it ended or may not be watched.
    pub fn start(pid: u32) -> Result<Self, ProcessError> {
        Ok(Self { pid, start: CpuTime::of(pid)? })
    }

    /// What was used since the start.
    ///
    /// # Errors
    /// When the process ended or may not be watched.
    pub fn elapsed(&self) -> Result<CpuTime, ProcessError> {
        Ok(CpuTime::of(self.pid)?.since(self.start))
    }
}

fn cpu_clock_ns(pid: u32) -> Result<u64, ProcessError> {
    let failed = |source| ProcessError::Clock { pid, source };
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a valid place for the result; a pid that does not exist is reported by the return value.
    let code = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
    if code != 0 {
        return Err(failed(io::Error::from_raw_os_error(code)));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result; an unknown clock is reported by the return value.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn read(pid: u32, name: &str) -> Result<(PathBuf, String), ProcessError> {
    let path = PathBuf::from(format!("/proc/{pid}/{name}"));
    match fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(source) => Err(ProcessError::Read { path, source }),
    }
}

/// Field 15 of /proc/PID/stat (`stime`), see proc(5).
fn system_time_ns(pid: u32) -> Result<u64, ProcessError> {
    let (path, text) = read(pid, "stat")?;
    // The second field is the program's name in parentheses and may hold anything, so count from its end.
    text.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(12))
        .and_then(|stime| stime.parse::<u64>().ok())
        .map(|ticks| ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second()))
        .ok_or(ProcessError::Shape { path, what: "field 15, stime" })
}

/// The number in the line `name:   number …` of a /proc file.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Context switches of a process, over the threads it has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ContextSwitches {
    /// It waited for something.
    pub voluntary: u64,
    /// Its time slice ended or something more important ran.
    pub involuntary: u64,
}

impl ContextSwitches {
    /// What process `pid` has had so far.
    ///
    /// # Errors
    /// When it ended or may not be watched.
    pub fn of(pid: u32) -> Result<Self, ProcessError> {
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        let mut sum = Self::default();
        let entries = fs::read_dir(&tasks).map_err(|source| ProcessError::Read { path: tasks, source })?;
        for entry in entries.flatten() {
            // A thread may end between listing and reading.
            let Ok(text) = fs::read_to_string(entry.path().join("status")) else { continue };
            sum.voluntary += field(&text, "voluntary_ctxt_switches").unwrap_or(0);
            sum.involuntary += field(&text, "nonvoluntary_ctxt_switches").unwrap_or(0);
        }
        Ok(sum)
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

/// What a process holds: open descriptors, mappings and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Footprint {
    /// Open file descriptors.
    pub open_fds: u64,
    /// Memory mappings.
    pub mappings: u64,
    /// Memory that only this process has, resident (private clean and dirty).
    pub private_bytes: u64,
    /// All resident memory, shared pages counted in full.
    pub resident_bytes: u64,
}

/// A process holds more than before.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ResourceLeak {
    /// Descriptors were left open.
    #[error("{0} file descriptors were left open")]
    Fds(u64),
    /// Mappings were left.
    #[error("{0} memory mappings were left")]
    Mappings(u64),
    /// Private memory grew beyond the allowance.
    #[error("private memory grew by {grown_bytes} bytes, {allowed_bytes} are allowed")]
    Memory {
        /// By how much.
        grown_bytes: u64,
        /// What is put down to allocator slack.
        allowed_bytes: u64,
    },
}

impl Footprint {
    /// What process `pid` holds now.
    ///
    /// # Errors
    /// When it ended or may not be watched.
    pub fn of(pid: u32) -> Result<Self, ProcessError> {
        let (path, rollup) = read(pid, "smaps_rollup")?;
        let kib = |name| field(&rollup, name).map(|kib| kib * 1024);
        let shape = |what| ProcessError::Shape { path: path.clone(), what };
        let private_bytes = kib("Private_Clean").ok_or_else(|| shape("line Private_Clean"))?
            + kib("Private_Dirty").ok_or_else(|| shape("line Private_Dirty"))?;
        let resident_bytes = kib("Rss").ok_or_else(|| shape("line Rss"))?;
        let mappings = read(pid, "maps")?.1.lines().count() as u64;
        Ok(Self { open_fds: count_fds(pid)?, mappings, private_bytes, resident_bytes })
    }

    /// What is held more than at `earlier`, private memory beyond `allowed_bytes` of slack.
    #[must_use]
    pub fn leaks_since(self, earlier: Self, allowed_bytes: u64) -> Vec<ResourceLeak> {
        let mut leaks = Vec::new();
        if self.open_fds > earlier.open_fds {
            leaks.push(ResourceLeak::Fds(self.open_fds - earlier.open_fds));
        }
        let grown_bytes = self.private_bytes.saturating_sub(earlier.private_bytes);
        if grown_bytes > allowed_bytes {
            leaks.push(ResourceLeak::Memory { grown_bytes, allowed_bytes });
        }
        leaks
    }
}

fn count_fds(pid: u32) -> Result<u64, ProcessError> {
    let path = PathBuf::from(format!("/proc/{pid}/fd"));
    match fs::read_dir(&path) {
        // Listing one's own directory opens one more.
        Ok(entries) => Ok(entries.count() as u64 - u64::from(pid == std::process::id())),
        Err(source) => Err(ProcessError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn work_shows_up_as_cpu_time() {
        let meter = CpuMeter::start(std::process::id()).unwrap();
        let mut x = 1u64;
        for i in 0..5_000_000u64 {
            x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
        }
        let used = meter.elapsed().unwrap();
        assert!(used.total_ns > 100_000, "{used:?} after five million multiplications ({x})");
        assert!(used.us_per_op(5_000_000).unwrap() > 0.0);
        assert_eq!(used.us_per_op(0), None);
    }

    #[test]
    fn another_process_is_watched_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        assert!(CpuTime::of(child.id()).is_ok());
        assert!(ContextSwitches::of(child.id()).is_ok());
        assert!(Footprint::of(child.id()).unwrap().resident_bytes > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(CpuTime::of(child.id()).is_err());
        assert!(Footprint::of(child.id()).unwrap_err().to_string().contains("may have ended"));
    }

    #[test]
    fn leaks_are_named_and_slack_is_not_one() {
        let before = Footprint { open_fds: 5, mappings: 9, private_bytes: 1000, resident_bytes: 0 };
        let after = Footprint { open_fds: 7, mappings: 12, private_bytes: 5000, resident_bytes: 0 };
        assert_eq!(after.leaks_since(before, 4000), [ResourceLeak::Fds(2)]);
        assert_eq!(
            after.leaks_since(before, 100),
            [ResourceLeak::Fds(2), ResourceLeak::Memory { grown_bytes: 4000, allowed_bytes: 100 }]
        );
        assert_eq!(before.leaks_since(after, 0), []);
    }

    #[test]
    fn fields_are_found_by_whole_name() {
        let text = "Private_Clean_Other: 9 kB\nPrivate_Clean:       12 kB\n";
        assert_eq!(field(text, "Private_Clean"), Some(12));
        assert_eq!(field(text, "Rss"), None);
    }
}
