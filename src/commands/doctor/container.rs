//! Signs of a container, and what they mean for the meeting of processes.

use super::check::Finding;
use rustix::fs::statvfs;
use std::fs;
use std::path::Path;

const SHM_BYTES_WANTED: u64 = 128 << 20;

pub fn check() -> Vec<Finding> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    vec![container(), seccomp(&status), shm_size()]
}

fn container() -> Finding {
    const NAME: &str = "container";
    let signs = [
        (Path::new("/.dockerenv").exists(), "docker"),
        (Path::new("/run/.containerenv").exists(), "podman"),
        (std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(), "kubernetes"),
    ];
    let found: Vec<&str> =
        signs.into_iter().filter_map(|(is_there, name)| is_there.then_some(name)).collect();
    if found.is_empty() {
        return Finding::ok(NAME, "no sign of one");
    }
    Finding::warn(
        NAME,
        found.join(", "),
        "processes in different network namespaces do not see each other's abstract sockets",
        "to use shared memory between containers, share the network namespace (one pod, docker run --network \
         container:NAME) or mount a common directory for rendezvous sockets",
    )
}

fn seccomp(status: &str) -> Finding {
    const NAME: &str = "seccomp";
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    match mode {
        Some("2") => Finding::ok(NAME, "a filter is active; the checks above tell what it lets through"),
        _ => Finding::ok(NAME, "no filter"),
    }
}

fn shm_size() -> Finding {
    const NAME: &str = "/dev/shm";
    match statvfs("/dev/shm") {
        Ok(stat) if stat.f_blocks * stat.f_frsize < SHM_BYTES_WANTED => Finding::warn(
            NAME,
            indicatif::BinaryBytes(stat.f_blocks * stat.f_frsize).to_string(),
            "Farcall does not use it, but UCX, to which perf --against ucx compares, does",
            "docker run --shm-size 1g",
        ),
        Ok(stat) => Finding::ok(
            NAME,
            format!("{}; not used by Farcall", indicatif::BinaryBytes(stat.f_blocks * stat.f_frsize)),
        ),
        Err(_) => Finding::ok(NAME, "not mounted; not used by Farcall"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_gives_a_finding() {
        assert_eq!(check().len(), 3);
    }
}
