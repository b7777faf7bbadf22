//! Registered memory of the program, moved in place to memfds that peers can map.
//!
//! Memory that a program registers from its heap cannot be mapped by other processes, so every access to it is a system
//! call. The complete pages inside a region can be moved, though: their bytes are copied to a sealed memfd, which is
//! mapped at their addresses. This is transparent to the program, and peers of its user map the memfd like the
//! provider's own segments.
//!
//! This is correct only if no other thread or process can write to the pages while they move, and if the properties
//! that a program may expect of private memory are preserved. Hence:
//!
//! - Only complete pages inside the region move: no byte of adjacent heap memory is shared or moved. The partial pages
//!   at the edges are accessed as before.
//! - Pages move only while no other thread of the program exists ([`quiesce`]; Farcall's own threads pause,
//!   [`helper_threads`]), and while the kernel holds no references to pages of the process.
//! - Only private anonymous memory moves, neither stacks nor files, and none that another region for peers covers.
//! - Deregistration restores private memory ([`pages::SharedPages::restore_private`]).
//! - A forked child receives a copy as of the fork ([`fork`]).
//! - The amount moved is bounded, both at a time and over the lifetime of the process, because moving and forking copy
//!   it.
//!
//! Memory that is not moved is accessed by system calls as before. A process that registers other kinds of memory, or
//! that has several threads, loses speed and nothing else.

mod fork;
mod helper_threads;
mod pages;
mod quiesce;

use std::io;
use std::sync::Arc;

pub(crate) use fork::{ForkGuard, hold_for_fork};
pub use helper_threads::helper_turn;
pub(crate) use helper_threads::{Paused, pause};
pub(crate) use pages::SharedPages;

use crate::process::maps::{Mapped, Maps, Source};
use crate::process::service_thread::Service;
use farcall_shm::Mutex;
use quiesce::QuiescedProcess;

/// Maximum number of moved ranges. Each creates mappings, of which a process has some ten thousand.
const MAX_REMAPPED: usize = 1024;

/// Maximum number of moves in the lifetime of a process. A program that registers memory for every message would only
/// lose time.
const MAX_REMAPS: u32 = 10_000;

/// Maximum number of moved bytes in the lifetime of a process, as a multiple of its limit at a time.
const REMAPPED_BYTES_FACTOR: u64 = 4;

/// Part of a region that peers map.
#[derive(Clone)]
pub(crate) struct Window {
    pub(crate) pages: Arc<SharedPages>,
    pub(crate) addr: u64,
    pub(crate) len_bytes: u64,
    pub(crate) file_offset: u64,
}

struct RemappedRange {
    pages: Arc<SharedPages>,
    /// Number of regions with a window of these pages.
    regions: u32,
}

/// Ranges that are moved and not restored.
struct Table {
    moved: Vec<RemappedRange>,
    /// Number of ranges that were restored in a way that leaves mappings of their own.
    scattered: usize,
    moves: u32,
    moved_bytes: u64,
}

static TABLE: Mutex<Table> = Mutex::new(Table { moved: Vec::new(), scattered: 0, moves: 0, moved_bytes: 0 });

/// Returns the mappings in `from..to`, cut to that range.
fn mapped_in(from: u64, to: u64) -> io::Result<Vec<Mapped>> {
    let mut found = Vec::new();
    for mapped in Maps::open()? {
        let mapped = mapped?;
        if mapped.start >= to {
            break;
        }
        found.extend(mapped.cut(from, to));
    }
    Ok(found)
}

/// Returns the range of complete pages inside a region.
fn whole_pages(addr: u64, len_bytes: u64) -> Option<(u64, u64)> {
    let page = rustix::param::page_size() as u64;
    let from = addr.checked_next_multiple_of(page)?;
    let end = addr.checked_add(len_bytes)?;
    let to = end - end % page;
    (from < to).then_some((from, to))
}

/// Returns the longest contiguous range of mappings that can be moved; an empty range if there is none.
fn longest_private(mapped: &[Mapped]) -> (u64, u64) {
    let (mut longest, mut run) = ((0, 0), (0, 0));
    for part in mapped {
        let movable = part.source == Source::Anonymous && !part.shared && !part.executable;
        if !(movable && part.readable && part.writable) {
            continue;
        }
        run = if run.1 == part.start { (run.0, part.end) } else { (part.start, part.end) };
        if run.1 - run.0 > longest.1 - longest.0 {
            longest = run;
        }
    }
    longest
}

impl Table {
    /// Returns the longest contiguous part of `mapped` that belongs to one memfd.
    fn find(&mut self, mapped: &[Mapped]) -> Option<Window> {
        let mut longest: Option<(usize, Window)> = None;
        let mut last: Option<(usize, Window)> = None;
        for part in mapped.iter().filter(|part| part.readable && part.writable) {
            let of = self.moved.iter().position(|moved| moved.pages.backs(part));
            let (Some(at), Source::File { offset, .. }) = (of, part.source) else { continue };
            let follows = |(of, window): &(usize, Window)| {
                *of == at
                    && window.addr + window.len_bytes == part.start
                    && window.file_offset + window.len_bytes == offset
            };
            let window = match last.take().filter(follows) {
                Some((_, before)) => Window { len_bytes: before.len_bytes + part.len_bytes(), ..before },
                None => {
                    let pages = self.moved[at].pages.clone();
                    Window { pages, addr: part.start, len_bytes: part.len_bytes(), file_offset: offset }
                }
            };
            if longest.as_ref().is_none_or(|(_, longest)| longest.len_bytes < window.len_bytes) {
                longest = Some((at, window.clone()));
            }
            last = Some((at, window));
        }
        let (at, window) = longest?;
        self.moved[at].regions += 1;
        Some(window)
    }

    /// Returns whether `len_bytes` more are within the limits of a process that may have `limit_bytes` moved at a time.
    fn has_capacity(&self, len_bytes: u64, limit_bytes: u64) -> bool {
        let now: u64 = self.moved.iter().map(|moved| moved.pages.len_bytes()).sum();
        now.saturating_add(len_bytes) <= limit_bytes
            && self.moved_bytes.saturating_add(len_bytes) <= limit_bytes.saturating_mul(REMAPPED_BYTES_FACTOR)
            && self.moves < MAX_REMAPS
            && self.moved.len() + self.scattered < MAX_REMAPPED
    }
}

/// Returns the part of a region that peers can map, for a region that is about to be registered. Moves its complete
/// pages if permitted, up to a total of `limit_bytes` moved bytes. `is_registered` returns whether a registered region
/// for peers overlaps a range.
///
/// # Safety
/// The region must be memory of the program that stays mapped until [`restore_private`], and to which no references
/// exist.
pub(crate) unsafe fn share(
    service: &Service,
    is_registered: impl FnOnce(u64, u64) -> bool,
    (addr, len_bytes): (u64, u64),
    limit_bytes: u64,
) -> Option<Window> {
    let (from, to) = whole_pages(addr, len_bytes).filter(|_| limit_bytes > 0)?;
    let mut table = TABLE.lock();
    if let Some(window) = table.find(&mapped_in(from, to).ok()?) {
        return Some(window);
    }
    let sole = QuiescedProcess::hold(service)?;
    if !sole.is_dumpable() || quiesce::kernel_holds_pages() {
        return None;
    }
    // Read only when all other threads are paused, because they might change the mappings.
    let (from, to) = longest_private(&mapped_in(from, to).ok()?);
    let len_bytes = to - from;
    if len_bytes == 0 || !table.has_capacity(len_bytes, limit_bytes) || is_registered(from, to) {
        return None;
    }
    // SAFETY: the range is private, readable and writable memory of complete pages inside the region. `sole` ensures
    // that no other thread runs and that signals are blocked. No peer accesses the range, because no other region
    // covers it.
    let pages = Arc::new(unsafe { SharedPages::remap(from, len_bytes) }?);
    table.moves += 1;
    table.moved_bytes += len_bytes;
    table.moved.push(RemappedRange { pages: pages.clone(), regions: 1 });
    Some(Window { pages, addr: from, len_bytes, file_offset: 0 })
}

/// Ends a region's use of a window. If no other region uses it, the pages become private memory again. Call it when no
/// peer accesses the region any more, and before the program may reuse the memory.
pub(crate) fn restore_private(service: &Service, window: &Window) {
    // Held to the end, so that no fork occurs in between.
    let mut table = TABLE.lock();
    let Some(at) = table.moved.iter().position(|moved| Arc::ptr_eq(&moved.pages, &window.pages)) else {
        return;
    };
    table.moved[at].regions -= 1;
    let is_last = table.moved[at].regions == 0;
    // A pin that exists now refers to the pages as they are.
    if !is_last || quiesce::kernel_holds_pages() {
        return;
    }
    let sole = QuiescedProcess::hold(service);
    let Ok(mapped) = mapped_in(0, u64::MAX) else { return };
    let (mut is_all, mut is_scattered) = (true, false);
    // A peer in the same process has mappings of these pages, too.
    for part in
        mapped.iter().filter(|part| window.pages.backs(part) && !farcall_shm::fork::is_ours(part.start))
    {
        // The program keeps the registered range until this function returns. Other threads may change other mappings
        // of it at any time.
        let own = match &sole {
            Some(_) => Some(*part),
            None => part.cut(window.addr, window.addr + window.len_bytes),
        };
        is_all &= own.is_some_and(|own| own.len_bytes() == part.len_bytes());
        let Some(own) = own else { continue };
        // SAFETY: `backs` found the memfd's mapping at `own`, and either no other thread runs or `own` is inside the
        // region, which the program keeps mapped.
        let done = unsafe {
            if sole.is_some() {
                window.pages.restore_private(&own)
            } else {
                is_scattered = true;
                window.pages.restore_private_with_threads(&own)
            }
        };
        is_all &= done;
    }
    if is_all {
        window.pages.free_memory();
        table.moved.swap_remove(at);
        table.scattered += usize::from(is_scattered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_inside_a_region_are_moved() {
        let page = rustix::param::page_size() as u64;
        assert_eq!(whole_pages(page, page), Some((page, 2 * page)));
        assert_eq!(whole_pages(page - 1, page + 1), Some((page, 2 * page)));
        assert_eq!(whole_pages(page + 1, 2 * page), Some((2 * page, 3 * page)));
        assert_eq!(whole_pages(page + 1, page), None, "parts of two pages");
        assert_eq!(whole_pages(u64::MAX - 5, 5), None);
        assert_eq!(whole_pages(u64::MAX - 5, 50), None);
    }

    #[test]
    fn moves_adjacent_private_mappings_together() {
        let part = |start, end, letters: &str, source| {
            let has = |letter| letters.contains(letter);
            let (readable, writable, executable, shared) = (has('r'), has('w'), has('x'), has('s'));
            Mapped { start, end, readable, writable, executable, shared, source }
        };
        let anonymous = Source::Anonymous;
        let file = Source::File { major: 0, minor: 1, inode: 2, offset: 0 };
        assert_eq!(longest_private(&[]), (0, 0));
        for (letters, source) in
            [("r", anonymous), ("rwx", anonymous), ("rws", anonymous), ("rw", file), ("rw", Source::Special)]
        {
            assert_eq!(longest_private(&[part(1, 9, letters, source)]), (0, 0), "{letters} {source:?}");
        }
        let row = [
            part(10, 20, "rw", anonymous),
            part(20, 40, "rw", anonymous),
            part(40, 50, "r", anonymous),
            part(50, 70, "rw", anonymous),
            part(71, 90, "rw", anonymous),
        ];
        assert_eq!(longest_private(&row), (10, 40));
    }

    #[test]
    fn what_a_process_moves_is_bounded() {
        let table =
            |moves, moved_bytes, scattered| Table { moved: Vec::new(), scattered, moves, moved_bytes };
        assert!(table(0, 0, 0).has_capacity(100, 100) && !table(0, 0, 0).has_capacity(101, 100));
        assert!(table(MAX_REMAPS - 1, 300, MAX_REMAPPED - 1).has_capacity(100, 100));
        assert!(!table(MAX_REMAPS, 0, 0).has_capacity(1, 100), "too often");
        assert!(!table(0, 301, 0).has_capacity(100, 100), "too much over its life");
        assert!(!table(0, 0, MAX_REMAPPED).has_capacity(1, 100), "too many mappings");
    }
}
