//! Fork while memory is moved: the child has its own copy, as of the fork, like of all memory of the program.

use std::sync::{Arc, MutexGuard};

use super::pages::prot_of;
use super::{SharedPages, TABLE, Table};
use crate::life::maps::{Mapped, Maps, Source};

/// What the thread that forks holds meanwhile: nothing is moved or given back.
pub(crate) struct ForkGuard {
    table: MutexGuard<'static, Table>,
    images: Vec<Image>,
}

/// A copy of moved pages in anonymous memory, which a fork brings to the child.
struct Image {
    of: Arc<SharedPages>,
    base: *mut libc::c_void,
}

/// Before a fork: images what is moved. Other threads may write meanwhile; what the child then sees of that is as
/// open as with any fork.
pub(crate) fn hold_for_fork() -> ForkGuard {
    let table = TABLE.lock();
    let images = table.moved.iter().filter_map(|moved| Image::of(&moved.pages)).collect();
    ForkGuard { table, images }
}

impl Image {
    fn of(pages: &Arc<SharedPages>) -> Option<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let len = pages.len_bytes() as usize;
        // SAFETY: a new mapping aliases nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let image = Self { of: pages.clone(), base };
        // SAFETY: memory of ours, of which nobody knows yet.
        unsafe { pages.copy_to(base.expose_provenance() as u64, 0, pages.len_bytes()) }.then_some(image)
    }

    /// Puts it where `part` shows the pages.
    fn put(&self, part: &Mapped) {
        let Source::File { offset, .. } = part.source else { return };
        let here = part.len_bytes().min(self.of.len_bytes().saturating_sub(offset)) as usize;
        let place = std::ptr::with_exposed_provenance_mut::<libc::c_void>(part.start as usize);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: in a forked child, which has no other thread: moves memory of ours over a mapping that it
        // inherited, of the same bytes.
        unsafe {
            let from = self.base.wrapping_byte_add(offset as usize);
            if here > 0 && libc::mremap(from, here, here, flags, place) != libc::MAP_FAILED {
                libc::mprotect(place, here, prot_of(part));
            }
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: made here, and used by nobody else.
        unsafe { libc::munmap(self.base, self.of.len_bytes() as usize) };
    }
}

impl ForkGuard {
    /// In the child.
    pub(crate) fn detach(mut self) {
        if let (false, Ok(maps)) = (self.table.moved.is_empty(), Maps::open()) {
            let parts: Vec<Mapped> = maps.filter_map(Result::ok).collect();
            for part in &parts {
                let Some(moved) = self.table.moved.iter().find(|moved| moved.pages.is_at(part)) else {
                    continue;
                };
                // Also what lies behind the pages, and if there was no memory for a copy: what the child writes is
                // its own. SAFETY: the child has no other thread.
                unsafe { moved.pages.make_private(part) };
                if let Some(image) = self.images.iter().find(|image| Arc::ptr_eq(&image.of, &moved.pages)) {
                    image.put(part);
                }
            }
        }
        // Parts of them are the program's now, and what is left costs the child nothing.
        std::mem::forget(std::mem::take(&mut self.images));
        self.table.moved.clear();
        (self.table.moves, self.table.moved_bytes, self.table.scattered) = (0, 0, 0);
    }
}
