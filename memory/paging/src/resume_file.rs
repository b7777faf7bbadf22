//! The resume file for the next pager: a file of the memory client, which the supervisor holds open.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsmount, fsopen,
};

use crate::run_paths::RunPaths;

/// Creates an unnamed file in memory that is never swapped: a pager that waited for it could wait for itself.
///
/// # Errors
/// Returns an error if the kernel has no such memory (before Linux 6.4).
pub fn create() -> io::Result<File> {
    let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&tmpfs, "noswap")?;
    fsconfig_create(&tmpfs)?;
    let mounted = fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(openat(&mounted, ".", flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Returns the number that identifies the file to a pager: its descriptor in the supervisor.
pub fn number(file: &File) -> i32 {
    file.as_raw_fd()
}

/// Opens the file in the pager through /proc. It is not inherited, so that the program does not get it either.
pub fn open(paths: RunPaths, number: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/proc/{}/fd/{number}", paths.supervisor()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn opens_the_same_file_by_its_number() {
        let file = match create() {
            Ok(file) => file,
            Err(error) => return println!("SKIPPED: no memory that is never swapped: {error}"),
        };
        file.write_all_at(b"kept", 1 << 30).unwrap();
        let opened = open(RunPaths::of(std::process::id()), number(&file)).unwrap();
        let mut found = [0; 4];
        opened.read_exact_at(&mut found, 1 << 30).unwrap();
        assert_eq!(&found, b"kept");
    }
}
