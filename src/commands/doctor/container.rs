//! Signs of a container, and what they mean for the meeting of processes.

use super::check::Finding;
use rustix::fs::statvfs;
use std::fs;
use std::path::Path;

const SHM_BYTES_WANTED: u64 = 128 << 20;

pub fn check() -> Vec<Finding> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    vec![
        container(),
        meeting(std::env::var_os("FARCALL_SOCKET_DIR")),
        admitted(),
        seccomp(&status),
        shm_size(),
    ]
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
         container:NAME) or mount a common directory and name it in FARCALL_SOCKET_DIR",
    )
}

/// Where processes look for each other.
fn meeting(directory: Option<std::ffi::OsString>) -> Finding {
    const NAME: &str = "rendezvous";
    let Some(directory) = directory else {
        return Finding::ok(NAME, "abstract sockets: all processes of this network namespace");
    };
    let shown = Path::new(&directory).display().to_string();
    match rustix::fs::access(&*directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        Ok(()) => Finding::ok(NAME, format!("sockets in {shown}: all processes that name this directory")),
        Err(error) => Finding::fail(
            NAME,
            format!("{shown}: {error}"),
            "no software RNIC can be opened, because its socket has no place",
            "let FARCALL_SOCKET_DIR name a directory that exists and that this user may write to",
        ),
    }
}

/// Whom this process lets in.
fn admitted() -> Finding {
    let found = match std::env::var("FARCALL_GROUP") {
        Ok(group) if !group.is_empty() => {
            format!("this user, and members of the group {group} (FARCALL_GROUP)")
        }
        _ => "this user alone; FARCALL_GROUP=NAME on both sides lets a group in".into(),
    };
    Finding::ok("who may connect", found)
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
        assert_eq!(check().len(), 5);
    }

    #[test]
    fn a_socket_directory_that_cannot_be_used_is_told() {
        use super::super::check::Verdict;
        assert_eq!(meeting(None).verdict, Verdict::Ok);
        assert_eq!(meeting(Some(std::env::temp_dir().into())).verdict, Verdict::Ok);
        assert_eq!(meeting(Some("/nowhere/at/all".into())).verdict, Verdict::Fail);
    }
}
