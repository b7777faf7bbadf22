//! The limit of a file system by FUSE: the same loop as that of `farcall mount`, with nothing behind it.

use crate::peer::{PeerError, PeerPlace, PeerTask};
use farcall_files::{Memory, Result, mount_one_file, serve_one_file};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::thread;

/// As many as serve `farcall mount`.
const THREADS: usize = 8;

/// Mounts one file of so many bytes at a directory. What is written there is gone, and whatever is read is zeros.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EmptyFiles {
    pub(super) dir: PathBuf,
    pub(super) len_bytes: u64,
}

/// A memory that does nothing.
struct Nothing;

impl Memory for Nothing {
    fn read(&self, _at: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.resize(bytes.len() + len_bytes, 0);
        Ok(())
    }

    fn write(&self, _at: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl PeerTask for EmptyFiles {
    const KIND: &'static str = "empty-files";

    fn run(self, place: PeerPlace) -> std::result::Result<(), PeerError> {
        let device = mount_one_file(&self.dir).map_err(|error| PeerError::Part(error.to_string()))?;
        place.ready()?;
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| serve_one_file(&device, &Nothing, self.len_bytes, |_| {}));
            }
        });
        Ok(())
    }
}
