//! The limit of a FUSE file system: the same loop as that of `farcall mount`, without any storage.

use crate::peer::{PeerError, PeerPlace, PeerTask};
use farcall_files::{Memory, Result, mount_one_file, serve_one_file};
use farcall_verbs::with_sources;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::thread;

/// Number of threads, the same as for `farcall mount`.
const THREADS: usize = 8;

/// Task that mounts one file of `len_bytes` bytes at a directory. Written bytes are discarded, and reads return zeros.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EmptyFiles {
    pub(super) dir: PathBuf,
    pub(super) len_bytes: u64,
}

/// A memory that stores nothing.
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
        let device = mount_one_file(&self.dir).map_err(|error| PeerError::Part(with_sources(&error)))?;
        place.ready()?;
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| serve_one_file(&device, &Nothing, self.len_bytes, |_| {}));
            }
        });
        Ok(())
    }
}
