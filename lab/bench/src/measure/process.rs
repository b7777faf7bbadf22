//! Resources of a process: CPU time, descriptors and memory, read from the system without its cooperation.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

/// Error of reading a figure of a process.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// A file under /proc could not be read.
    #[error("cannot read {path} (the process may have ended, or belong to another user)")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of reading it.
        source: io::Error,
    },
    /// The process's CPU clock cannot be read.
    #[error("cannot read the CPU clock of process {pid} (it may have ended)")]
    Clock {
        /// Process id.
        pid: u32,
        /// Error of the system call.
        source: io::Error,
    },
}

/// Returns the user and system time of process `pid` so far, summed over all its threads, including those that have
/// exited. It is read from the process's CPU clock, which has a resolution of nanoseconds. A running thread other than
/// the caller is counted up to its last timer tick.
///
/// # Errors
/// Returns an error if the process has exited or may not be observed.
pub fn cpu_time(pid: u32) -> Result<Duration, ProcessError> {
    let failed = |source| ProcessError::Clock { pid, source };
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a live local variable that the call writes; a pid that does not exist is reported by the
    // return value.
    let code = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
    if code != 0 {
        return Err(failed(io::Error::from_raw_os_error(code)));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live local variable that the call writes; an unknown clock is reported by the return value.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Measures the CPU time of one process from a start time on.
#[derive(Debug, Clone, Copy)]
pub struct CpuMeter {
    pid: u32,
    used_before: Duration,
    start: Instant,
}

impl CpuMeter {
    /// Starts to measure process `pid`.
    ///
    /// # Errors
    /// Returns an error if the process has exited or may not be observed.
    pub fn start(pid: u32) -> Result<Self, ProcessError> {
        Ok(Self { pid, used_before: cpu_time(pid)?, start: Instant::now() })
    }

    /// Returns the share of a core that the process has used since the start: 1.0 is one core fully used.
    ///
    /// # Errors
    /// Returns an error if the process has exited or may not be observed.
    pub fn core_share(&self) -> Result<f64, ProcessError> {
        let wall = self.start.elapsed();
        Ok(cpu_time(self.pid)?.saturating_sub(self.used_before).as_secs_f64() / wall.as_secs_f64().max(1e-9))
    }
}

/// Returns the number in the line `name:   number …` of a /proc file; 0 if there is no such line.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Resources held by a process: open descriptors and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Footprint {
    /// Number of open file descriptors.
    pub open_fds: u64,
    /// Resident memory that is not shared with other processes (private clean and dirty).
    pub private_bytes: u64,
}

/// Growth of a process's resources.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ResourceLeak {
    /// Descriptors were left open.
    #[error("{0} file descriptors were left open")]
    Fds(u64),
    /// Private memory grew beyond the allowance.
    #[error("private memory grew by {grown_bytes} bytes, {allowed_bytes} are allowed")]
    Memory {
        /// Growth in bytes.
        grown_bytes: u64,
        /// Growth in bytes that is attributed to the allocator.
        allowed_bytes: u64,
    },
}

/// Returns the resident memory of process `pid`, including memory shared with others, such as rings.
///
/// # Errors
/// Returns an error if the process has exited or may not be observed.
pub fn resident_bytes(pid: u32) -> Result<u64, ProcessError> {
    let path = PathBuf::from(format!("/proc/{pid}/smaps_rollup"));
    let rollup = fs::read_to_string(&path).map_err(|source| ProcessError::Read { path, source })?;
    Ok(field(&rollup, "Rss") * 1024)
}

impl Footprint {
    /// Returns the current resources of process `pid`.
    ///
    /// # Errors
    /// Returns an error if the process has exited or may not be observed.
    pub fn of(pid: u32) -> Result<Self, ProcessError> {
        let read = |name: &str| {
            let path = PathBuf::from(format!("/proc/{pid}/{name}"));
            move |source| ProcessError::Read { path, source }
        };
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).map_err(read("smaps_rollup"))?;
        let open_fds = fs::read_dir(format!("/proc/{pid}/fd")).map_err(read("fd"))?.count() as u64;
        let private_kib = field(&rollup, "Private_Clean") + field(&rollup, "Private_Dirty");
        Ok(Self { open_fds, private_bytes: private_kib * 1024 })
    }

    /// Returns the growth since `earlier`; private memory counts beyond `allowed_bytes`.
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
        let share = meter.core_share().unwrap();
        assert!(share > 0.01, "{share} of a core for five million multiplications ({x})");
    }

    #[test]
    fn another_process_is_watched_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        assert!(cpu_time(child.id()).is_ok());
        assert!(Footprint::of(child.id()).unwrap().private_bytes > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(cpu_time(child.id()).is_err());
        assert!(Footprint::of(child.id()).unwrap_err().to_string().contains("may have ended"));
    }

    #[test]
    fn leaks_are_named_and_slack_is_not_one() {
        let before = Footprint { open_fds: 5, private_bytes: 1000 };
        let after = Footprint { open_fds: 7, private_bytes: 5000 };
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
        assert_eq!(field(text, "Private_Clean"), 12);
        assert_eq!(field(text, "Rss"), 0);
    }
}
