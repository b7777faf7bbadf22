//! An endpoint's counters and flight recorder.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::Counter;
use crate::format::{
    BLOCK_COUNTERS, BLOCK_LABEL, BLOCK_NEXT, BLOCK_RECORDS, BLOCK_STATE, ENDED, LABEL_BYTES, LIVE,
    NAME_BYTES, RECORD_BYTES, Shape,
};
use crate::page::{Page, word};

/// A struct of counters that can live in shared memory; made by [`crate::counters!`].
///
/// # Safety
/// `repr(C)`, nothing but [`Counter`] fields, one for each name.
pub unsafe trait Counters: Default {
    /// Names, in the order of the fields, at most 31 bytes each.
    const NAMES: &'static [&'static str];

    /// What each name counts, in the same order; empty if the names need no explanation.
    const HELP: &'static [&'static str] = &[];
}

/// The counters `C` of one endpoint in the process's statistics, with a flight recorder. Ends when dropped; its last
/// values stay readable.
pub struct Block<C> {
    shape: Shape,
    /// In the page, or of our own if the page was full.
    base: NonNull<u8>,
    in_page: bool,
    counters: PhantomData<C>,
}

// SAFETY: everything shared is atomic; see `Page`.
unsafe impl<C> Send for Block<C> {}
// SAFETY: as above. Counters and records have one writer by contract; two would garble numbers, nothing else.
unsafe impl<C> Sync for Block<C> {}

impl<C: Counters> Block<C> {
    /// A block with a label for people ("qp 0x12345") and room for the last `records` events.
    pub fn new(label: &str, records: usize) -> Self {
        let shape = Shape { counters: C::NAMES.len(), records };
        let (base, in_page) = match Page::get().place(shape) {
            Some(base) => (base, true),
            None => (
                NonNull::from(Box::leak(vec![0_u64; shape.len_bytes() / 8].into_boxed_slice())).cast(),
                false,
            ),
        };
        let block = Self { shape, base, in_page, counters: PhantomData };
        block.fill(label);
        Page::get().describe(label, C::NAMES, C::HELP);
        if in_page {
            Page::get().publish();
        }
        block
    }

    fn fill(&self, label: &str) {
        word(self.base, BLOCK_STATE).store(0, Ordering::Release);
        for at in (BLOCK_LABEL..self.shape.len_bytes()).step_by(8) {
            word(self.base, at).store(0, Ordering::Relaxed);
        }
        self.put(BLOCK_LABEL, label, LABEL_BYTES);
        for (i, name) in C::NAMES.iter().enumerate() {
            self.put(self.shape.names_at() + i * NAME_BYTES, name, NAME_BYTES);
        }
        word(self.base, BLOCK_COUNTERS).store(self.shape.counters as u64, Ordering::Relaxed);
        word(self.base, BLOCK_RECORDS).store(self.shape.records as u64, Ordering::Relaxed);
        word(self.base, BLOCK_NEXT).store(0, Ordering::Relaxed);
        word(self.base, BLOCK_STATE).store(LIVE, Ordering::Release);
    }

    /// Writes text, cut to `room` with a final zero, word by word.
    fn put(&self, at: usize, text: &str, room: usize) {
        for (i, chunk) in text.as_bytes()[..text.len().min(room - 1)].chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word(self.base, at + i * 8).store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
    }

    /// Records an event: a code and an argument of the endpoint's own. Reads the clock; not for every message.
    pub fn record(&self, code: u64, argument: u64) {
        if self.shape.records == 0 {
            return;
        }
        let next = word(self.base, BLOCK_NEXT).load(Ordering::Relaxed);
        let at = self.shape.records_at() + (next as usize % self.shape.records) * RECORD_BYTES;
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
        // Records lie behind the values: their number is of no account.
        const {
            assert!(
                Shape { counters: 1, records: 0 }.values_at()
                    == Shape { counters: 1, records: 9 }.values_at()
            )
        };
        let values_at = const { Shape { counters: C::NAMES.len(), records: 0 }.values_at() };
        // SAFETY: `C` is `repr(C)` of counters only (the trait's contract), which are atomics and valid for all bytes;
        // the values lie aligned in memory that is never unmapped.
        unsafe { self.base.add(values_at).cast().as_ref() }
    }
}

impl<C> Drop for Block<C> {
    fn drop(&mut self) {
        word(self.base, BLOCK_STATE).store(ENDED, Ordering::Release);
        if self.in_page {
            Page::get().retire(self.shape, self.base);
        } else {
            let words = self.shape.len_bytes() / 8;
            let memory = NonNull::slice_from_raw_parts(self.base.cast::<u64>(), words);
            // SAFETY: leaked by `new` with this length and not given away.
            drop(unsafe { Box::from_raw(memory.as_ptr()) });
        }
    }
}
