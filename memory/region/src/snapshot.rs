//! Snapshot files: the pages of a region at one moment.
//!
//! A file consists of a header (magic, version, page size, size of the region in bytes), a record for each page that
//! is not zero (number, checksum, bytes), and a trailer (a number that no page has, the number of records, the
//! checksum of the region size and of their checksums). All numbers are little-endian 64-bit words.

use std::fs::{File, OpenOptions, remove_file, rename};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use farcall_memory::{IoError, PAGE_BYTES};
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use thiserror::Error;

const MAGIC: u64 = u64::from_le_bytes(*b"FARCREGN");
const VERSION: u64 = 1;
const END: u64 = u64::MAX;
/// Seed of the checksums. They detect damage and protect no secret, so it is constant.
const SECRETS: RapidSecrets = RapidSecrets::seed(0x5eed_0f5a_75a7_0001);

/// Error of writing or reading a snapshot.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Another snapshot is in progress.
    #[error("a snapshot of this region is being made; wait for its end")]
    InProgress,
    /// A page cannot be read from the memory nodes.
    #[error("no snapshot: {0}")]
    Io(IoError),
    /// A page is poisoned or was removed.
    #[error("no snapshot: page {page} of the region cannot be read; see RemoteRegion")]
    Gone {
        /// Number of the page.
        page: u64,
    },
    /// A device reads or writes a page continuously, so it cannot be moved.
    #[error("no snapshot: page {page} of the region is in use by a device; end that before")]
    Busy {
        /// Number of the page.
        page: u64,
    },
    /// The region was closed or has failed.
    #[error("no snapshot: the region does not work any more")]
    Closed,
    /// This process is a forked child of the process that opened the region.
    #[error("no snapshot: the region belongs to the process that opened it")]
    Forked,
    /// The file cannot be written or read.
    #[error("cannot read or write the snapshot file")]
    System(#[from] io::Error),
    /// The bytes are not a complete snapshot.
    #[error("the file is no whole snapshot of this version: {0}")]
    Malformed(&'static str),
    /// The snapshot is of a larger region.
    #[error("the snapshot is of a region of {size_bytes} bytes, and this one has {room_bytes}")]
    TooLarge {
        /// Size in bytes of the region of the snapshot.
        size_bytes: u64,
        /// Size in bytes of this region.
        room_bytes: u64,
    },
}

fn sum(page: u64, bytes: &[u8]) -> u64 {
    rapidhash_v3_seeded(bytes, &SECRETS) ^ page.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn chain(before: u64, sum: u64) -> u64 {
    (before.rotate_left(7) ^ sum).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Writes a snapshot to a temporary file, which is renamed when it is complete.
pub(crate) struct Writer {
    file: BufWriter<File>,
    path: PathBuf,
    partial: PathBuf,
    records: u64,
    digest: u64,
}

impl Writer {
    /// Creates the temporary file, readable only by the current user.
    pub fn create(path: &Path, size_bytes: u64) -> io::Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".partial-{}", std::process::id()));
        let partial = PathBuf::from(partial);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        let mut writer = Self {
            file: BufWriter::with_capacity(1 << 18, file),
            path: path.to_owned(),
            partial,
            records: 0,
            digest: chain(0, size_bytes),
        };
        for word in [MAGIC, VERSION, PAGE_BYTES as u64, size_bytes] {
            writer.word(word)?;
        }
        Ok(writer)
    }

    fn word(&mut self, word: u64) -> io::Result<()> {
        self.file.write_all(&word.to_le_bytes())
    }

    pub fn page(&mut self, page: u64, bytes: &[u8]) -> io::Result<()> {
        let sum = sum(page, bytes);
        self.word(page)?;
        self.word(sum)?;
        self.file.write_all(bytes)?;
        (self.records, self.digest) = (self.records + 1, chain(self.digest, sum));
        Ok(())
    }

    /// Completes the snapshot: writes the trailer, synchronizes the file and renames it.
    pub fn finish(mut self) -> io::Result<()> {
        for word in [END, self.records, self.digest] {
            self.word(word)?;
        }
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        rename(&self.partial, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After `finish` the temporary name no longer exists; otherwise the incomplete file is removed.
        let _ = remove_file(&self.partial);
    }
}

fn read_word(from: &mut impl Read) -> Result<u64, SnapshotError> {
    let mut bytes = [0; 8];
    read_exact(from, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn read_exact(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), SnapshotError> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => SnapshotError::Malformed("it ends too early"),
        _ => SnapshotError::System(error),
    })
}

/// Reads a snapshot for a region of `room_bytes` bytes, and calls `on_page` with each of its pages.
///
/// # Errors
/// Returns an error if the snapshot is damaged or of a larger region. `on_page` may already have been called with some
/// of its pages, which are valid.
pub fn read_snapshot(
    from: &mut impl Read,
    room_bytes: u64,
    mut on_page: impl FnMut(u64, &[u8; PAGE_BYTES]),
) -> Result<(), SnapshotError> {
    for (expected, what) in [
        (MAGIC, "it begins with other bytes"),
        (VERSION, "its version is another"),
        (PAGE_BYTES as u64, "its pages have another size"),
    ] {
        if read_word(from)? != expected {
            return Err(SnapshotError::Malformed(what));
        }
    }
    let size_bytes = read_word(from)?;
    if size_bytes > room_bytes {
        return Err(SnapshotError::TooLarge { size_bytes, room_bytes });
    }
    let (mut records, mut digest, mut bytes) = (0, chain(0, size_bytes), [0; PAGE_BYTES]);
    loop {
        let page = read_word(from)?;
        if page == END {
            break;
        }
        if page >= size_bytes / PAGE_BYTES as u64 {
            return Err(SnapshotError::Malformed("a page is outside of its region"));
        }
        let expected = read_word(from)?;
        read_exact(from, &mut bytes)?;
        if sum(page, &bytes) != expected {
            return Err(SnapshotError::Malformed("the checksum of a page is wrong"));
        }
        on_page(page, &bytes);
        (records, digest) = (records + 1, chain(digest, expected));
    }
    if (read_word(from)?, read_word(from)?) != (records, digest) {
        return Err(SnapshotError::Malformed("pages are missing"));
    }
    Ok(())
}

/// Like [`read_snapshot`], for a file.
pub(crate) fn read_file(
    path: &Path,
    room_bytes: u64,
    on_page: impl FnMut(u64, &[u8; PAGE_BYTES]),
) -> Result<(), SnapshotError> {
    read_snapshot(&mut BufReader::with_capacity(1 << 18, File::open(path)?), room_bytes, on_page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(pages: &[(u64, u8)]) -> Vec<u8> {
        let path =
            std::env::temp_dir().join(format!("farcall-snapshot-{}-{}", std::process::id(), pages.len()));
        let mut writer = Writer::create(&path, 10 * PAGE_BYTES as u64).unwrap();
        for (page, byte) in pages {
            writer.page(*page, &[*byte; PAGE_BYTES]).unwrap();
        }
        writer.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<(u64, u8)>, SnapshotError> {
        let mut pages = Vec::new();
        read_snapshot(&mut &*bytes, 10 * PAGE_BYTES as u64, |page, bytes| pages.push((page, bytes[9])))?;
        Ok(pages)
    }

    #[test]
    fn detects_every_flipped_byte_of_a_snapshot() {
        let pages = [(3, 1), (9, 2), (0, 3)];
        let mut bytes = written(&pages);
        assert_eq!(read(&bytes).unwrap(), pages);
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(read(&bytes).is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_err(), "{end} bytes");
        }
    }
}
