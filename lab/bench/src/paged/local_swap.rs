//! Swap areas of this machine: a file, and compressed memory. They have priority over other areas while they are used.

use farcall_paging::{areas, priority_now, swap_header, swap_off, swap_on};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Path of the file, on a disk (/tmp may be in memory). The name is fixed, so that the file of a killed run is found.
const FILE: &str = "/var/tmp/farcall-figures.swap";
/// Directory in which the kernel creates and removes compressed memory devices.
const ZRAM: &str = "/sys/class/zram-control";
const UUID: [u8; 16] = *b"farcall-figures\0";

/// A swap area in use; dropping it ends the use.
pub(super) struct SwapArea {
    path: PathBuf,
    kind: Kind,
}

enum Kind {
    File,
    /// Compressed memory device with this number.
    Zram(u32),
}

impl SwapArea {
    /// Creates and uses a file of `size_bytes` bytes.
    pub(super) fn on_disk(size_bytes: u64) -> io::Result<Self> {
        let path = PathBuf::from(FILE);
        if areas()?.iter().any(|area| area.path == path) {
            swap_off(&path)?;
        }
        // It may not exist.
        let _ = fs::remove_file(&path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let area = Self { path, kind: Kind::File };
        fallocate(&file, FallocateFlags::empty(), 0, size_bytes)?;
        area.begin(file, size_bytes)
    }

    /// Creates and uses compressed memory of `size_bytes` bytes before compression.
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
        // Swapping may not have begun.
        let _ = swap_off(&self.path);
        let _ = match self.kind {
            Kind::File => fs::remove_file(&self.path),
            Kind::Zram(number) => fs::write(Path::new(ZRAM).join("hot_remove"), number.to_string()),
        };
    }
}
