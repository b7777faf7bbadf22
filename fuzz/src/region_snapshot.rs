//! Arbitrary bytes as a snapshot of a region: no panic, and no page outside the given size of the region. Pages are
//! longer than inputs; an incomplete page is filled with one byte value.

use std::io::{Read, repeat};

const PAGES: u64 = 8;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut told = 0;
    let mut whole = bytes.chain(repeat(7).take(3 * 4_096));
    let read = farcall_region::read_snapshot(&mut whole, PAGES * 4_096, |page, bytes| {
        told += 1;
        assert!(page < PAGES, "page {page} of {PAGES}");
        assert_eq!(bytes.len(), 4_096);
    });
    assert!(told <= bytes.len(), "no more pages than there are bytes: {read:?}");
}
