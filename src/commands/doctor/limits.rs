//! Limits of this process and its control group.

use super::check::Finding;
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::path::{Path, PathBuf};

/// Wanted descriptor limit: each connection of the software RNIC uses several.
const OPEN_FILES_WANTED: u64 = 4096;
const OPEN_FILES_NEEDED: u64 = 128;
/// Memory that an RNIC must be able to lock for a few connections, in bytes.
const LOCKED_BYTES_WANTED: u64 = 64 << 20;
/// Memory in bytes below which a server with its default store does not fit.
const MEMORY_BYTES_WANTED: u64 = 512 << 20;

pub fn check() -> Vec<Finding> {
    vec![
        open_files(getrlimit(Resource::Nofile).current),
        locked_memory(getrlimit(Resource::Memlock).current),
        group_memory(group_file("memory.max").and_then(|text| parse_limit(&text))),
        group_cpu(group_file("cpu.max").as_deref().and_then(parse_cpu)),
    ]
}

fn open_files(limit: Option<u64>) -> Finding {
    const NAME: &str = "RLIMIT_NOFILE";
    const REMEDY: &str = "ulimit -n 65536, or LimitNOFILE= in the systemd unit";
    match limit {
        None => Finding::ok(NAME, "unlimited"),
        Some(limit) if limit < OPEN_FILES_NEEDED => {
            Finding::fail(NAME, limit.to_string(), "too few descriptors for a server with clients", REMEDY)
        }
        Some(limit) if limit < OPEN_FILES_WANTED => {
            Finding::warn(NAME, limit.to_string(), "enough for a few hundred connections only", REMEDY)
        }
        Some(limit) => Finding::ok(NAME, limit.to_string()),
    }
}

fn locked_memory(limit: Option<u64>) -> Finding {
    const NAME: &str = "RLIMIT_MEMLOCK";
    match limit {
        None => Finding::ok(NAME, "unlimited"),
        Some(limit) if limit >= LOCKED_BYTES_WANTED => Finding::ok(NAME, bytes(limit)),
        Some(limit) => Finding::warn(
            NAME,
            bytes(limit),
            "the software RNIC needs none, but an RNIC cannot register more than this",
            "ulimit -l unlimited, LimitMEMLOCK=infinity in the systemd unit, docker run --ulimit memlock=-1",
        ),
    }
}

fn group_memory(limit: Option<u64>) -> Finding {
    const NAME: &str = "cgroup memory";
    match limit {
        None => Finding::ok(NAME, "no limit"),
        Some(limit) if limit >= MEMORY_BYTES_WANTED => Finding::ok(NAME, bytes(limit)),
        Some(limit) => Finding::warn(
            NAME,
            bytes(limit),
            "shared memory counts as part of it; a process over the limit is killed",
            "raise the memory limit of the container, or lower that of the store: kv serve --memory-mib",
        ),
    }
}

fn group_cpu(cores: Option<f64>) -> Finding {
    const NAME: &str = "cgroup cpu";
    match cores {
        None => Finding::ok(NAME, "no limit"),
        Some(cores) if cores >= 2.0 => Finding::ok(NAME, format!("{cores} cores")),
        Some(cores) => Finding::warn(
            NAME,
            format!("{cores} cores"),
            "polling threads are stopped for tens of milliseconds when the quota is used up",
            "give the container at least two cores (docker run --cpus 2), or wait for events instead of polling",
        ),
    }
}

/// Returns a file of this process's control group (version 2), or of the root of a container's namespace.
fn group_file(name: &str) -> Option<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/');
    let root = Path::new("/sys/fs/cgroup");
    let candidates: [PathBuf; 2] = [root.join(path).join(name), root.join(name)];
    candidates.iter().find_map(|file| fs::read_to_string(file).ok())
}

fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Parses `max 100000` or `<quota> <period>`, both in microseconds.
fn parse_cpu(text: &str) -> Option<f64> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<f64>);
    let (quota, period) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (period > 0.0).then_some(quota / period)
}

fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn judges_limits() {
        assert_eq!(open_files(Some(64)).verdict, Verdict::Fail);
        assert_eq!(open_files(Some(1024)).verdict, Verdict::Warn);
        assert_eq!(open_files(None).verdict, Verdict::Ok);
        assert_eq!(locked_memory(Some(64 << 10)).verdict, Verdict::Warn);
        assert_eq!(group_memory(Some(64 << 20)).verdict, Verdict::Warn);
        assert_eq!(group_cpu(parse_cpu("50000 100000")).verdict, Verdict::Warn);
        assert_eq!(group_cpu(parse_cpu("max 100000")).verdict, Verdict::Ok);
        assert_eq!(parse_limit("max\n"), None);
    }
}
