//! IOzone's passes over one file: a new file is written, rewritten, read and reread, each time from the first record
//! to the last.

use std::fs::{File, OpenOptions, remove_file};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Instant;

/// Length of a page. Each page of a file begins with a word that identifies the page and the pass that wrote it.
const PAGE_BYTES: usize = 4096;

/// A pass over a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Writes a new file.
    Write,
    /// Writes the complete file again.
    Rewrite,
    /// Reads the complete file.
    Read,
    /// Reads the complete file again.
    Reread,
}

names! { Pass { Write => "write", Rewrite => "rewrite", Read => "read", Reread => "reread" } }

/// Storage of the bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// Reads return the written bytes.
    Kept,
    /// Nothing is stored. The file exists beforehand, and is accessed without the page cache, which would store the
    /// bytes.
    None,
}

/// A file, and the pass that wrote it last.
pub(super) struct PassState {
    path: PathBuf,
    len_bytes: u64,
    contents: Contents,
    /// Number of passes that wrote; 0 if the file has not been written yet.
    turn: u64,
}

impl PassState {
    pub(super) fn new(path: PathBuf, len_bytes: u64, contents: Contents) -> Self {
        Self { path, len_bytes, contents, turn: 0 }
    }

    /// Returns the bytes a second of a pass. Writes the file first if the pass needs it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written or read, or if a page is not the one that was written.
    pub(super) fn pass(&mut self, pass: Pass, record_bytes: usize) -> io::Result<f64> {
        if pass != Pass::Write && self.turn == 0 {
            self.pass(Pass::Write, 1 << 20)?;
        }
        let file = self.open(pass)?;
        let mut record = Record::new(record_bytes);
        let begun = Instant::now();
        match pass {
            Pass::Write | Pass::Rewrite => {
                self.turn += 1;
                self.each_record(record_bytes, |at, count| {
                    file.write_all_at(record.stamped(at, count, self.turn), at)
                })
            }
            Pass::Read | Pass::Reread => self.each_record(record_bytes, |at, count| {
                let bytes = record.bytes(count);
                file.read_exact_at(bytes, at)?;
                match self.contents {
                    Contents::Kept => check(bytes, at, self.turn),
                    Contents::None => Ok(()),
                }
            }),
        }?;
        Ok(self.len_bytes as f64 / begun.elapsed().as_secs_f64())
    }

    fn open(&self, pass: Pass) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match self.contents {
            Contents::Kept if pass == Pass::Write => {
                match remove_file(&self.path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => options.create_new(true),
                };
            }
            Contents::Kept => {}
            Contents::None => {
                options.custom_flags(libc::O_DIRECT);
            }
        }
        options.open(&self.path)
    }

    /// Calls `transfer` with offset and length of each record. The last record may be shorter than the others.
    fn each_record(
        &self,
        record_bytes: usize,
        mut transfer: impl FnMut(u64, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        for at in (0..self.len_bytes).step_by(record_bytes) {
            let left = usize::try_from(self.len_bytes - at).unwrap_or(usize::MAX);
            transfer(at, left.min(record_bytes))?;
        }
        Ok(())
    }
}

/// Buffer of a record that begins at a page boundary, as direct I/O requires.
struct Record {
    memory: Vec<u8>,
    from: usize,
}

impl Record {
    fn new(len_bytes: usize) -> Self {
        let memory = vec![0; len_bytes + PAGE_BYTES];
        let from = memory.as_ptr().align_offset(PAGE_BYTES);
        Self { memory, from }
    }

    fn bytes(&mut self, count: usize) -> &mut [u8] {
        &mut self.memory[self.from..][..count]
    }

    /// Returns the bytes of the record at offset `at`, as pass `turn` writes them.
    fn stamped(&mut self, at: u64, count: usize, turn: u64) -> &[u8] {
        let bytes = self.bytes(count);
        for (page, place) in bytes.chunks_exact_mut(PAGE_BYTES).zip((at..).step_by(PAGE_BYTES)) {
            page[..8].copy_from_slice(&stamp(place, turn));
        }
        bytes
    }
}

fn stamp(at: u64, turn: u64) -> [u8; 8] {
    ((at / PAGE_BYTES as u64) | (turn << 40)).to_ne_bytes()
}

fn check(bytes: &[u8], at: u64, turn: u64) -> io::Result<()> {
    for (page, place) in bytes.chunks_exact(PAGE_BYTES).zip((at..).step_by(PAGE_BYTES)) {
        if page[..8] != stamp(place, turn) {
            let what = format!("the page at byte {place} is not the one that was written there last");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_go_over_the_whole_file_and_another_page_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut file = PassState::new(path.clone(), 300 << 10, Contents::Kept);
        for record_bytes in [4 << 10, 64 << 10, 1 << 20] {
            for pass in [Pass::Write, Pass::Rewrite, Pass::Read, Pass::Reread] {
                assert!(file.pass(pass, record_bytes).unwrap() > 0.0, "{pass}");
            }
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 300 << 10);
        let on_disk = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut page = [0; PAGE_BYTES];
        on_disk.read_exact_at(&mut page, 0).unwrap();
        on_disk.write_all_at(&page, 5 * PAGE_BYTES as u64).unwrap();
        let wrong = file.pass(Pass::Reread, 64 << 10).unwrap_err().to_string();
        assert!(wrong.contains("byte 20480"), "{wrong}");
        file.pass(Pass::Rewrite, 64 << 10).unwrap();
        file.pass(Pass::Read, 4 << 10).unwrap();
    }

    #[test]
    fn a_file_is_written_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = PassState::new(dir.path().join("file"), 64 << 10, Contents::Kept);
        assert!(file.pass(Pass::Read, 4 << 10).unwrap() > 0.0);
    }
}
