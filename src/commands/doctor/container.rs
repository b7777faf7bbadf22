//! Detection of containers, and consequences for connections between processes.

use super::check::{Finding, Verdict};
use rustix::fs::statvfs;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const SHM_BYTES_WANTED: u64 = 128 << 20;

pub fn check() -> Vec<Finding> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let directory = std::env::var_os("FARCALL_SOCKET_DIR");
    let meeting = meeting(directory.as_deref());
    let shares_directory = directory.is_some() && meeting.verdict == Verdict::Ok;
    vec![container(&signs(), shares_directory), meeting, admitted(), seccomp(&status), counters(), shm_size()]
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
        (is_own("pid", 0xEFFF_FFFC), "a pid namespace of its own"),
        (is_own("user", 0xEFFF_FFFD), "a user namespace of its own"),
        (is_own("ipc", 0xEFFF_FFFF), "an ipc namespace of its own"),
    ];
    signs.into_iter().filter_map(|(is_there, name)| is_there.then_some(name)).collect()
}

fn container(signs: &[&str], shares_directory: bool) -> Finding {
    const NAME: &str = "container";
    let found = signs.join(", ");
    match (signs.is_empty(), shares_directory) {
        (true, _) => Finding::ok(NAME, "no sign of one"),
        (false, true) => Finding::ok(
            NAME,
            format!("{found}; FARCALL_SOCKET_DIR is where it meets others that mount the same directory"),
        ),
        (false, false) => Finding::warn(
            NAME,
            found,
            "it does not see the directory in which processes outside meet",
            "to use shared memory between containers, mount a common directory and name it in FARCALL_SOCKET_DIR",
        ),
    }
}

/// Checks the directory by which processes find each other.
fn meeting(directory: Option<&OsStr>) -> Finding {
    const NAME: &str = "rendezvous";
    let Some(directory) = directory else {
        return match farcall_softnic::rendezvous_directory() {
            Ok(own) => Finding::ok(NAME, format!("sockets in {}: all processes of this user", own.display())),
            Err(error) => Finding::fail(
                NAME,
                error.to_string(),
                "no software RNIC can be opened, because its socket has no place",
                "name a directory that only this user may change in FARCALL_SOCKET_DIR",
            ),
        };
    };
    let shown = Path::new(directory).display().to_string();
    match rustix::fs::access(directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        Ok(()) => Finding::ok(NAME, format!("sockets in {shown}: all processes that name this directory")),
        Err(error) => Finding::fail(
            NAME,
            format!("{shown}: {error}"),
            "no software RNIC can be opened, because its socket has no place",
            "let FARCALL_SOCKET_DIR name a directory that exists and that this user may write to",
        ),
    }
}

/// Checks which processes this process admits.
fn admitted() -> Finding {
    const NAME: &str = "who may connect";
    let wanted = std::env::var("FARCALL_GROUP").unwrap_or_default();
    match farcall_softnic::configured_group() {
        Ok(None) => Finding::ok(NAME, "this user alone; FARCALL_GROUP=NAME on both sides lets a group in"),
        Ok(Some(_)) if farcall_softnic::socket_directory().is_none() => Finding::warn(
            NAME,
            format!("this user, and members of the group {wanted} (FARCALL_GROUP)"),
            "members do not find each other: each user's processes meet in a directory of his own",
            "name a directory of the group in FARCALL_SOCKET_DIR on both sides (chgrp, mode 2770)",
        ),
        Ok(Some(group)) if is_member(group) => {
            Finding::ok(NAME, format!("this user, and members of the group {wanted} (FARCALL_GROUP)"))
        }
        Ok(Some(_)) => Finding::warn(
            NAME,
            format!("this user, and members of the group {wanted} (FARCALL_GROUP)"),
            "this process is no member of the group: processes of other users refuse it",
            "add the user to the group and log in anew, or start under it (sg, setpriv --groups)",
        ),
        Err(error) => Finding::fail(
            NAME,
            error.to_string(),
            "processes of other users are refused",
            "let FARCALL_GROUP name a group of /etc/group, or its number",
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
        Some("2") => Finding::ok(NAME, "a filter is active; the checks above tell what it lets through"),
        _ => Finding::ok(NAME, "no filter"),
    }
}

/// Checks whether `farcall stats` can read the counters of processes.
fn counters() -> Finding {
    const NAME: &str = "counters";
    match farcall_stats::probe() {
        Ok(()) => Finding::ok(NAME, "in System V shared memory, for this user alone"),
        Err(error) => Finding::warn(
            NAME,
            error.to_string(),
            "everything works, but farcall stats has nothing to show",
            "allow shmget in the container's seccomp profile, and show /proc/sysvipc",
        ),
    }
}

fn shm_size() -> Finding {
    const NAME: &str = "/dev/shm";
    match statvfs("/dev/shm") {
        Ok(stat) if stat.f_blocks * stat.f_frsize < SHM_BYTES_WANTED => Finding::warn(
            NAME,
            indicatif::BinaryBytes(stat.f_blocks * stat.f_frsize).to_string(),
            "enough for what Farcall keeps there (a few small files); UCX, to which perf --against ucx compares, wants more",
            "docker run --shm-size 1g",
        ),
        Ok(stat) => Finding::ok(
            NAME,
            format!(
                "{}; holds the files that RDMA programs look for",
                indicatif::BinaryBytes(stat.f_blocks * stat.f_frsize)
            ),
        ),
        Err(_) => Finding::ok(NAME, "not mounted, and not needed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_gives_a_finding() {
        assert_eq!(check().len(), 6);
    }

    #[test]
    fn reports_an_unusable_socket_directory() {
        let here = std::env::temp_dir();
        assert_eq!(meeting(None).verdict, Verdict::Ok);
        assert_eq!(meeting(Some(here.as_os_str())).verdict, Verdict::Ok);
        assert_eq!(meeting(Some(OsStr::new("/nowhere/at/all"))).verdict, Verdict::Fail);
    }

    #[test]
    fn a_container_is_warned_of_unless_it_shares_a_directory() {
        assert_eq!(container(&[], false).verdict, Verdict::Ok);
        let alone = container(&["podman", "a pid namespace of its own"], false);
        assert_eq!(alone.verdict, Verdict::Warn);
        assert!(alone.to_string().contains("podman, a pid namespace of its own"), "{alone}");
        assert_eq!(container(&["podman"], true).verdict, Verdict::Ok);
    }
}
