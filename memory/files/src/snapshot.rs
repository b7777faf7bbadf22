//! A volume in a file: its tree, then the data of its files, each part with a checksum.
//!
//! ```text
//! magic, 8 bytes | version, u32 | length of the tree, u64 | tree | checksum, u64
//! then, for the runs of blocks that were stored, in order, in segments of at most 256 blocks: bytes | checksum, u64
//! ```
//!
//! Numbers are little-endian. The file is untrusted input: it is rejected if any part is inconsistent.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use farcall_memory::RemoteMemory;
use rapidhash::v3::rapidhash_v3;
use thiserror::Error;

use crate::tree::{BLOCK_BYTES, BadImage, Blocks, Tree};
use crate::volume::{Memory, Volume};

const MAGIC: [u8; 8] = *b"farfiles";
const VERSION: u32 = 1;
/// Maximum number of blocks in one segment.
const PIECE_BLOCKS: u64 = 256;
/// Maximum length of a tree in bytes.
const TREE_BYTES_MAX: u64 = 1 << 34;

/// Error of saving or restoring a volume.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file or the memory cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a snapshot, or one of another version.
    #[error("it is no snapshot that this build knows: {0}")]
    Foreign(&'static str),
    /// The snapshot is damaged.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// The tree in the snapshot is invalid.
    #[error(transparent)]
    Tree(#[from] BadImage),
}

type Result<T, E = SnapshotError> = std::result::Result<T, E>;

/// Splits runs of blocks into segments of at most `PIECE_BLOCKS` blocks.
fn segments(runs: Vec<Blocks>) -> impl Iterator<Item = Blocks> {
    runs.into_iter().flat_map(|Blocks { start, len }| {
        (0..len.div_ceil(PIECE_BLOCKS)).map(move |segment| {
            let from = segment * PIECE_BLOCKS;
            Blocks { start: start + from, len: (len - from).min(PIECE_BLOCKS) }
        })
    })
}

/// Writes a volume to a file that only its owner can read. An existing file is replaced only when the new one is
/// complete. The volume must not change in the meantime: unmount it first.
///
/// # Errors
/// Returns an error if blocks cannot be read from memory nodes or the file cannot be written.
pub fn save(volume: &Volume, path: &Path) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let fresh = path.with_file_name(name);
    let saved = save_to(volume, &fresh).and_then(|()| Ok(std::fs::rename(&fresh, path)?));
    saved.inspect_err(|_| {
        // The incomplete file is useless; failing to remove it is harmless.
        let _ = std::fs::remove_file(&fresh);
    })
}

fn save_to(volume: &Volume, path: &Path) -> Result<()> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let mut to = BufWriter::with_capacity(1 << 20, file);
    let (tree, runs) = {
        let tree = volume.tree();
        (tree.to_image(), tree.stored_blocks())
    };
    to.write_all(&MAGIC)?;
    to.write_all(&VERSION.to_le_bytes())?;
    to.write_all(&(tree.len() as u64).to_le_bytes())?;
    to.write_all(&tree)?;
    to.write_all(&rapidhash_v3(&tree).to_le_bytes())?;
    for Blocks { start, len } in segments(runs) {
        let (at, len_bytes) = (start * BLOCK_BYTES, (len * BLOCK_BYTES) as usize);
        let mut bytes = Vec::with_capacity(len_bytes);
        volume.memory().read(at, len_bytes, &mut bytes).map_err(io::Error::from)?;
        to.write_all(&bytes)?;
        to.write_all(&rapidhash_v3(&bytes).to_le_bytes())?;
    }
    to.flush()?;
    // The snapshot must also survive a power failure.
    to.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(())
}

/// Restores a snapshot into an empty memory, and returns its tree.
///
/// # Errors
/// Returns an error if the file is not a snapshot, is damaged or too large, or if memory nodes cannot store its data.
pub fn restore(path: &Path, memory: &RemoteMemory) -> Result<Tree> {
    let file = File::open(path)?;
    restore_from(BufReader::with_capacity(1 << 20, file), memory, memory.size_bytes() / BLOCK_BYTES)
}

/// Like [`restore`], from any reader into any memory of `blocks` blocks.
///
/// # Errors
/// Returns the errors of [`restore`].
pub fn restore_from(mut from: impl Read, memory: &dyn Memory, blocks: u64) -> Result<Tree> {
    if array(&mut from)? != MAGIC {
        return Err(SnapshotError::Foreign("it begins with other bytes"));
    }
    if u32::from_le_bytes(array(&mut from)?) != VERSION {
        return Err(SnapshotError::Foreign("another version"));
    }
    let len_bytes = u64::from_le_bytes(array(&mut from)?);
    if len_bytes > TREE_BYTES_MAX {
        return Err(SnapshotError::Damaged("its tree has an impossible length"));
    }
    let tree = Tree::from_image(&checked(&mut from, len_bytes)?, blocks)?;
    for Blocks { start, len } in segments(tree.stored_blocks()) {
        let bytes = checked(&mut from, len * BLOCK_BYTES)?;
        memory.write(start * BLOCK_BYTES, &bytes).map_err(io::Error::from)?;
    }
    Ok(tree)
}

fn array<const N: usize>(from: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map_err(short)?;
    Ok(bytes)
}

/// Reads bytes and the checksum after them. Allocates no more memory than the input contains.
fn checked(from: &mut impl Read, len_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(len_bytes).read_to_end(&mut bytes)?;
    let sum = u64::from_le_bytes(array(from)?);
    if bytes.len() as u64 != len_bytes || rapidhash_v3(&bytes) != sum {
        return Err(SnapshotError::Damaged("bytes do not have their checksum"));
    }
    Ok(bytes)
}

fn short(error: io::Error) -> SnapshotError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => SnapshotError::Damaged("its end is missing"),
        _ => error.into(),
    }
}
