//! Kernel files that some programs read through the library.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::private::under_private_nodes;
use crate::symbols::export;
use crate::{context, errno, sysfs_overlay};
use farcall_layout::{Context, Device};

/// Reads a file into a C buffer, without the newline at its end. Returns the number of bytes, or -1.
///
/// # Safety
/// `buffer` must have `len_bytes` bytes.
unsafe fn read_into(path: &Path, buffer: *mut c_char, len_bytes: usize) -> c_int {
    let mut bytes = Vec::new();
    let opened =
        std::fs::File::open(path).and_then(|file| file.take(len_bytes as u64).read_to_end(&mut bytes));
    if let Err(error) = opened {
        return errno::to_return_value(Err(error.raw_os_error().unwrap_or(libc::EIO)));
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    bytes.truncate(len_bytes.saturating_sub(1));
    // SAFETY: contract of this function: `buffer` has `len_bytes` bytes. The file's bytes are truncated so that the
    // terminating zero fits.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast::<u8>(), bytes.len());
        if len_bytes > 0 {
            *buffer.add(bytes.len()) = 0;
        }
    }
    bytes.len() as c_int
}

/// # Safety
/// Both pointers must be C strings.
unsafe fn joined(dir: *const c_char, file: *const c_char) -> std::path::PathBuf {
    // SAFETY: contract of this function: both pointers are C strings.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    sysfs_overlay::place(
        Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes())),
    )
}

export! {
    "IBVERBS_1.0" {
        /// Returns the path of the kernel's files.
        fn ibv_get_sysfs_path() -> *const c_char {
            c"/sys".as_ptr()
        }

        /// Reads `dir/file`.
        fn ibv_read_sysfs_file(
            dir: *const c_char, file: *const c_char, buffer: *mut c_char, len_bytes: usize,
        ) -> c_int {
            // SAFETY: contract of the original function: `dir` and `file` are C strings, and `buffer` has `len_bytes`
            // bytes.
            unsafe { read_into(&joined(dir, file), buffer, len_bytes) }
        }
    }
}

/// Queried by `ibv_devinfo`: 0 is RoCEv1 (or InfiniBand), 1 RoCEv2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut Context,
    port_num: u8,
    index: u32,
    gid_type: *mut c_int,
) -> c_int {
    // SAFETY: contract of the original function: `context` is open.
    let table = context::gid_entries(unsafe { context::object(context) }, port_num.into());
    let Some(found) = table.iter().find(|entry| entry.gid_index == index) else {
        return errno::to_return_value(Err(libc::ENODATA));
    };
    // SAFETY: contract of the original function: `gid_type` is valid.
    unsafe { *gid_type = c_int::from(found.gid_type == 2) };
    0
}
under_private_nodes!(ibv_query_gid_type);

/// Reads a file of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    buffer: *mut c_char,
    len_bytes: usize,
    device: *mut Device,
    file: *const c_char,
) -> c_int {
    // SAFETY: contract of the original function: `device` is valid, `file` is a C string, and `buffer` has `len_bytes`
    // bytes.
    unsafe { read_into(&joined((*device).ibdev_path.as_ptr(), file), buffer, len_bytes) }
}
under_private_nodes!(ibv_read_ibdev_sysfs_file);
