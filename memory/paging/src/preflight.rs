//! Requirements checked before a run starts. A fault found later would stall programs, or the machine.

use std::fs::{self, OpenOptions};
use std::io;

use farcall_memory::PAGE_BYTES;

use crate::cgroup::Hierarchy;
use crate::run_paths::{Config, stale_runs};
use crate::swap::{Area, PRIORITY_MAX, areas};

/// Memory in bytes for the two processes, and for pages of other programs that are read back at the end.
const SPARE_BYTES: u64 = 256 << 20;
/// Minimum resident memory of a program in bytes.
const RESIDENT_BYTES_MIN: u64 = 4 << 20;
/// Minimum number of pages of a swap area (mkswap(8)), and the maximum that its header can represent.
const SIZE_PAGES_MIN: u64 = 10;
const SIZE_PAGES_MAX: u64 = u32::MAX as u64;
/// CAP_IPC_LOCK, CAP_SYS_ADMIN, CAP_SYS_RESOURCE (linux/capability.h).
const CAPABILITIES: [(u32, &str); 2] = [(14, "CAP_IPC_LOCK"), (21, "CAP_SYS_ADMIN")];
const SYS_RESOURCE: u32 = 24;

/// An unsatisfied requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Description.
    pub what: String,
    /// Remedy.
    pub remedy: String,
}

fn obstacle(what: impl Into<String>, remedy: impl Into<String>) -> Obstacle {
    Obstacle { what: what.into(), remedy: remedy.into() }
}

/// Returns all unsatisfied requirements.
pub fn preflight(config: &Config) -> Vec<Obstacle> {
    let mut found: Vec<Obstacle> =
        [privileges(), precedence(config), device("/dev/fuse", "fuse"), device("/dev/loop-control", "loop")]
            .into_iter()
            .chain([cgroup(), sizes(config), memory(config), priority()])
            .flatten()
            .collect();
    match stale_runs() {
        Ok(left) => found.extend(left.iter().map(|stale| {
            let what = format!("a run whose process {} is gone left files behind", stale.paths.supervisor());
            obstacle(what, "undo it: farcall page cleanup")
        })),
        Err(error) => found.push(obstacle(
            format!("what earlier runs left cannot be read: {error}"),
            "see /run/farcall-page",
        )),
    }
    found
}

/// Returns whether this process has a capability.
fn has(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    effective.is_some_and(|effective| effective >> number & 1 == 1)
}

fn precedence(config: &Config) -> Option<Obstacle> {
    (!config.may_stall && !has(SYS_RESOURCE)).then(|| {
        obstacle(
            "this process lacks CAP_SYS_RESOURCE: when the whole machine is short of memory, the pager could wait for \
             memory that comes only by the pager",
            "run it as root of the machine, or with --may-stall where memory is never short",
        )
    })
}

fn privileges() -> Option<Obstacle> {
    let missing: Vec<&str> =
        CAPABILITIES.into_iter().filter(|(number, _)| !has(*number)).map(|(_, name)| name).collect();
    (!missing.is_empty())
        .then(|| obstacle(format!("this process lacks {}", missing.join(", ")), "run it as root"))
}

fn device(path: &str, module: &str) -> Option<Obstacle> {
    let error = OpenOptions::new().read(true).write(true).open(path).err()?;
    let remedy =
        format!("load the module (modprobe {module}), give the container the device, or run it as root");
    Some(obstacle(format!("{path} cannot be opened: {error}"), remedy))
}

fn cgroup() -> Option<Obstacle> {
    match Hierarchy::find() {
        Ok(Some(hierarchy)) if hierarchy.counts_swap() => None,
        Ok(Some(_)) => Some(obstacle(
            "the memory cgroup does not count swap",
            "boot with swapaccount=1 on the kernel's command line",
        )),
        Ok(None) => Some(obstacle(
            "no memory controller of cgroups is mounted",
            "boot with cgroup_enable=memory, or mount one: mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        )),
        Err(error) => Some(obstacle(format!("mounts cannot be read: {error}"), "mount /proc")),
    }
}

fn sizes(config: &Config) -> Option<Obstacle> {
    let pages = config.size_bytes / PAGE_BYTES as u64;
    if rustix::param::page_size() != PAGE_BYTES {
        let what = format!("pages of this machine have {} bytes", rustix::param::page_size());
        return Some(obstacle(what, format!("use a kernel with pages of {PAGE_BYTES} bytes")));
    }
    if !(SIZE_PAGES_MIN..=SIZE_PAGES_MAX).contains(&pages) {
        let what = format!("a swap area of {pages} pages: from {SIZE_PAGES_MIN} to {SIZE_PAGES_MAX}");
        return Some(obstacle(what, "change --size"));
    }
    (config.resident_bytes < RESIDENT_BYTES_MIN).then(|| {
        let what = format!("{} resident bytes: no program begins with less than 4M", config.resident_bytes);
        obstacle(what, "raise --resident")
    })
}

fn memory(config: &Config) -> Option<Obstacle> {
    let text = match fs::read_to_string("/proc/meminfo") {
        Ok(text) => text,
        Err(error) => return Some(obstacle(format!("/proc/meminfo cannot be read: {error}"), "mount /proc")),
    };
    let available = available_bytes(&text).unwrap_or(0);
    let needed = config.resident_bytes.saturating_add(SPARE_BYTES);
    (available < needed).then(|| {
        let what = format!(
            "{} MiB of memory are available; {} MiB are needed: --resident, and 256 MiB for the pager and for what \
             comes back from swap at the end",
            available >> 20,
            needed >> 20
        );
        obstacle(what, "lower --resident, or end other programs")
    })
}

fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

fn priority() -> Option<Obstacle> {
    match areas().map(|areas| above(&areas)) {
        Ok(Some(_)) => None,
        Ok(None) => Some(obstacle(
            format!("a swap area has the highest priority, {PRIORITY_MAX}: none can be used before it"),
            "give it a lower one: swapoff it, then swapon --priority",
        )),
        Err(error) => {
            Some(obstacle(format!("/proc/swaps cannot be read: {error}"), "use a kernel with swap"))
        }
    }
}

/// Returns a priority above those of all areas in use.
pub fn above(areas: &[Area]) -> Option<i32> {
    let next = areas.iter().map(|area| area.priority).max().unwrap_or(0).max(0) + 1;
    (next <= PRIORITY_MAX).then_some(next)
}

/// Returns the priority for an area that must be used first.
///
/// # Errors
/// Returns an error if the list of areas cannot be read, or if one has the maximum priority.
pub fn priority_now() -> io::Result<i32> {
    above(&areas()?).ok_or_else(|| io::Error::other("a swap area has the highest priority"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(priority: i32) -> Area {
        Area { path: "/dev/x".into(), size_bytes: 0, used_bytes: 0, priority }
    }

    #[test]
    fn chooses_a_priority_above_all_in_use() {
        assert_eq!(above(&[]), Some(1));
        assert_eq!(above(&[area(-2)]), Some(1));
        assert_eq!(above(&[area(5), area(100), area(-2)]), Some(101));
        assert_eq!(above(&[area(PRIORITY_MAX)]), None);
    }

    #[test]
    fn reports_unsuitable_sizes_and_memory_with_a_remedy() {
        let config = Config {
            version: Config::VERSION,
            nodes: Vec::new(),
            directory: None,
            replicas: 1,
            size_bytes: 256 << 20,
            slab_bytes: 64 << 20,
            resident_bytes: 64 << 20,
            may_stall: false,
            program: "x".into(),
        };
        assert_eq!(sizes(&config), None);
        assert_eq!(sizes(&Config { size_bytes: 4 << 10, ..config.clone() }).unwrap().remedy, "change --size");
        let small = sizes(&Config { resident_bytes: 1 << 20, ..config.clone() }).unwrap();
        assert_eq!(small.remedy, "raise --resident");
        let huge = memory(&Config { resident_bytes: 1 << 60, ..config }).unwrap();
        assert!(huge.what.contains("are available") && huge.remedy.contains("--resident"), "{huge:?}");
        assert_eq!(available_bytes("MemFree: 1 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
    }
}
