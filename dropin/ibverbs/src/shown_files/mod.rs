//! The kernel's files about RDMA devices, shown to programs as they would be for the software RNIC.
//!
//! UCX asks for a character device of the name that the library told, many read link layers and GID attributes. When
//! the library is preloaded, calls that name such a file are redirected to a tree of real files; everything else
//! passes, for the price of comparing a few bytes. Mounting the tree over the kernel's instead would need a user
//! namespace, which containers and current distributions refuse, and in which peers no longer see the same user.

mod interposed;
mod next;
mod tree;

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::errno;

/// What the tree stands for, with all below.
const SHOWN: [&str; 5] = [
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/devices/virtual/infiniband",
    "/sys/devices/virtual/infiniband_verbs",
    "/dev/infiniband",
];

/// Whether a path is one that the tree stands for.
fn is_shown(path: &[u8]) -> bool {
    SHOWN.iter().any(|redirected| match path.strip_prefix(redirected.as_bytes()) {
        Some(rest) => rest.is_empty() || (rest[0] == b'/' && stays_below(rest)),
        None => false,
    })
}

/// Whether a path never leaves the folder that it begins in.
fn stays_below(rest: &[u8]) -> bool {
    let mut depth = 0_i32;
    Path::new(OsStr::from_bytes(rest)).components().all(|component| {
        depth += match component {
            Component::Normal(_) => 1,
            Component::ParentDir => -1,
            _ => 0,
        };
        depth >= 0
    })
}

/// Whether the first two bytes are those of a path of ours.
///
/// # Safety
/// `path` must be a C string.
#[inline]
unsafe fn begins_like_ours(path: *const c_char) -> bool {
    // SAFETY: the caller's string; its second byte is read only if the first is not its end.
    unsafe { *path as u8 == b'/' && matches!(*path.add(1) as u8, b's' | b'd') }
}

/// Where a path leads; `None` if it is none of ours, or there is no tree. Keeps `errno`.
///
/// # Safety
/// `path` must be null or a C string.
unsafe fn redirected(path: *const c_char) -> Option<CString> {
    // Nearly every path ends here.
    // SAFETY: the caller's string.
    if path.is_null() || !unsafe { begins_like_ours(path) } {
        return None;
    }
    // SAFETY: the caller's string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !is_shown(path) {
        return None;
    }
    let before = errno::get();
    let found = in_tree(path);
    errno::set(before);
    found
}

fn in_tree(path: &[u8]) -> Option<CString> {
    let mut whole = tree::root()?.as_os_str().as_bytes().to_vec();
    whole.extend_from_slice(path);
    CString::new(whole).ok()
}

/// Where the library itself finds a file of the kernel.
pub fn place(path: PathBuf) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    match is_shown(bytes).then(|| in_tree(bytes)).flatten() {
        Some(found) => PathBuf::from(OsStr::from_bytes(found.as_bytes())),
        None => path,
    }
}
