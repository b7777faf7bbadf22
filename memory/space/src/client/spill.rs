//! The spill file: where slabs go that no node has room for. Its bytes are checked as those of nodes are. It has no name
//! as soon as it is open, so nothing is left of it.

use std::fs::{File, OpenOptions, remove_file};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

pub(super) struct SpillFile {
    file: File,
    /// Places that were given back.
    free: Vec<u64>,
    places: u64,
}

impl SpillFile {
    /// A new file, readable by this user alone.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        remove_file(path)?;
        Ok(Self { file, free: Vec::new(), places: 0 })
    }

    /// A place for a slab.
    pub fn take(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.places += 1;
            self.places - 1
        })
    }

    /// A place is free again. What is there is overwritten, or wrong by its checksum.
    pub fn give_back(&mut self, place: u64) {
        self.free.push(place);
    }

    pub fn read(&self, offset: u64, mut bytes: Vec<u8>) -> Result<Vec<u8>, ()> {
        match self.file.read_exact_at(&mut bytes, offset) {
            // Nothing was written so far behind.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(vec![0; bytes.len()]),
            result => result.map(|()| bytes).map_err(drop),
        }
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ()> {
        self.file.write_all_at(bytes, offset).map_err(drop)
    }
}
