//! Anonymous memory mapped once at start: the only module of the store that uses raw pointers.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Types for which a page of zero bytes is a valid value and which need no drop.
///
/// # Safety
/// All-zero bytes are a valid `Self`, `Self` has no drop glue, and its alignment is at most 4096.
pub(crate) unsafe trait Plain {}

// SAFETY: every byte pattern is a valid `u8`.
unsafe impl Plain for u8 {}

/// `len` zeroed elements of private memory, which is unmapped on drop.
pub(crate) struct Region<T: Plain> {
    base: NonNull<T>,
    len: usize,
    mapped_bytes: usize,
}

impl<T: Plain> Region<T> {
    /// Maps at least `len` elements (at least one); pages use memory from their first access on.
    pub(crate) fn map(len: usize) -> io::Result<Self> {
        let len = len.max(1);
        let mapped_bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_next_multiple_of(super::PAGE_BYTES))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh private anonymous mapping at an address the kernel chooses aliases nothing.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        // Huge pages avoid TLB misses; kernels without them return an error, which costs only speed.
        // SAFETY: the range is the mapping made above, and the advice does not change its contents.
        let _ = unsafe { madvise(base, mapped_bytes, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { base, len, mapped_bytes })
    }

    /// Returns the length of the mapping in bytes, rounded to pages.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.mapped_bytes
    }
}

impl<T: Plain> Deref for Region<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `base` points at `len` elements, zeroed by the kernel and valid by `Plain`, that live as long as
        // `self`; shared access follows the borrow of `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Region<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `base` points at `len` elements that are valid by `Plain` and live as long as `self`; `&mut self`
        // makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl<T: Plain> Drop for Region<T> {
    fn drop(&mut self) {
        // SAFETY: `map` created the mapping with this address and length, and no borrow outlives `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping failed: {unmapped:?}");
    }
}

// SAFETY: a region owns its memory exclusively, like a `Box<[T]>`.
unsafe impl<T: Plain + Send> Send for Region<T> {}

/// Prefetches the cache line of `bytes[offset]`; a hint without effect on results.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8], offset: usize) {
    if let Some(byte) = bytes.get(offset) {
        prefetch_value(byte);
    }
}

/// Prefetches the first cache line of `value`. Without effect on architectures for which std has no prefetch.
#[inline(always)]
pub(crate) fn prefetch_value<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and changes no state that a program can observe.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_writable_and_rounded_to_pages() {
        let mut region = Region::<u8>::map(5000).unwrap();
        assert_eq!((region.len(), region.mapped_bytes()), (5000, 8192));
        assert!(region.iter().all(|&byte| byte == 0));
        region[4999] = 7;
        assert_eq!(region[4999], 7);
        prefetch(&region, 4999);
        prefetch(&region, 5000);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(Region::<u8>::map(usize::MAX).is_err());
    }
}
