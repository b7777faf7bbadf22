//! Arbitrary records in the log of a tree, each with a correct checksum: no panic, and the log is either read as a
//! valid tree or refused.
//!
//! An input is a sequence of records: the length in two bytes, then the bytes. The first record is the checkpoint.

use std::sync::Arc;

use farcall_files::{BLOCK_BYTES, Log, LogStorage, ROOT};
use rapidhash::v3::rapidhash_v3;
use rustix::io::Errno;

const SIZE_BYTES: u64 = 64 * BLOCK_BYTES;
const GENERATION: u64 = 1;

/// A log storage that accepts no writes.
struct Nowhere;

impl LogStorage for Nowhere {
    fn write(&self, _offset: u64, _bytes: &[u8]) -> Result<(), Errno> {
        Err(Errno::IO)
    }
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut half = [*b"farlog01", GENERATION.to_le_bytes()].concat();
    let mut rest = bytes;
    while let Some((len, more)) = rest.split_first_chunk::<2>() {
        let (record, after) = more.split_at((u16::from_le_bytes(*len) as usize).min(more.len()));
        half.extend_from_slice(&(record.len() as u32).to_le_bytes());
        half.extend_from_slice(&(rapidhash_v3(record) ^ GENERATION).to_le_bytes());
        half.extend_from_slice(record);
        rest = after;
    }
    if let Ok((_, Some(tree))) = Log::open(Arc::new(Nowhere), SIZE_BYTES, &[half]) {
        tree.attributes(ROOT).expect("a tree has a root");
        assert!(tree.stored_blocks().iter().all(|blocks| blocks.start + blocks.len <= 64));
    }
}
