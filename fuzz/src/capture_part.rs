//! File that a process of a captured run leaves. Merging it neither panics nor uses more memory than its blocks.
//! Merging the result again does not change it, and merging it with another part loses no data.

use farcall_capture::{Merged, merge_opened};

/// Runs one input.
pub fn run(input: &[u8]) {
    let (whole, alone) = merge(&[input]);
    if alone.processes == 0 {
        return;
    }
    let (again, read) = merge(&[&whole]);
    assert_eq!((&again, read), (&whole, alone));
    let (_, both) = merge(&[input, input]);
    assert_eq!((both.processes, both.packets), (2, 2 * alone.packets));
}

fn merge(parts: &[&[u8]]) -> (Vec<u8>, Merged) {
    let mut whole = Vec::new();
    let merged = merge_opened(parts.iter().copied(), "fuzz", &mut whole).expect("memory is written");
    (whole, merged)
}
