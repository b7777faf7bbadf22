//! The file that a process of a captured run left: merging neither panics nor takes more memory than its blocks, and
//! what comes of it is read again whole.

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut whole = Vec::new();
    let merged =
        farcall_capture::merge_opened([input, input], "fuzz", &mut whole).expect("memory is written");
    let mut again = Vec::new();
    let read = farcall_capture::merge_opened([&whole[..]], "fuzz", &mut again).expect("memory is written");
    if merged.packets > 0 && merged.processes == 2 {
        assert!(read.packets > 0 && read.packets <= merged.packets);
    }
}
