//! Mounting and unmounting.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};
use thiserror::Error;

use super::wire::TRANSFER_BYTES_MAX;

/// Why nothing was mounted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    /// There is no FUSE here.
    #[error("cannot open /dev/fuse: {0}; load the module (modprobe fuse), or give the container the device")]
    NoFuse(io::Error),
    /// The directory cannot be used.
    #[error("{dir}: {why}", dir = .0.display(), why = .1)]
    Directory(PathBuf, io::Error),
    /// The system refuses.
    #[error("the system does not mount at {dir}: {why}; mounting takes root (CAP_SYS_ADMIN)", dir = .0.display(), why = .1)]
    Refused(PathBuf, io::Error),
    /// No threads.
    #[error("cannot begin: {0}")]
    System(#[from] io::Error),
}

/// Mounts at a directory, with what the kernel is told beside. What it asks comes out of the descriptor.
pub(super) fn mount(dir: &Path, more: &str) -> Result<(OwnedFd, PathBuf), MountError> {
    let of_directory = |error| MountError::Directory(dir.to_owned(), error);
    let dir = dir.canonicalize().map_err(of_directory)?;
    if !dir.is_dir() {
        return Err(of_directory(io::Error::from(rustix::io::Errno::NOTDIR)));
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(MountError::NoFuse)?;
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},{more},max_read={TRANSFER_BYTES_MAX}\0",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap_or_default();
    rustix::mount::mount("farcall", &dir, "fuse.farcall", MountFlags::NOSUID | MountFlags::NODEV, options)
        .map_err(|error| MountError::Refused(dir.clone(), error.into()))?;
    Ok((device.into(), dir))
}

/// Takes a file system off its directory: nothing there is in use then.
pub(crate) fn unmount(dir: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW)?)
}

/// Takes it off its directory now; it ends when nothing of it is in use any more.
pub(crate) fn detach(dir: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?)
}
