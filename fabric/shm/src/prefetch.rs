//! Prefetching of memory.

/// Prefetches the cache lines of `object` at `offsets_bytes`. This is a hint: it reads nothing and cannot fail.
#[inline]
pub fn prefetch<T, const N: usize>(object: *const T, offsets_bytes: [usize; N]) {
    #[cfg(target_arch = "x86_64")]
    for offset in offsets_bytes {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch does not access memory and is valid for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(object.cast::<i8>().wrapping_add(offset)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (object, offsets_bytes);
}
