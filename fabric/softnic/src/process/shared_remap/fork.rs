//! Fork while memory is moved: the child receives its own copy as of the fork, like of all memory of the program.

use std::sync::{Arc, MutexGuard};

use super::pages::prot_of;
use super::{SharedPages, TABLE, Table};
use crate::process::maps::{Mapped, Maps, Source};

/// Lock held by the forking thread: no memory is moved or restored during the fork.
pub(crate) struct ForkGuard {
    table: MutexGuard<'static, Table>,
    images: Vec<Image>,
}

/// Copy of moved pages in anonymous memory, which the child inherits.
struct Image {
    pages: Arc<SharedPages>,
    base: *mut libc::c_void,
}

/// Called before a fork: copies all moved memory. Other threads may write concurrently; which of their writes the child
/// sees is unspecified, as with any fork.
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
        // SAFETY: creates a mapping at an address that the kernel chooses, so it aliases no memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let image = Self { pages: pages.clone(), base };
        // SAFETY: `base` is a mapping of `len` bytes, created above, which no other code uses yet.
        unsafe { pages.copy_to(base.expose_provenance() as u64, 0, pages.len_bytes()) }.then_some(image)
    }

    /// Moves the copy to the addresses at which `part` maps the pages.
    fn map_over(&self, part: &Mapped) {
        let Source::File { offset, .. } = part.source else { return };
        let here = part.len_bytes().min(self.pages.len_bytes().saturating_sub(offset)) as usize;
        let place = std::ptr::with_exposed_provenance_mut::<libc::c_void>(part.start as usize);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: runs in a forked child, which has no other thread. The call moves `self.base`, which only this code
        // uses, over an inherited mapping of the same bytes.
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
        // SAFETY: `of` created the mapping, and no other code uses it.
        unsafe { libc::munmap(self.base, self.pages.len_bytes() as usize) };
    }
}

impl ForkGuard {
    /// In the child: gives it copies of the moved pages.
    pub(crate) fn detach(mut self) {
        if let (false, Ok(maps)) = (self.table.moved.is_empty(), Maps::open()) {
            let parts: Vec<Mapped> = maps.filter_map(Result::ok).collect();
            for part in &parts {
                let Some(moved) = self.table.moved.iter().find(|moved| moved.pages.backs(part)) else {
                    continue;
                };
                // This includes the range after the pages, and pages for which there was no memory for a copy, so that
                // the child's writes stay its own.
                // SAFETY: the child has no other thread.
                unsafe { moved.pages.make_private(part) };
                if let Some(image) = self.images.iter().find(|image| Arc::ptr_eq(&image.pages, &moved.pages))
                {
                    image.map_over(part);
                }
            }
        }
        // Parts of them belong to the program now, and the others cost the child nothing.
        std::mem::forget(std::mem::take(&mut self.images));
        self.table.moved.clear();
        (self.table.moves, self.table.moved_bytes, self.table.scattered) = (0, 0, 0);
    }
}
