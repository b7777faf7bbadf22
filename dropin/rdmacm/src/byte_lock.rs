//! Locks on single bytes of a file that the processes of one user share. The kernel releases them when their holder
//! exits, so that exited processes block no other process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Holder of a lock.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Holder {
    /// The open file description, which a forked child inherits.
    File = libc::F_OFD_SETLK,
    /// The process, until it exits or closes any descriptor of the file.
    Process = libc::F_SETLK,
}

/// Opens a file for locks. Creates it if it does not exist.
///
/// # Errors
/// Returns the operating system's error; `PermissionDenied` if the file belongs to another user.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(file)
}

/// Changes the lock of a byte to a kind (`F_WRLCK`, `F_RDLCK`, `F_UNLCK`). Returns `false` if another holder prevents
/// it.
///
/// # Errors
/// Returns the kernel's other errors.
pub fn lock(file: &File, holder: Holder, kind: libc::c_int, byte: i64) -> io::Result<bool> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence, lock.l_start, lock.l_len) =
        (kind as libc::c_short, libc::SEEK_SET as libc::c_short, byte, 1);
    // SAFETY: `file` is open for the duration of the call, and `lock` is a completely initialized structure.
    match unsafe { libc::fcntl(file.as_raw_fd(), holder as libc::c_int, &raw const lock) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            error => Err(error),
        },
    }
}
