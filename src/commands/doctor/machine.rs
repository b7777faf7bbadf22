//! Processor, memory and devices.

use super::check::Finding;
use farcall_bench::measure::Cores;
use farcall_verbs::with_sources;
use std::fs;
use std::path::Path;

pub fn check() -> Vec<Finding> {
    vec![cores(), time_stamp_counter(), transparent_huge_pages(), infiniband()]
}

fn cores() -> Finding {
    const NAME: &str = "cores";
    match Cores::allowed() {
        Ok(cores) if cores.has_two() => Finding::ok(NAME, format!("{:?} are allowed", cores.as_slice())),
        Ok(cores) => Finding::warn(
            NAME,
            format!("only {:?} is allowed", cores.as_slice()),
            "both ends share a core: they cannot poll at the same time, and benchmarks measure the scheduler",
            "allow two cores (taskset, docker run --cpuset-cpus), or wait for events",
        ),
        Err(error) => {
            Finding::warn(NAME, with_sources(&error), "threads cannot be pinned", "allow sched_getaffinity")
        }
    }
}

fn time_stamp_counter() -> Finding {
    const NAME: &str = "time-stamp counter";
    if !cfg!(target_arch = "x86_64") {
        return Finding::ok(NAME, "not used on this processor");
    }
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag| flags.split_ascii_whitespace().any(|word| word == flag);
    if has("constant_tsc") && has("nonstop_tsc") {
        Finding::ok(NAME, "runs at a constant rate")
    } else {
        Finding::warn(
            NAME,
            "the rate may change",
            "latencies of single operations may be wrong",
            "run on bare metal or KVM",
        )
    }
}

fn transparent_huge_pages() -> Finding {
    const NAME: &str = "transparent huge pages";
    const FILE: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let Ok(text) = fs::read_to_string(FILE) else {
        return Finding::warn(
            NAME,
            "not supported",
            "large stores and transfers have more TLB misses",
            "none on this kernel",
        );
    };
    let chosen = text.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    match chosen.as_str() {
        "advise" | "always" | "within_size" | "force" => {
            Finding::ok(NAME, format!("shared memory: {chosen}"))
        }
        _ => Finding::warn(
            NAME,
            format!("shared memory: {chosen}"),
            "registered memory uses small pages: large stores and transfers have more TLB misses",
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
    }
}

fn infiniband() -> Finding {
    const NAME: &str = "/dev/infiniband";
    let devices = fs::read_dir("/sys/class/infiniband").map(|entries| {
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names.join(", ")
    });
    match (Path::new("/dev/infiniband").exists(), devices) {
        (true, Ok(names)) if !names.is_empty() => Finding::ok(NAME, format!("RDMA devices: {names}")),
        (false, Ok(names)) if !names.is_empty() => Finding::warn(
            NAME,
            format!("the kernel has {names}, but the device files are absent"),
            "the RNIC cannot be used from here",
            "pass the devices to the container: docker run --device /dev/infiniband",
        ),
        _ => Finding::ok(NAME, "no RNIC: the software RNIC is used"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_a_finding_for_each_check() {
        assert_eq!(check().len(), 4);
    }
}
