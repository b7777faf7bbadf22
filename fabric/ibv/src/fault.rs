//! Errors of the library, with messages that end with a remedy.

use std::io;

use farcall_verbs::{Error, Result};
use rustix::process::{Resource, getrlimit};

use crate::library::INSTALL;
use crate::survey::NodeState;

/// Returns the library's errno.
pub(crate) fn last() -> io::Error {
    io::Error::last_os_error()
}

/// Converts the return value of a function into a result: 0, or an error number (−1: the number is in errno).
pub(crate) fn check(returned: i32) -> std::result::Result<(), io::Error> {
    match returned {
        0 => Ok(()),
        number if number > 0 => Err(io::Error::from_raw_os_error(number)),
        _ => Err(last()),
    }
}

/// Logs that an object could not be destroyed. It is leaked, and the program continues.
pub(crate) fn note_destroy(what: &str, returned: i32) {
    if let Err(error) = check(returned) {
        tracing::warn!("{what} could not be destroyed: {error}");
    }
}

/// Returns the error of opening a device. The library loses the first of several failures, so its error number says
/// little; the state of the node in /dev is more specific.
pub(crate) fn open(device: &str, node: NodeState, source: io::Error) -> Error {
    let remedy = match node {
        NodeState::Usable => "does not open; see dmesg".to_owned(),
        _ => unusable(node),
    };
    Error::os("open device", format!("{device} {remedy}"), source)
}

/// Returns the error for a device that the kernel has and the library has not.
pub(crate) fn no_access(device: &str, node: NodeState) -> Error {
    let what = match node {
        NodeState::Usable => format!("{device} has no driver in libibverbs; {INSTALL}"),
        _ => format!("{device} {}", unusable(node)),
    };
    Error::invalid("list devices", what)
}

fn unusable(node: NodeState) -> String {
    match node {
        NodeState::Forbidden => {
            "may not be opened by this user; give read and write permission to /dev/infiniband/uverbs* (udev rule, or \
             membership of the group that owns them)"
        }
        _ => {
            "has no node in /dev/infiniband; load ib_uverbs (modprobe ib_uverbs), and in a container pass the nodes \
             in: docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1"
        }
    }
    .to_owned()
}

pub(crate) fn register(len_bytes: usize, source: io::Error) -> Error {
    let what = match source.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM) => format!(
            "register {len_bytes} bytes; this process may lock {} (RLIMIT_MEMLOCK): raise it by ulimit -l unlimited, \
             LimitMEMLOCK=infinity in the systemd unit, docker run --ulimit memlock=-1, or give it CAP_IPC_LOCK",
            locked_limit()
        ),
        Some(libc::EFAULT) => format!(
            "register {len_bytes} bytes; part of them is not mapped, or not writable although the access asks for it"
        ),
        Some(libc::EINVAL) => format!(
            "register {len_bytes} bytes; the access breaks a rule (remote writes and atomics need LOCAL_WRITE, IBA \
             10.6.3.1) or is not offered for such memory"
        ),
        _ => format!("register {len_bytes} bytes"),
    };
    Error::os("reg_mr", what, source)
}

fn locked_limit() -> String {
    getrlimit(Resource::Memlock).current.map_or_else(|| "any amount".into(), |limit| format!("{limit} bytes"))
}

/// Returns the error of a failed creation: resources are exhausted, or a size exceeds the device's limits.
pub(crate) fn create(operation: &'static str, wish: String, source: io::Error) -> Error {
    let remedy = match source.raw_os_error() {
        Some(libc::ENOMEM) => format!(
            "{wish}; the device has no room, or this process may lock no more than {} (RLIMIT_MEMLOCK)",
            locked_limit()
        ),
        Some(libc::EINVAL) => {
            format!("{wish}; a size exceeds the device's limits: farcall devices lists them")
        }
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => format!("{wish}; the device does not offer it"),
        _ => wish,
    };
    Error::os(operation, remedy, source)
}

/// Checks the result of a function that returns null and sets errno on failure.
pub(crate) fn non_null<T>(
    pointer: *mut T,
    fail: impl FnOnce(io::Error) -> Error,
) -> Result<std::ptr::NonNull<T>> {
    std::ptr::NonNull::new(pointer).ok_or_else(|| fail(last()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_their_remedy() {
        let errno = io::Error::from_raw_os_error;
        assert!(register(4096, errno(libc::ENOMEM)).to_string().contains("memlock=-1"));
        assert!(register(4096, errno(libc::EFAULT)).to_string().contains("not mapped"));
        let open = |node| open("mlx5_0", node, errno(libc::ENOENT)).to_string();
        assert!(open(NodeState::Forbidden).contains("/dev/infiniband/uverbs"));
        assert!(open(NodeState::Missing).contains("modprobe ib_uverbs"));
        assert!(no_access("mlx5_0", NodeState::Usable).to_string().contains("ibverbs-providers"));
        assert!(
            create("create_qp", "9 sends".into(), errno(libc::EINVAL))
                .to_string()
                .contains("farcall devices")
        );
    }

    #[test]
    fn returned_numbers_are_error_numbers() {
        assert!(check(0).is_ok());
        assert_eq!(check(libc::EINVAL).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
