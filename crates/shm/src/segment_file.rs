//! Small segments that share a descriptor: pages of one memfd.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use farcall_verbs::{Error, Result};

use crate::memory::SharedMem;
use crate::segment::{Segment, allocate};

/// A sealed memfd whose pages are handed out one after the other. Whoever is sent the descriptor for one page can map
/// them all: they must be of equal concern to everybody who gets one.
pub struct SegmentFile {
    all: Arc<Segment>,
    taken: usize,
    pages: usize,
}

/// A page of a [`SegmentFile`], which lives as long as one of its pages does.
pub struct SegmentPage {
    file: Arc<Segment>,
    offset: usize,
}

impl SegmentFile {
    /// A file of so many pages. Each is allocated when it is handed out.
    ///
    /// # Errors
    /// As [`Segment::create`].
    pub fn create(name: &str, pages: usize) -> Result<Self> {
        let page_bytes = rustix::param::page_size();
        let all = Segment::with_hole(name, page_bytes, pages.saturating_sub(1) * page_bytes)?;
        Ok(Self { all: Arc::new(all), taken: 0, pages })
    }

    /// A zeroed page that nobody had before; `None`: there is none left. One that was given back is not handed out
    /// again: a peer that had it may be about to write to it.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn take(&mut self) -> Result<Option<SegmentPage>> {
        if self.taken == self.pages {
            return Ok(None);
        }
        let page_bytes = rustix::param::page_size();
        let offset = self.taken * page_bytes;
        allocate(self.all.fd(), offset as u64, page_bytes as u64)
            .map_err(|e| Error::os("fallocate", "allocate a page of shared memory (check free memory)", e))?;
        self.taken += 1;
        Ok(Some(SegmentPage { file: self.all.clone(), offset }))
    }
}

impl SegmentPage {
    /// The memfd, to hand to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd()
    }

    /// Where the page begins in the memfd: what a peer maps from.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Our mapping of it.
    pub fn memory(&self) -> SharedMem {
        self.file.memory().part(self.offset, rustix::param::page_size())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn pages_of_a_file_are_apart_and_handed_out_once() {
        let mut file = SegmentFile::create("test", 3).unwrap();
        let pages: Vec<_> = (0..3).map(|_| file.take().unwrap().unwrap()).collect();
        for (number, page) in (1..).zip(&pages) {
            assert_eq!(page.memory().load(0, Relaxed), 0);
            page.memory().store(0, number, Relaxed);
        }
        for (number, page) in (1..).zip(&pages) {
            let mapping = Segment::map_foreign(page.fd(), page.offset() as u64, 8, false).unwrap();
            assert_eq!(SharedMem::new(mapping).load(0, Relaxed), number);
        }
        drop(pages);
        assert!(file.take().unwrap().is_none(), "a page was handed out again");
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_page_ends_before_the_next() {
        let mut file = SegmentFile::create("test", 2).unwrap();
        let page = file.take().unwrap().unwrap().memory();
        page.load(page.len_bytes(), Relaxed);
    }
}
