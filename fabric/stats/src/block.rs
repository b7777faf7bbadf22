//! Counters and flight recorder of one endpoint.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::format::{
    BLOCK_COUNTERS, BLOCK_LABEL, BLOCK_NEXT, BLOCK_RECORDS, BLOCK_STATE, BlockLayout, ENDED, LABEL_BYTES,
    LIVE, NAME_BYTES, RECORD_BYTES,
};
use crate::page::{Page, word};
use crate::{Counter, Counters};

/// The counters `C` of one endpoint in the process's statistics, with a flight recorder. Dropping the block marks it as
/// ended; its last values stay readable.
pub struct Block<C> {
    layout: BlockLayout,
    /// Address in the page, or in private memory if the page was full.
    base: NonNull<u8>,
    in_page: bool,
    counters: PhantomData<C>,
}

// SAFETY: `base` points to memory that stays allocated while the block exists, and is accessed as atomics only (`word`,
// `Counter`).
unsafe impl<C> Send for Block<C> {}
// SAFETY: all accesses through `&Block` are atomic. Counters and records should have one writer; two writers lose
// updates but cause no undefined behaviour.
unsafe impl<C> Sync for Block<C> {}

impl<C: Counters> Block<C> {
    /// Creates a block with a human-readable label ("qp 0x12345") and space for the last `records` events.
    pub fn new(label: &str, records: usize) -> Self {
        let layout = BlockLayout { counters: C::NAMES.len(), records };
        let (base, in_page) = match Page::get().allocate(layout) {
            Some(base) => (base, true),
            None => (
                NonNull::from(Box::leak(vec![0_u64; layout.len_bytes() / 8].into_boxed_slice())).cast(),
                false,
            ),
        };
        let block = Self { layout, base, in_page, counters: PhantomData };
        block.fill(label);
        Page::get().describe(label, C::NAMES, C::HELP);
        if in_page {
            Page::get().publish();
        }
        block
    }

    fn fill(&self, label: &str) {
        word(self.base, BLOCK_STATE).store(0, Ordering::Release);
        for at in (BLOCK_LABEL..self.layout.len_bytes()).step_by(8) {
            word(self.base, at).store(0, Ordering::Relaxed);
        }
        self.put(BLOCK_LABEL, label, LABEL_BYTES);
        for (i, name) in C::NAMES.iter().enumerate() {
            self.put(self.layout.names_at() + i * NAME_BYTES, name, NAME_BYTES);
        }
        word(self.base, BLOCK_COUNTERS).store(self.layout.counters as u64, Ordering::Relaxed);
        word(self.base, BLOCK_RECORDS).store(self.layout.records as u64, Ordering::Relaxed);
        word(self.base, BLOCK_NEXT).store(0, Ordering::Relaxed);
        word(self.base, BLOCK_STATE).store(LIVE, Ordering::Release);
    }

    /// Writes text word by word, truncated to `room` bytes including a final zero.
    fn put(&self, at: usize, text: &str, room: usize) {
        for (i, chunk) in text.as_bytes()[..text.len().min(room - 1)].chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word(self.base, at + i * 8).store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
    }

    /// Records an event with a code and an argument that the endpoint defines. Reads the clock, so it is too slow for
    /// every message.
    pub fn record(&self, code: u64, argument: u64) {
        if self.layout.records == 0 {
            return;
        }
        let next = word(self.base, BLOCK_NEXT).load(Ordering::Relaxed);
        let at = self.layout.records_at() + (next as usize % self.layout.records) * RECORD_BYTES;
        word(self.base, at).store(Page::get().now_ns(), Ordering::Relaxed);
        word(self.base, at + 8).store(code, Ordering::Relaxed);
        word(self.base, at + 16).store(argument, Ordering::Relaxed);
        word(self.base, BLOCK_NEXT).store(next + 1, Ordering::Release);
    }
}

impl<C: Counters> Deref for Block<C> {
    type Target = C;

    #[inline]
    fn deref(&self) -> &C {
        const { assert!(size_of::<C>() == C::NAMES.len() * size_of::<Counter>()) };
        // Records are placed after the values, so their number does not change the offset of the values.
        const {
            assert!(
                BlockLayout { counters: 1, records: 0 }.values_at()
                    == BlockLayout { counters: 1, records: 9 }.values_at()
            )
        };
        let values_at = const { BlockLayout { counters: C::NAMES.len(), records: 0 }.values_at() };
        // SAFETY: `C` is `repr(C)` and consists of counters only (contract of `Counters`), which are atomics and valid
        // for any bytes. The values are aligned by `BlockLayout::values_at`, and their memory is not freed before the
        // block is dropped.
        unsafe { self.base.add(values_at).cast().as_ref() }
    }
}

impl<C> Drop for Block<C> {
    fn drop(&mut self) {
        word(self.base, BLOCK_STATE).store(ENDED, Ordering::Release);
        if self.in_page {
            Page::get().release_block(self.layout, self.base);
        } else {
            let words = self.layout.len_bytes() / 8;
            let memory = NonNull::slice_from_raw_parts(self.base.cast::<u64>(), words);
            // SAFETY: `new` leaked this memory with this length, and no other object owns it.
            drop(unsafe { Box::from_raw(memory.as_ptr()) });
        }
    }
}
