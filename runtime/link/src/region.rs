//! The only module that accesses memory which a peer or a NIC may write.
//!
//! Rules of this module, which keep all such accesses in one place for audits:
//! * No reference to such memory is created, only raw pointers, atomics and bounded copies.
//! * Each poll reads a word that both sides access exactly once, as an atomic, and then checks the value.
//! * A copy out of the region may be torn by a concurrent write of the peer. Callers first establish by an acquire
//!   load of a flag word that the message is complete, and still treat the private copy as untrusted input. After a
//!   bulk copy a compiler barrier declares that memory may have changed, so that the compiler cannot read the shared
//!   original again in place of the copy.

use std::arch::asm;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use farcall_verbs::{Access, Error, ProtectionDomain, RawMr, Result, Sge};
use serde::{Deserialize, Serialize};

/// Address of a region for a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRegion {
    /// Address of the first byte in the process that registered the region.
    pub addr: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Remote key; 0 if nothing is granted.
    pub rkey: u32,
}

impl RemoteRegion {
    /// Returns whether `len_bytes` at `offset` are inside the region.
    pub const fn holds(&self, offset: u64, len_bytes: u64) -> bool {
        match offset.checked_add(len_bytes) {
            Some(end) => end <= self.len_bytes,
            None => false,
        }
    }
}

/// Returns a number that is unique in this process.
pub(crate) fn next_serial() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Owned registered memory. Dropping it deregisters the memory.
pub struct Region {
    base: *mut u8,
    len_bytes: usize,
    lkey: u32,
    rkey: u32,
    /// Unique number of this region in the process.
    serial: u64,
    mr: Arc<dyn RawMr>,
    /// The memory passed to [`Region::register`]; dropped after the registration.
    memory: Option<Vec<u8>>,
}

// SAFETY: the pointer is into memory that `mr` owns, which is `Send + Sync` itself. All accesses below are atomics or
// raw copies whose callers accept torn contents.
unsafe impl Send for Region {}
// SAFETY: shared references access the memory only by atomics or raw copies whose callers accept torn contents.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates and registers at least `len_bytes` bytes, filled with zeros.
    ///
    /// # Errors
    /// Returns the errors of [`ProtectionDomain::alloc_mr`].
    pub fn alloc(pd: &dyn ProtectionDomain, len_bytes: usize, access: Access) -> Result<Self> {
        let mr = pd.alloc_mr(len_bytes.max(1), access)?;
        let len_bytes = mr.len_bytes();
        Ok(Self::of(mr.into(), 0, len_bytes))
    }

    /// Allocates two regions with one registration and therefore with the same keys. The first region begins
    /// `lead_bytes` after the start of the registered memory, the second where the first ends. The cost of a
    /// registration for the provider, such as a descriptor, is paid once.
    ///
    /// # Errors
    /// Like [`Region::alloc`].
    ///
    /// # Panics
    /// If the offset of one of them is not a multiple of 64 bytes.
    pub fn alloc_two(
        pd: &dyn ProtectionDomain,
        lead_bytes: usize,
        len_bytes: [usize; 2],
        access: Access,
    ) -> Result<[Self; 2]> {
        let second = lead_bytes + len_bytes[0];
        for at in [lead_bytes, second] {
            assert!(at.is_multiple_of(64), "a region at {at} is not aligned to a cache line");
        }
        let mr: Arc<dyn RawMr> = pd.alloc_mr(second + len_bytes[1].max(1), access)?.into();
        Ok([Self::of(Arc::clone(&mr), lead_bytes, len_bytes[0]), Self::of(mr, second, len_bytes[1])])
    }

    /// Returns the part of a registration at `offset`.
    fn of(mr: Arc<dyn RawMr>, offset: usize, len_bytes: usize) -> Self {
        assert!(offset + len_bytes <= mr.len_bytes(), "a registration is shorter than asked for");
        // SAFETY: `offset` is inside the registered memory (checked).
        let base = unsafe { mr.addr().add(offset) };
        Self { base, len_bytes, lkey: mr.lkey(), rkey: mr.rkey(), serial: next_serial(), mr, memory: None }
    }

    /// Registers existing memory for work requests of this process; no peer can access it. [`Region::into_memory`]
    /// returns it.
    ///
    /// # Errors
    /// Returns the errors of [`ProtectionDomain::reg_mr`], together with the memory.
    pub fn register(pd: &dyn ProtectionDomain, mut memory: Vec<u8>) -> Result<Self, (Error, Vec<u8>)> {
        // SAFETY: `memory` is kept without being accessed until it is deregistered (`Region` drops `mr` first), and no
        // peer may write it.
        let mr = match unsafe { pd.reg_mr(memory.as_mut_ptr(), memory.len(), Access::LOCAL_WRITE) } {
            Ok(mr) => mr,
            Err(error) => return Err((error, memory)),
        };
        let len_bytes = memory.len();
        Ok(Self { memory: Some(memory), ..Self::of(mr.into(), 0, len_bytes) })
    }

    /// Deregisters the memory and returns it, if it was passed to [`Region::register`].
    #[must_use]
    pub fn into_memory(self) -> Option<Vec<u8>> {
        let Self { mr, memory, .. } = self;
        drop(mr);
        memory
    }

    #[inline]
    pub(crate) const fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the length in bytes.
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the memory region of the provider.
    pub fn mr(&self) -> &dyn RawMr {
        &*self.mr
    }

    /// Returns the address of the region for a peer.
    pub fn remote(&self) -> RemoteRegion {
        let offset = self.base as usize - self.mr.addr() as usize;
        let addr = self.mr.remote_addr() + offset as u64;
        RemoteRegion { addr, len_bytes: self.len_bytes as u64, rkey: self.rkey }
    }

    /// Returns a gather or scatter element of `len_bytes` at `offset`.
    ///
    /// # Panics
    /// If it is not inside the region, which is an error of this program and never a peer's.
    #[inline]
    pub fn sge(&self, offset: usize, len_bytes: usize) -> Sge {
        self.check(offset, len_bytes);
        Sge { addr: self.base as u64 + offset as u64, length: len_bytes as u32, lkey: self.lkey }
    }

    #[inline]
    fn check(&self, offset: usize, len_bytes: usize) {
        assert!(
            offset <= self.len_bytes && len_bytes <= self.len_bytes - offset,
            "{len_bytes} bytes at {offset} are outside of a region of {} bytes",
            self.len_bytes
        );
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        assert!(offset.is_multiple_of(8), "a shared word at {offset} is not aligned to 8");
        // SAFETY: inside the region (checked), aligned (regions are page-aligned), and only accessed as an atomic or
        // by bulk copies that accept tearing.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    /// Loads a word. Everything that its writer stored before it with release is visible afterwards.
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Loads a word without ordering.
    #[inline]
    pub fn load_relaxed(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }

    /// Stores a word after all earlier stores.
    #[inline]
    pub fn store_release(&self, offset: usize, word: u64) {
        self.word(offset).store(word, Ordering::Release);
    }

    /// Stores a word without ordering.
    #[inline]
    pub fn store_relaxed(&self, offset: usize, word: u64) {
        self.word(offset).store(word, Ordering::Relaxed);
    }

    /// Copies bytes into the region without ordering. [`Region::store_release`] publishes them.
    #[inline]
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: inside the region (checked); `bytes` is private memory and so does not overlap it.
        unsafe { self.base.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Appends `len_bytes` at `offset` to a private vector. Does not allocate if the capacity is sufficient.
    #[inline]
    pub fn append_to(&self, offset: usize, len_bytes: usize, out: &mut Vec<u8>) {
        self.check(offset, len_bytes);
        out.reserve(len_bytes);
        // SAFETY: the source is inside the region (checked); `reserve` provided capacity for `len_bytes` more bytes,
        // which are initialised here.
        unsafe {
            out.as_mut_ptr().add(out.len()).copy_from_nonoverlapping(self.base.add(offset), len_bytes);
            out.set_len(out.len() + len_bytes);
        }
        compiler_fence_reads();
    }

    /// Fills a private slice with bytes from `offset`.
    #[inline]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: inside the region (checked); `out` is private memory and so does not overlap it.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping(self.base.add(offset), out.len()) };
        compiler_fence_reads();
    }

    /// Sets bytes to `byte`, without ordering.
    pub fn fill(&self, offset: usize, len_bytes: usize, byte: u8) {
        self.check(offset, len_bytes);
        // SAFETY: inside the region (checked).
        unsafe { self.base.add(offset).write_bytes(byte, len_bytes) };
    }

    #[inline]
    fn byte(&self, offset: usize) -> &AtomicU8 {
        self.check(offset, 1);
        // SAFETY: inside the region (checked), which `mr` keeps mapped as long as `self`; a byte has no alignment. It
        // is only accessed as an atomic or by bulk copies that accept tearing.
        unsafe { AtomicU8::from_ptr(self.base.add(offset)) }
    }

    /// Loads a byte. Everything that its writer stored before it with release is visible afterwards.
    #[inline]
    pub fn load_byte_acquire(&self, offset: usize) -> u8 {
        self.byte(offset).load(Ordering::Acquire)
    }

    /// Stores a byte without ordering.
    #[inline]
    pub fn store_byte_relaxed(&self, offset: usize, byte: u8) {
        self.byte(offset).store(byte, Ordering::Relaxed);
    }
}

/// One word of a region that is polled often: loads it without an indirection or bounds check.
#[derive(Clone)]
pub struct PolledWord {
    word: *const AtomicU64,
    region: Arc<Region>,
}

// SAFETY: a pointer to an atomic inside `region`, which is `Send + Sync` and kept alive here.
unsafe impl Send for PolledWord {}

impl PolledWord {
    /// Selects the word at `offset`.
    ///
    /// # Panics
    /// If the word is outside the region or not aligned.
    pub fn new(region: Arc<Region>, offset: usize) -> Self {
        Self { word: region.word(offset), region }
    }

    /// Selects another word of the region.
    ///
    /// # Panics
    /// Like [`PolledWord::new`].
    #[inline]
    pub fn move_to(&mut self, offset: usize) {
        self.word = self.region.word(offset);
    }

    /// Loads the word. Everything that its writer stored before it with release is visible afterwards.
    #[inline]
    pub fn load_acquire(&self) -> u64 {
        // SAFETY: inside the region (checked when set), which `self` keeps alive.
        unsafe { &*self.word }.load(Ordering::Acquire)
    }
}

/// Prevents the compiler from reading shared memory a second time in place of a private copy of it.
#[inline]
fn compiler_fence_reads() {
    // SAFETY: emits no instruction. Without `nomem` the compiler must assume that any memory was changed.
    unsafe { asm!("", options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::{MrAttr, Revoked};
    use std::any::Any;

    struct Heap(#[expect(dead_code, reason = "what the address leads to")] Vec<u64>, MrAttr);

    impl RawMr for Heap {
        fn attr(&self) -> &MrAttr {
            &self.1
        }
        fn dereg(self: Box<Self>) -> Revoked {
            Revoked::Now
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    fn region(words: usize) -> Region {
        let mut heap = vec![0_u64; words];
        let (addr, len_bytes) = (heap.as_mut_ptr().cast(), words * 8);
        let attr = MrAttr { addr, remote_addr: 64, len_bytes, lkey: 1, rkey: 2, access: Access::all() };
        Region::of(Arc::new(Heap(heap, attr)), 0, len_bytes)
    }

    #[test]
    fn two_regions_of_one_registration_do_not_reach_each_other() {
        let whole = region(16);
        let [first, second] = [(0, 64), (64, 64)].map(|(at, len)| Region::of(Arc::clone(&whole.mr), at, len));
        second.store_release(0, 7);
        assert_eq!((whole.load_acquire(64), first.remote().len_bytes), (7, 64));
        assert_eq!([first.remote().addr, second.remote().addr], [64, 128], "as the provider names them");
        let beyond = std::panic::AssertUnwindSafe(|| first.load_acquire(64));
        assert!(std::panic::catch_unwind(beyond).is_err());
    }

    #[test]
    fn words_and_copies_meet() {
        let region = region(4);
        region.copy_in(8, &7u64.to_ne_bytes());
        assert_eq!(region.load_acquire(8), 7);
        region.store_release(16, 9);
        let mut out = vec![1];
        region.append_to(16, 8, &mut out);
        assert_eq!(out, [&[1][..], &9u64.to_ne_bytes()].concat());
        region.store_byte_relaxed(1, 5);
        assert_eq!(region.load_byte_acquire(1), 5);
        region.fill(0, 32, 0);
        let mut all = [1; 32];
        region.copy_out(0, &mut all);
        assert_eq!(all, [0; 32]);
    }

    #[test]
    #[should_panic(expected = "outside of a region")]
    fn out_of_bounds_is_caught() {
        region(4).copy_in(25, &[0; 8]);
    }

    #[test]
    fn remote_bounds_do_not_overflow() {
        let remote = RemoteRegion { addr: 0, len_bytes: 16, rkey: 1 };
        assert!(remote.holds(8, 8) && !remote.holds(9, 8) && !remote.holds(u64::MAX, 8));
    }
}
