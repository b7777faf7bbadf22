//! Small segments that share one memfd, one descriptor and one mapping.

use farcall_verbs::{Error, Result};

use crate::segment::{Segment, SegmentBacking, allocate, whole_pages};

/// A sealed memfd whose parts are allocated in sequence; it exists until the last part is dropped. A process that
/// receives the descriptor for one part can map all of them, so all parts must be equally confidential.
pub struct SegmentFile {
    all: SegmentBacking,
    allocated_bytes_total: usize,
}

impl SegmentFile {
    /// Creates a file for parts of `file_bytes` in total, and the first part, as [`SegmentFile::allocate`] returns the
    /// others.
    ///
    /// # Errors
    /// Returns the errors of [`Segment::create`]. Also fails if the part is longer than the file.
    pub fn begin(
        name: &str,
        file_bytes: usize,
        len_bytes: usize,
        used_bytes: usize,
    ) -> Result<(Self, Segment)> {
        let all = Segment::hole(name, whole_pages(name, file_bytes)?)?;
        let mut file = Self { all: all.backing(), allocated_bytes_total: 0 };
        let first = file.allocate(len_bytes, used_bytes)?;
        let too_long =
            || Error::invalid("create segment", format!("{len_bytes} bytes of {file_bytes} for {name}"));
        first.map(|first| (file, first)).ok_or_else(too_long)
    }

    /// Allocates a zeroed part of at least `len_bytes`, in complete pages, that was never used before. Returns `None`
    /// if the file has no space for it or no part exists any more. A released part is not reused, because a peer that
    /// had mapped it may be about to write to it.
    ///
    /// At least `used_bytes` of the part, those that every part uses, are allocated now. The rest takes memory on first
    /// use if its memory is reserved; otherwise it is allocated now, too.
    ///
    /// # Errors
    /// Returns an error if there is no memory for it.
    pub fn allocate(&mut self, len_bytes: usize, used_bytes: usize) -> Result<Option<Segment>> {
        let len_bytes = whole_pages("a part of a segment", len_bytes)?;
        let Some(all) = self.all.get() else { return Ok(None) };
        let offset = self.allocated_bytes_total;
        if len_bytes > all.len_bytes() - offset {
            return Ok(None);
        }
        let allocated_bytes = if all.is_reserved() { used_bytes.min(len_bytes) } else { len_bytes };
        if allocated_bytes > 0 {
            allocate(all.fd(), offset as u64, allocated_bytes as u64).map_err(|e| {
                let what = format!("allocate {allocated_bytes} bytes of shared memory (check free memory)");
                Error::os("fallocate", what, e)
            })?;
        }
        self.allocated_bytes_total += len_bytes;
        Ok(Some(all.part(offset, len_bytes)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::memory::SharedMem;

    /// Returns the number of bytes of memory that a memfd occupies.
    fn memory_bytes(fd: impl AsFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn parts_of_a_file_are_apart_and_handed_out_once() {
        let page = rustix::param::page_size();
        let (mut file, first) = SegmentFile::begin("test", 4 * page, 1, 1).unwrap();
        let more = [page + 1, 1].map(|len| file.allocate(len, len).unwrap().unwrap());
        let mut parts: Vec<_> = std::iter::once(first).chain(more).collect();
        assert_eq!(parts[1].len_bytes(), 2 * page);
        for (number, part) in (1..).zip(&parts) {
            assert_eq!(part.memory().load(0, Relaxed), 0);
            part.memory().store(part.len_bytes() - 8, number, Relaxed);
        }
        for (number, part) in (1..).zip(&parts) {
            let (offset, len_bytes) = (part.offset() as u64, part.len_bytes());
            let mapping = Segment::map_peer_segment(part.fd(), offset, len_bytes, false).unwrap();
            assert_eq!(SharedMem::new(mapping).load(len_bytes - 8, Relaxed), number);
        }
        parts.truncate(1);
        assert!(file.allocate(1, 1).unwrap().is_none(), "a part was handed out again");
        assert!(SegmentFile::begin("test", page, page + 1, 1).is_err());
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_part_ends_before_the_next() {
        let (_file, part) = SegmentFile::begin("test", 2 * rustix::param::page_size(), 1, 1).unwrap();
        let part = part.memory();
        part.load(part.len_bytes(), Relaxed);
    }

    #[test]
    fn a_part_takes_memory_when_it_is_used_and_gives_it_back() {
        let page = rustix::param::page_size();
        let (mut file, part) = SegmentFile::begin("test", 64 * page, 32 * page, 1).unwrap();
        let other = file.allocate(32 * page, page).unwrap().unwrap();
        let used = || memory_bytes(part.fd()) as usize / page;
        assert_eq!(used(), 2, "what every part uses");
        part.memory().store(20 * page, 7, Relaxed);
        other.memory().store(8, 8, Relaxed);
        assert_eq!(used(), 3);
        part.discard_from(page);
        assert_eq!((used(), part.memory().load(20 * page, Relaxed)), (2, 0));
        assert_eq!(other.memory().load(8, Relaxed), 8, "another's was given back");
    }

    #[test]
    fn a_file_ends_with_its_last_part() {
        let page = rustix::param::page_size();
        let (mut file, first) = SegmentFile::begin("test", 8 * page, 1, 1).unwrap();
        let second = file.allocate(1, 1).unwrap().unwrap();
        drop(first);
        let third = file.allocate(1, 1).unwrap().unwrap();
        drop([second, third]);
        assert!(file.allocate(1, 1).unwrap().is_none());
    }
}
