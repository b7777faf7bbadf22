//! Detection of containers, and consequences for connections between processes.

use super::check::{Finding, Verdict};
use farcall_verbs::with_sources;
use rustix::fs::statvfs;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const SHM_BYTES_WANTED: u64 = 128 << 20;

pub fn check() -> Vec<Finding> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let directory = std::env::var_os("FARCALL_SOCKET_DIR");
    let rendezvous = rendezvous(directory.as_deref());
    let shares_directory = directory.is_some() && rendezvous.verdict == Verdict::Ok;
    vec![
        container(&signs(), shares_directory),
        rendezvous,
        admitted(),
        seccomp(&status),
        counters(),
        shm_size(),
    ]
}

/// Returns the signs of a container: files and variables that container engines create, and separate namespaces.
fn signs() -> Vec<&'static str> {
    // The inode numbers of the kernel's initial namespaces (include/linux/proc_ns.h).
    let is_own = |name: &str, first: u64| {
        fs::metadata(format!("/proc/self/ns/{name}")).is_ok_and(|namespace| namespace.ino() != first)
    };
    let signs = [
        (Path::new("/.dockerenv").exists(), "docker"),
        (Path::new("/run/.containerenv").exists(), "podman"),
        (std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(), "kubernetes"),
        (is_own("pid", 0xEFFF_FFFC), "its own pid namespace"),
        (is_own("user", 0xEFFF_FFFD), "its own user namespace"),
        (is_own("ipc", 0xEFFF_FFFF), "its own ipc namespace"),
    ];
    signs.into_iter().filter_map(|(is_there, name)| is_there.then_some(name)).collect()
}

fn container(signs: &[&str], shares_directory: bool) -> Finding {
    const NAME: &str = "container";
    let found = signs.join(", ");
    match (signs.is_empty(), shares_directory) {
        (true, _) => Finding::ok(NAME, "none detected"),
        (false, true) => {
            Finding::ok(NAME, format!("{found}; finds others that mount the directory FARCALL_SOCKET_DIR"))
        }
        (false, false) => Finding::warn(
            NAME,
            found,
            "it has no access to the directory in which processes outside it find each other",
            "to use shared memory between containers, mount a common directory and set FARCALL_SOCKET_DIR to it",
        ),
    }
}

/// Checks the directory by which processes find each other.
fn rendezvous(directory: Option<&OsStr>) -> Finding {
    const NAME: &str = "rendezvous";
    let Some(directory) = directory else {
        return match farcall_softnic::rendezvous_directory() {
            Ok(own) => {
                Finding::ok(NAME, format!("sockets in {}, for all processes of this user", own.display()))
            }
            Err(error) => Finding::fail(
                NAME,
                with_sources(&error),
                "the software RNIC cannot be opened, because its socket needs a directory",
                "set FARCALL_SOCKET_DIR to a directory to which only this user may write",
            ),
        };
    };
    let shown = Path::new(directory).display().to_string();
    match rustix::fs::access(directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        Ok(()) => Finding::ok(
            NAME,
            format!("sockets in {shown}, for all processes with the same FARCALL_SOCKET_DIR"),
        ),
        Err(error) => Finding::fail(
            NAME,
            format!("{shown}: {error}"),
            "the software RNIC cannot be opened, because its socket needs a directory",
            "set FARCALL_SOCKET_DIR to an existing directory to which this user may write",
        ),
    }
}

/// Checks which processes this process admits.
fn admitted() -> Finding {
    const NAME: &str = "admitted users";
    let wanted = std::env::var("FARCALL_GROUP").unwrap_or_default();
    match farcall_softnic::configured_group() {
        Ok(None) => Finding::ok(NAME, "this user; FARCALL_GROUP=NAME on both sides admits a group"),
        Ok(Some(_)) if farcall_softnic::socket_directory().is_none() => Finding::warn(
            NAME,
            format!("this user, and members of the group {wanted} (FARCALL_GROUP)"),
            "members do not find each other, because each user has a separate directory of sockets",
            "set FARCALL_SOCKET_DIR to a directory of the group on both sides (chgrp, mode 2770)",
        ),
        Ok(Some(group)) if is_member(group) => {
            Finding::ok(NAME, format!("this user, and members of the group {wanted} (FARCALL_GROUP)"))
        }
        Ok(Some(_)) => Finding::warn(
            NAME,
            format!("this user, and members of the group {wanted} (FARCALL_GROUP)"),
            "this process is not a member of the group, so processes of other users refuse it",
            "add the user to the group and log in again, or start with the group (sg, setpriv --groups)",
        ),
        Err(error) => Finding::fail(
            NAME,
            with_sources(&error),
            "processes of other users are refused",
            "set FARCALL_GROUP to a group of /etc/group, or to its number",
        ),
    }
}

fn is_member(group: u32) -> bool {
    let others = rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group || others.iter().any(|other| other.as_raw() == group)
}

fn seccomp(status: &str) -> Finding {
    const NAME: &str = "seccomp";
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    match mode {
        Some("2") => Finding::ok(NAME, "a filter is active; the checks above show its effects"),
        _ => Finding::ok(NAME, "no filter"),
    }
}

/// Checks whether `farcall stats` can read the counters of processes.
fn counters() -> Finding {
    const NAME: &str = "counters";
    match farcall_stats::probe() {
        Ok(()) => Finding::ok(NAME, "in System V shared memory, readable by this user only"),
        Err(error) => Finding::warn(
            NAME,
            with_sources(&error),
            "farcall stats has no counters to show; no other command is affected",
            "allow shmget in the seccomp profile of the container, and mount /proc/sysvipc",
        ),
    }
}

fn shm_size() -> Finding {
    const NAME: &str = "/dev/shm";
    match statvfs("/dev/shm") {
        Ok(stat) if stat.f_blocks * stat.f_frsize < SHM_BYTES_WANTED => Finding::warn(
            NAME,
            indicatif::BinaryBytes(stat.f_blocks * stat.f_frsize).to_string(),
            "enough for the few small files of Farcall; UCX, which bench --against ucx measures, needs more",
            "docker run --shm-size 1g",
        ),
        Ok(stat) => Finding::ok(
            NAME,
            format!(
                "{}, for files that RDMA programs read",
                indicatif::BinaryBytes(stat.f_blocks * stat.f_frsize)
            ),
        ),
        Err(_) => Finding::ok(NAME, "not mounted; not needed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_a_finding_for_each_check() {
        assert_eq!(check().len(), 6);
    }

    #[test]
    fn reports_an_unusable_socket_directory() {
        let here = std::env::temp_dir();
        assert_eq!(rendezvous(None).verdict, Verdict::Ok);
        assert_eq!(rendezvous(Some(here.as_os_str())).verdict, Verdict::Ok);
        assert_eq!(rendezvous(Some(OsStr::new("/nowhere/at/all"))).verdict, Verdict::Fail);
    }

    #[test]
    fn warns_of_a_container_without_a_shared_directory() {
        assert_eq!(container(&[], false).verdict, Verdict::Ok);
        let alone = container(&["podman", "its own pid namespace"], false);
        assert_eq!(alone.verdict, Verdict::Warn);
        assert!(alone.to_string().contains("podman, its own pid namespace"), "{alone}");
        assert_eq!(container(&["podman"], true).verdict, Verdict::Ok);
    }
}
