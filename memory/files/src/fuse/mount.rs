//! Mounting and unmounting.
//!
//! A file system is first created, and attached to its directory when it serves, so that programs that wait for the
//! mount do not start earlier.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use thiserror::Error;

use super::wire::TRANSFER_BYTES_MAX;
use crate::mounts::farcall_mounted_at;

/// Error of mounting.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    /// FUSE is not available.
    #[error("cannot open /dev/fuse: {0}; load the module (modprobe fuse), or give the container the device")]
    NoFuse(io::Error),
    /// The directory cannot be used.
    #[error("{dir}: {why}", dir = .0.display(), why = .1)]
    Directory(PathBuf, io::Error),
    /// A file system of this library is mounted there already. Its process may have ended.
    #[error("{dir}: a file system of farcall mount is mounted there already", dir = .0.display())]
    Occupied(PathBuf),
    /// A file system is mounted at the directory, and the process that served it has ended.
    #[error("{dir}: the process that served the file system that is mounted there has ended", dir = .0.display())]
    Ended(PathBuf),
    /// The kernel rejected the mount.
    #[error("the system does not mount at {dir}: {why}; mounting takes root (CAP_SYS_ADMIN)", dir = .0.display(), why = .1)]
    Refused(PathBuf, io::Error),
    /// Threads or descriptors could not be created.
    #[error("cannot serve a file system")]
    System(#[from] io::Error),
}

/// Options of a mount.
#[derive(Clone, Copy, Debug)]
pub struct MountOptions<'a> {
    /// Source in the list of mounts.
    pub source: &'a str,
    /// `true` if the kernel rejects changes (`EROFS`).
    pub is_read_only: bool,
}

/// A file system that is not attached to a directory yet. Dropping it ends it.
pub(crate) struct UnattachedMount {
    dir: PathBuf,
    device: OwnedFd,
    mount: OwnedFd,
}

impl UnattachedMount {
    /// Creates a file system for a directory. `flags` are the FUSE options without values.
    pub(super) fn create(dir: &Path, how: MountOptions<'_>, flags: &[&str]) -> Result<Self, MountError> {
        if let Ok(Some(mounted)) = farcall_mounted_at(dir) {
            return Err(MountError::Occupied(mounted.at));
        }
        let dir = dir.canonicalize().map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOTCONN | Errno::CONNABORTED) => MountError::Ended(dir.to_owned()),
            _ => MountError::Directory(dir.to_owned(), error),
        })?;
        if !dir.is_dir() {
            return Err(MountError::Directory(dir, Errno::NOTDIR.into()));
        }
        let device =
            OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(MountError::NoFuse)?;
        match create(&device, how, flags) {
            Ok(mount) => Ok(Self { dir, device: device.into(), mount }),
            Err(error) => Err(MountError::Refused(dir, error.into())),
        }
    }

    /// Returns the directory, without symbolic links.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a duplicate of the descriptor from which the requests of the kernel are read.
    pub(crate) fn device(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }

    /// Attaches it to its directory.
    pub(crate) fn attach(&self) -> Result<(), MountError> {
        move_mount(&self.mount, "", CWD, &self.dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|error| MountError::Refused(self.dir.clone(), error.into()))
    }
}

fn create(device: &File, how: MountOptions<'_>, flags: &[&str]) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let options = [
        ("source", how.source.to_owned()),
        ("subtype", "farcall".to_owned()),
        ("fd", device.as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", rustix::process::getuid().as_raw().to_string()),
        ("group_id", rustix::process::getgid().as_raw().to_string()),
        ("max_read", TRANSFER_BYTES_MAX.to_string()),
    ];
    options.iter().try_for_each(|(name, value)| fsconfig_set_string(&context, *name, &**value))?;
    let read_only = how.is_read_only.then_some(&"ro");
    flags.iter().chain(read_only).try_for_each(|flag| fsconfig_set_flag(&context, *flag))?;
    fsconfig_create(&context)?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, how.is_read_only);
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Unmounts a file system. No file of it may be in use.
pub(crate) fn unmount(dir: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW)?)
}

/// Detaches a file system from its directory immediately; it ends when no file of it is in use.
pub(crate) fn detach(dir: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?)
}

/// Detaches the topmost file system at the directory with [`detach`], if it is one of Farcall's. The file system of
/// the caller may not have been attached.
pub(crate) fn detach_own(dir: &Path) -> io::Result<()> {
    if farcall_mounted_at(dir)?.is_some() { detach(dir) } else { Ok(()) }
}

/// Unmounts the file system at a directory. If `lazy`, it is detached even if it is in use, and ends when it no longer
/// is.
///
/// # Errors
/// Returns `EBUSY` if it is in use, or another error of umount(2).
pub fn unmount_at(dir: &Path, lazy: bool) -> io::Result<()> {
    if lazy { detach(dir) } else { unmount(dir) }
}
