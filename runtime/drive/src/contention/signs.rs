//! Signs of contention that the kernel reports in files. No file stays open: samples are rare, and descriptors belong
//! to the program.

use std::fs::{File, read_to_string};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of bytes read from a file.
const READ_BYTES_MAX: usize = 1_024;

/// Reads the beginning of a file and passes it to `parse` as text.
fn with_text<T>(path: &Path, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let mut bytes = [0; READ_BYTES_MAX];
    let len = File::open(path).ok()?.read_at(&mut bytes, 0).ok()?;
    let bytes = &bytes[..len];
    // The read may end within a character.
    let text = std::str::from_utf8(bytes).or_else(|error| std::str::from_utf8(&bytes[..error.valid_up_to()]));
    parse(text.ok()?)
}

/// Runnable threads and processors of the machine.
pub(super) struct Runnable {
    cores: usize,
}

impl Runnable {
    pub fn open() -> Option<Self> {
        let cores = read_to_string("/proc/stat").ok()?.lines().filter(|line| is_core(line)).count();
        (cores > 0).then_some(Self { cores })
    }

    /// Returns the number of runnable and running threads, including the caller, and the number of online processors.
    pub fn read(&self) -> Option<(usize, usize)> {
        Some((with_text(Path::new("/proc/loadavg"), runnable_in)?, self.cores))
    }
}

/// Returns whether a line of /proc/stat describes one processor: "cpu0 …".
fn is_core(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
}

/// Parses /proc/loadavg: "0.20 0.18 0.12 1/80 11206".
fn runnable_in(loadavg: &str) -> Option<usize> {
    loadavg.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// Time and number of a thread's waits for a processor since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) struct RunDelay {
    pub ns: u64,
    pub count: u64,
}

impl RunDelay {
    /// Reads the run delay of the calling thread; `None` if the kernel does not report it.
    pub fn of_this_thread() -> Option<Self> {
        with_text(Path::new("/proc/thread-self/schedstat"), Self::parse)
    }

    /// Parses /proc/thread-self/schedstat: nanoseconds running, nanoseconds waiting, and number of time slices. All
    /// are 0 if the kernel does not count.
    fn parse(schedstat: &str) -> Option<Self> {
        let mut numbers = schedstat.split_ascii_whitespace().map(|number| number.parse::<u64>().ok());
        let (ran_ns, ns, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        (ran_ns > 0).then_some(Self { ns, count })
    }
}

/// Time during which the hypervisor ran other guests although a processor of this machine had work.
pub(super) struct Steal {
    last: Times,
}

/// Clock ticks of all processors together since the start of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    all: u64,
    stolen: u64,
}

impl Steal {
    pub fn open() -> Option<Self> {
        times().map(|last| Self { last })
    }

    /// Returns whether the hypervisor took at least one in `share` of the time since the last call.
    pub fn took_share(&mut self, share: u32) -> bool {
        let Some(times) = times() else { return false };
        let last = std::mem::replace(&mut self.last, times);
        is_share(times.stolen.saturating_sub(last.stolen), times.all.saturating_sub(last.all), share)
    }
}

fn times() -> Option<Times> {
    with_text(Path::new("/proc/stat"), times_in)
}

const fn is_share(stolen: u64, all: u64, share: u32) -> bool {
    stolen > 0 && stolen.saturating_mul(share as u64) >= all
}

/// Parses the first line of /proc/stat: "cpu  user nice system idle iowait irq softirq steal …".
fn times_in(stat: &str) -> Option<Times> {
    let mut numbers = [0; 8];
    let mut words = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    for number in &mut numbers {
        *number = words.next()?.parse().ok()?;
    }
    Some(Times { all: numbers.iter().sum(), stolen: numbers[7] })
}

/// A processor-time quota of the control group, and the number of periods in which it was exhausted.
pub(super) struct Quota {
    stat: PathBuf,
    used_up: u64,
}

impl Quota {
    /// Opens the quota of the innermost control group of this process that has one; `None` if none has.
    pub fn open() -> Option<Self> {
        let groups = read_to_string("/proc/self/cgroup").ok()?;
        places_of(&groups).into_iter().find_map(|(root, group)| Self::below(&root, &group))
    }

    /// Searches from a control group to the root of its hierarchy. In a container the path of the host's group does
    /// not exist, and the root is that of the container.
    fn below(root: &Path, group: &Path) -> Option<Self> {
        group.ancestors().find_map(|group| {
            let directory = root.join(group);
            let limit = |name| read_to_string(directory.join(name)).ok();
            let has_quota = limit("cpu.max").is_some_and(|max| !max.starts_with("max"))
                || limit("cpu.cfs_quota_us").is_some_and(|quota| !quota.starts_with('-'));
            let stat = directory.join("cpu.stat");
            let used_up = with_text(&stat, used_up_in).filter(|_| has_quota)?;
            Some(Self { stat, used_up })
        })
    }

    /// Returns whether the quota was exhausted since the last call.
    pub fn was_used_up(&mut self) -> bool {
        let Some(used_up) = with_text(&self.stat, used_up_in) else { return false };
        std::mem::replace(&mut self.used_up, used_up) != used_up
    }
}

/// Parses /proc/self/cgroup: "0::/a" for the unified hierarchy, "4:cpu,cpuacct:/a" for version 1. Returns the mount
/// points of the hierarchies, each with the group below it.
fn places_of(groups: &str) -> Vec<(PathBuf, PathBuf)> {
    let mut places = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let group = PathBuf::from(group.trim_start_matches('/'));
        if controllers.is_empty() {
            places.push((PathBuf::from("/sys/fs/cgroup"), group));
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            for mount in ["cpu", controllers] {
                places.push((Path::new("/sys/fs/cgroup").join(mount), group.clone()));
            }
        }
    }
    places
}

/// Parses cpu.stat: "nr_throttled 12".
fn used_up_in(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok())
}

/// Returns the number of runnable and running threads, including the caller, minus the number of processors, as a mean
/// of `samples` samples; `None` if the kernel does not report them.
pub fn excess_threads(samples: u32, pause: Duration) -> Option<f64> {
    let runnable = Runnable::open()?;
    let (mut threads, mut cores, start) = (0, 0, Instant::now());
    for sample in 0..samples.max(1) {
        // At equal intervals from the start, independent of the duration of a sample.
        std::thread::sleep((pause * sample).saturating_sub(start.elapsed()));
        let read = runnable.read()?;
        threads += read.0;
        cores += read.1;
    }
    Some((threads as f64 - cores as f64) / f64::from(samples.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_runnable_threads_and_cores() {
        assert_eq!(runnable_in("0.20 0.18 0.12 17/80 11206\n"), Some(17));
        assert_eq!(runnable_in("garbage"), None);
        assert!(is_core("cpu12 1 2 3") && !is_core("cpu  1 2 3") && !is_core("ctxt 5"));
        if let Some((threads, cores)) = Runnable::open().and_then(|runnable| runnable.read()) {
            assert!(threads >= 1 && cores >= 1, "this thread runs");
        }
    }

    #[test]
    fn reads_the_run_delay_where_it_is_counted() {
        assert_eq!(RunDelay::parse("137611 2110046 2\n"), Some(RunDelay { ns: 2_110_046, count: 2 }));
        for text in ["0 0 0\n", "5", "", "a b c", "1 2"] {
            assert_eq!(RunDelay::parse(text), None, "{text:?}");
        }
        let before = RunDelay::of_this_thread();
        assert!(RunDelay::of_this_thread() >= before, "it shrinks");
    }

    #[test]
    fn reads_stolen_time_as_a_share_of_all() {
        let times = times_in("cpu  10 20 30 40 50 60 70 80 90 100\ncpu0 1 2 3\n").unwrap();
        assert_eq!(times, Times { all: 360, stolen: 80 });
        assert_eq!(times_in("cpu0 1 2 3 4 5 6 7 8"), None);
        assert_eq!(times_in("cpu  1 2 3"), None);
        assert!(is_share(10, 100, 10) && !is_share(9, 100, 10) && !is_share(0, 0, 10));
    }

    #[test]
    fn finds_the_quota_of_the_innermost_group() {
        let directory = std::env::temp_dir().join(format!("farcall-quota-{}", std::process::id()));
        let group = directory.join("pod/container");
        std::fs::create_dir_all(&group).unwrap();
        let write = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
        assert!(Quota::below(&directory, Path::new("pod/container")).is_none());
        write(&group.join("cpu.max"), "max 100000\n");
        write(&group.join("cpu.stat"), "usage_usec 1\nnr_throttled 1\n");
        write(&directory.join("pod/cpu.max"), "200000 100000\n");
        write(&directory.join("pod/cpu.stat"), "usage_usec 1\nnr_throttled 4\n");
        let mut quota = Quota::below(&directory, Path::new("pod/container")).unwrap();
        assert_eq!(quota.used_up, 4);
        assert!(!quota.was_used_up());
        write(&directory.join("pod/cpu.stat"), "usage_usec 1\nnr_throttled 5\n");
        assert!(quota.was_used_up() && !quota.was_used_up());
        // Control groups version 1 in a container whose /proc/self/cgroup names the group of the host.
        write(&directory.join("cpu.cfs_quota_us"), "50000\n");
        write(&directory.join("cpu.stat"), "nr_periods 2\nnr_throttled 3\n");
        assert_eq!(Quota::below(&directory, Path::new("docker/absent")).unwrap().used_up, 3);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn finds_both_hierarchies_of_control_groups() {
        let places = places_of("5:cpu,cpuacct:/a/b\n3:memory:/m\n0::/u\n");
        let expected = [("cpu", "a/b"), ("cpu,cpuacct", "a/b"), ("", "u")];
        let expected = expected.map(|(mount, group)| (Path::new("/sys/fs/cgroup").join(mount), group.into()));
        assert_eq!(places, expected);
        assert!(places_of("garbage\n").is_empty());
    }

    #[test]
    fn counts_threads_beyond_the_cores() {
        if let Some(excess) = excess_threads(3, Duration::from_millis(1)) {
            let cores = Runnable::open().unwrap().cores as f64;
            assert!(excess >= 1.0 - cores, "{excess} with {cores} cores: this thread runs");
        }
    }
}
