//! Swap areas of this machine: a file, and compressed memory. They go first while they are used.

use farcall_paging::{areas, priority_now, swap_header, swap_off, swap_on};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file: on a disk, where /tmp may be memory. One name, so that what a run left that was killed is found.
const FILE: &str = "/var/tmp/farcall-figures.swap";
/// Where the kernel makes and removes compressed memory.
const ZRAM: &str = "/sys/class/zram-control";
const UUID: [u8; 16] = *b"farcall-figures\0";

/// A swap area in use; dropping it ends that.
pub(super) struct SwapArea {
    path: PathBuf,
    kind: Kind,
}

enum Kind {
    File,
    /// Of this number.
    Zram(u32),
}

impl SwapArea {
    /// A file of so many bytes.
    pub(super) fn on_disk(size_bytes: u64) -> io::Result<Self> {
        let path = PathBuf::from(FILE);
        if areas()?.iter().any(|area| area.path == path) {
            swap_off(&path)?;
        }
        // It may not be there.
        let _ = fs::remove_file(&path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let area = Self { path, kind: Kind::File };
        fallocate(&file, FallocateFlags::empty(), 0, size_bytes)?;
        area.begin(file, size_bytes)
    }

    /// Compressed memory of so many bytes, before they are compressed.
    pub(super) fn in_zram(size_bytes: u64) -> io::Result<Self> {
        let number = fs::read_to_string(Path::new(ZRAM).join("hot_add")).map_err(|error| {
            io::Error::new(error.kind(), format!("{ZRAM}: {error} (modprobe zram, where the kernel has it)"))
        })?;
        let number = number.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        let area = Self { path: format!("/dev/zram{number}").into(), kind: Kind::Zram(number) };
        fs::write(format!("/sys/block/zram{number}/disksize"), size_bytes.to_string())?;
        let file = OpenOptions::new().write(true).open(&area.path)?;
        area.begin(file, size_bytes)
    }

    fn begin(self, mut file: File, size_bytes: u64) -> io::Result<Self> {
        file.write_all(&swap_header(size_bytes, UUID))?;
        file.sync_all()?;
        drop(file);
        swap_on(&self.path, priority_now()?)?;
        Ok(self)
    }
}

impl Drop for SwapArea {
    fn drop(&mut self) {
        // It may not have begun.
        let _ = swap_off(&self.path);
        let _ = match self.kind {
            Kind::File => fs::remove_file(&self.path),
            Kind::Zram(number) => fs::write(Path::new(ZRAM).join("hot_remove"), number.to_string()),
        };
    }
}
