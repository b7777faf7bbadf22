//! The spill file: slabs that no node has capacity for. Its bytes are checked like those of nodes. The file is
//! unlinked as soon as it is open, so it does not outlive the process.

use std::fs::{File, OpenOptions, remove_file};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

pub(super) struct SpillFile {
    file: File,
    /// Slots that were released.
    free: Vec<u64>,
    slot_count: u64,
}

impl SpillFile {
    /// Creates a file that only the current user can read.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        remove_file(path)?;
        Ok(Self { file, free: Vec::new(), slot_count: 0 })
    }

    /// Allocates a slot for a slab.
    pub fn allocate(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.slot_count += 1;
            self.slot_count - 1
        })
    }

    /// Releases a slot. Its content is overwritten later, or detected as wrong by its checksum.
    pub fn free_slot(&mut self, slot: u64) {
        self.free.push(slot);
    }

    pub fn read(&self, offset: u64, mut bytes: Vec<u8>) -> Result<Vec<u8>, ()> {
        match self.file.read_exact_at(&mut bytes, offset) {
            // The file has not been written up to this offset.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(vec![0; bytes.len()]),
            result => result.map(|()| bytes).map_err(drop),
        }
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ()> {
        self.file.write_all_at(bytes, offset).map_err(drop)
    }
}
