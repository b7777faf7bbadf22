//! Memory that the program passes: it may be inaccessible, and then calls return EFAULT, as the kernel's do.
//!
//! A page is checked by a system call once: each thread remembers the pages that it has found accessible, until the
//! program changes its mappings by functions of the C library. What that library itself unmaps (`free`) is not noticed.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::{confined, errno, libc_next};

/// Kind of access to memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

const PAGE_BYTES: usize = 4096;
/// Number of sets of pages that a thread remembers, and number of pages of a set: a few dozen pages that a program uses
/// alternately do not displace each other.
const SETS: usize = 128;
const WAYS: usize = 4;
/// End of all addresses that a program can have.
const END: usize = 1 << 52;
/// Number of pages from which on they are checked by one call, if the kernel can.
const PAGES_FOR_ONE_CALL: usize = 4;
/// Advice of `madvise` since Linux 5.14; absent from older C libraries.
const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;

/// Number of changes of the program's mappings.
static CHANGES: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Pages by hashes of their numbers, the last one of a set first: number of the page, and whether it can be
    /// written.
    static ACCESSIBLE: Pages = const { [const { Cell::new([0; WAYS]) }; SETS] };
    /// Value of `CHANGES` when the first of them was checked.
    static CHECKED_AT: Cell<u32> = const { Cell::new(0) };
}

type Pages = [Cell<[usize; WAYS]>; SETS];

fn set_of(page: usize) -> usize {
    (page as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> 32 & (SETS - 1)
}

/// Called before the program changes its mappings.
pub fn before_change() {
    CHANGES.fetch_add(1, Release);
}

fn entry(page: usize, access: Access) -> usize {
    page << 1 | usize::from(access == Access::Write)
}

/// Returns whether all bytes from an address on can be accessed.
#[inline]
pub fn can_access(at: *const c_void, len_bytes: usize, access: Access) -> bool {
    let first = at.addr();
    if len_bytes == 0 || confined::is_confined() {
        return true;
    }
    let Some(end) = first.checked_add(len_bytes).filter(|end| first >= PAGE_BYTES && *end <= END) else {
        return false;
    };
    let pages = first / PAGE_BYTES..(end - 1) / PAGE_BYTES + 1;
    ACCESSIBLE.with(|known| {
        let changes = CHANGES.load(Acquire);
        if CHECKED_AT.replace(changes) != changes {
            known.iter().for_each(|set| set.set([0; WAYS]));
        }
        // A page that can be written can be read.
        let for_read = usize::from(access == Access::Read);
        let is_known =
            |page: usize| known[set_of(page)].get().iter().any(|entry| entry | for_read == page << 1 | 1);
        pages.clone().all(is_known) || check(known, pages, access)
    })
}

/// Checks pages by system calls, and remembers those that can be accessed.
#[cold]
fn check(known: &Pages, pages: std::ops::Range<usize>, access: Access) -> bool {
    let saved = errno::get();
    let are_accessible = populate(&pages, access) || pages.clone().all(|page| can_access_page(page, access));
    errno::set(saved);
    if are_accessible {
        for page in pages {
            let set = &known[set_of(page)];
            let [first, second, third, _] = set.get();
            set.set([entry(page, access), first, second, third]);
        }
    }
    are_accessible
}

fn populate(pages: &std::ops::Range<usize>, access: Access) -> bool {
    if pages.len() < PAGES_FOR_ONE_CALL {
        return false;
    }
    let advice = if access == Access::Write { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    let at = ptr::without_provenance_mut(pages.start * PAGE_BYTES);
    // SAFETY: memory is allocated where the program may access it in any case; no byte of it changes.
    unsafe { libc::madvise(at, pages.len() * PAGE_BYTES, advice) == 0 }
}

/// Lets the kernel access a page, by a call that has no other effect.
fn can_access_page(page: usize, access: Access) -> bool {
    let at = page * PAGE_BYTES;
    match access {
        Access::Read => {
            // The kernel reads the set before it refuses what to do with it.
            const NO_SUCH_CHANGE: usize = 99;
            // SAFETY: it reads eight bytes, or fails.
            unsafe { libc_next::syscall(libc::SYS_rt_sigprocmask, NO_SUCH_CHANGE, at, 0, 8, 0, 0) };
            errno::get() != libc::EFAULT
        }
        Access::Write => {
            // Adds 0 to a word, and wakes no thread: none waits for `WORD`, and no word is less than that.
            static WORD: AtomicU32 = AtomicU32::new(0);
            const WAKE_OP_PRIVATE: usize = 5 | 128;
            const ADD_0_IF_LESS_THAN_MINUS_2048: usize = 1 << 28 | 2 << 24 | 0x800;
            // SAFETY: an atomic addition of 0 to four aligned bytes, or a failure.
            let done = unsafe {
                libc_next::syscall(
                    libc::SYS_futex,
                    WORD.as_ptr().addr(),
                    WAKE_OP_PRIVATE,
                    0,
                    0,
                    at,
                    ADD_0_IF_LESS_THAN_MINUS_2048,
                )
            };
            done >= 0 || errno::get() != libc::EFAULT
        }
    }
}

/// Returns whether a value of the program's can be read.
#[inline]
pub fn can_read<T>(at: *const T, count: usize) -> bool {
    can_access(at.cast(), count.saturating_mul(size_of::<T>()), Access::Read)
}

/// Returns whether a value of the program's can be written.
#[inline]
pub fn can_write<T>(at: *const T, count: usize) -> bool {
    can_access(at.cast(), count.saturating_mul(size_of::<T>()), Access::Write)
}
