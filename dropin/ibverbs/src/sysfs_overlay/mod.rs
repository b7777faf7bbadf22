//! The kernel's files about RDMA devices, presented to programs as they would be for the software RNIC.
//!
//! UCX requires a character device with the name that the library returned, and many programs read link layers and GID
//! attributes. If the library is preloaded, calls with the path of such a file are redirected to a tree of real files.
//! All other calls are passed on, at the cost of comparing a few bytes. Mounting the tree over the kernel's would
//! require a user namespace, which containers and current distributions refuse, and in which peers would no longer see
//! the same user.

mod interposed;
mod next;
mod tree;

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::errno;

/// Paths that the tree replaces, including everything below them.
const SHOWN: [&str; 5] = [
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/devices/virtual/infiniband",
    "/sys/devices/virtual/infiniband_verbs",
    "/dev/infiniband",
];

/// Returns whether the tree replaces a path.
fn is_overlay_path(path: &[u8]) -> bool {
    SHOWN.iter().any(|redirected| match path.strip_prefix(redirected.as_bytes()) {
        Some(rest) => rest.is_empty() || (rest[0] == b'/' && stays_below(rest)),
        None => false,
    })
}

/// Returns whether a path never leaves the directory in which it begins.
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

/// Returns whether the first two bytes are those of a path that the tree replaces.
///
/// # Safety
/// `path` must be a C string.
#[inline]
unsafe fn begins_like_ours(path: *const c_char) -> bool {
    // SAFETY: contract of this function: `path` is a C string. The second byte is read only if the first is not the
    // terminating zero.
    unsafe { *path as u8 == b'/' && matches!(*path.add(1) as u8, b's' | b'd') }
}

/// Returns the replacement of a path; `None` if the tree does not replace it, or there is no tree. Preserves `errno`.
///
/// # Safety
/// `path` must be null or a C string.
unsafe fn redirected(path: *const c_char) -> Option<CString> {
    // Nearly every path is excluded here.
    // SAFETY: contract of this function: `path`, which is not null, is a C string.
    if path.is_null() || !unsafe { begins_like_ours(path) } {
        return None;
    }
    // SAFETY: contract of this function: `path`, which is not null, is a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !is_overlay_path(path) {
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

/// Returns the path at which the library itself finds a kernel file.
pub fn place(path: PathBuf) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    match is_overlay_path(bytes).then(|| in_tree(bytes)).flatten() {
        Some(found) => PathBuf::from(OsStr::from_bytes(found.as_bytes())),
        None => path,
    }
}
