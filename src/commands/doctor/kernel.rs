//! Kernel features. Every check uses the feature, because containers and seccomp may disable features that the version
//! has.

use super::check::Finding;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket, socketpair};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::os::fd::AsRawFd;
use std::{fs, io, mem};

/// membarrier's global expedited command was added in 4.16, pidfd_open in 5.3; 5.15 is the oldest tested kernel.
const TESTED_SINCE: (u32, u32) = (5, 15);
const NEEDED: (u32, u32) = (5, 3);

pub fn check() -> Vec<Finding> {
    let uname = rustix::system::uname();
    vec![
        version(&uname.release().to_string_lossy()),
        sealing(),
        membarrier(),
        pidfd(),
        peer_pidfd(),
        abstract_sockets(),
        own_memory(),
        tracing(),
    ]
}

fn version(release: &str) -> Finding {
    const NAME: &str = "kernel";
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < NEEDED {
        return Finding::fail(
            NAME,
            release,
            "exits of peer processes cannot be detected before 5.3",
            "use a newer kernel",
        );
    }
    if version < TESTED_SINCE {
        return Finding::warn(NAME, release, "older than all tested kernels", "use 5.15 or newer");
    }
    Finding::ok(NAME, release)
}

fn sealing() -> Finding {
    const NAME: &str = "memfd sealing";
    match try_sealing() {
        Ok(true) => Finding::ok(NAME, "protects shared memory against truncation"),
        Ok(false) => Finding::fail(
            NAME,
            "a sealed memfd could still be resized",
            "a peer could kill this process with SIGBUS",
            "run on a Linux kernel; sandboxes such as gVisor differ",
        ),
        Err(error) => Finding::fail(
            NAME,
            error.to_string(),
            "registered memory of the software RNIC is a sealed memfd",
            "allow memfd_create and fcntl(F_ADD_SEALS) in the seccomp profile of the container",
        ),
    }
}

/// Returns whether the kernel refuses to resize a sealed memfd.
fn try_sealing() -> io::Result<bool> {
    let memory = memfd_create("farcall-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, 4096)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(ftruncate(&memory, 0).is_err() && ftruncate(&memory, 8192).is_err())
}

fn membarrier() -> Finding {
    const NAME: &str = "membarrier";
    let needed = libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED | libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
    // SAFETY: the query takes no pointer and changes no state.
    let offered = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_QUERY, 0, 0) };
    if offered >= 0 && offered & i64::from(needed) == i64::from(needed) {
        return Finding::ok(NAME, "GLOBAL_EXPEDITED is supported");
    }
    let found =
        if offered < 0 { io::Error::last_os_error().to_string() } else { format!("commands {offered:#x}") };
    Finding::warn(
        NAME,
        found,
        "GLOBAL_EXPEDITED is not supported: each one-sided operation needs a full fence, and only peers without it connect",
        "allow membarrier in the seccomp profile of the container, use a kernel with CONFIG_MEMBARRIER, or set \
         FARCALL_NO_MEMBARRIER=1 for the peers as well",
    )
}

fn pidfd() -> Finding {
    const NAME: &str = "pidfd";
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Finding::ok(NAME, "detects exits of peer processes"),
        Err(error) => Finding::fail(
            NAME,
            error.to_string(),
            "without pidfd_open, exits of peer processes are not detected",
            "allow pidfd_open in the seccomp profile of the container, or use a newer kernel",
        ),
    }
}

fn peer_pidfd() -> Finding {
    const NAME: &str = "SO_PEERPIDFD";
    match try_peer_pidfd() {
        Ok(()) => Finding::ok(NAME, "identifies peers without their pid"),
        Err(error) => Finding::warn(
            NAME,
            error.to_string(),
            "peers are identified by pid, which requires a common pid namespace",
            "use kernel 6.5 or newer, or start containers with a shared pid namespace",
        ),
    }
}

fn try_peer_pidfd() -> io::Result<()> {
    let (here, _there) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut fd: libc::c_int = -1;
    let mut len_bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `fd` and `len_bytes` are valid for writes of the result and its length.
    let result = unsafe {
        libc::getsockopt(
            here.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len_bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor for this process, which has no other owner.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) });
    Ok(())
}

fn abstract_sockets() -> Finding {
    const NAME: &str = "abstract sockets";
    let name = format!("farcall-doctor-{}", std::process::id());
    let bound = SocketAddrUnix::new_abstract_name(name.as_bytes()).and_then(|address| {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
        bind(&socket, &address)
    });
    match bound {
        Ok(()) => Finding::ok(NAME, "connection managers of this network namespace find each other"),
        Err(error) => Finding::warn(
            NAME,
            error.to_string(),
            "the connection manager (librdmacm) cannot bind addresses and ports",
            "run it where abstract Unix sockets are allowed",
        ),
    }
}

fn own_memory() -> Finding {
    const NAME: &str = "/proc/self/mem";
    match fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem") {
        Ok(file) => {
            mem::drop(file);
            Finding::ok(NAME, "memory that Farcall did not allocate can be registered")
        }
        Err(error) => Finding::warn(
            NAME,
            error.to_string(),
            "peers access memory that Farcall did not allocate (reg_mr) through the service thread of this process, which is slower",
            "mount /proc, and make the process dumpable (prctl PR_SET_DUMPABLE)",
        ),
    }
}

fn tracing() -> Finding {
    const NAME: &str = "ptrace";
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "2" if !rustix::process::geteuid().is_root() => {
            Finding::warn(NAME, "only for root", TRACING_MEANING, "sysctl kernel.yama.ptrace_scope=1")
        }
        "3" => {
            Finding::warn(NAME, "forbidden until reboot", TRACING_MEANING, "reboot with another ptrace_scope")
        }
        _ => Finding::ok(NAME, "benchmarks can count system calls, unless seccomp forbids it"),
    }
}

const TRACING_MEANING: &str = "benchmarks cannot count system calls; no other command needs it";

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn judges_kernels_by_their_versions() {
        for (release, verdict) in [
            ("6.18.44-fc", Verdict::Ok),
            ("5.15.0-91-generic", Verdict::Ok),
            ("5.4.0", Verdict::Warn),
            ("4.19.0-6", Verdict::Fail),
            ("garbage", Verdict::Fail),
        ] {
            assert_eq!(version(release).verdict, verdict, "{release}");
        }
    }

    #[test]
    fn returns_a_finding_for_each_check() {
        assert_eq!(check().len(), 8);
    }
}
