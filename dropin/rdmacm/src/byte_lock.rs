//! Locks on single bytes of a file that processes of one user share. The kernel takes them back when their holder ends,
//! so that nothing of the dead is in anybody's way.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Who has a lock.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Holder {
    /// The open file: also a forked child that has it.
    File = libc::F_OFD_SETLK,
    /// The process, until it ends or closes any descriptor of the file.
    Process = libc::F_SETLK,
}

/// Opens a file for locks, or makes it.
///
/// # Errors
/// If that cannot be; `PermissionDenied` if it is another user's.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(file)
}

/// Changes the lock of a byte to a kind (`F_WRLCK`, `F_RDLCK`, `F_UNLCK`); whether nobody else is in the way.
///
/// # Errors
/// What the kernel says otherwise.
pub fn lock(file: &File, holder: Holder, kind: libc::c_int, byte: i64) -> io::Result<bool> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence, lock.l_start, lock.l_len) =
        (kind as libc::c_short, libc::SEEK_SET as libc::c_short, byte, 1);
    // SAFETY: the caller's file, and a structure that is whole.
    match unsafe { libc::fcntl(file.as_raw_fd(), holder as libc::c_int, &raw const lock) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            error => Err(error),
        },
    }
}
