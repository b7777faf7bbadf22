//! The file that a process of a captured run left: merging neither panics nor takes more memory than its blocks; merged
//! alone and then once more it stays as it is; and beside another part nothing of it is lost.

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
