//! Arbitrary bytes as a process's file of counters: no panic, and names are bounded.

/// Runs one input.
pub fn run(bytes: &[u8]) {
    if let Ok((report, _start)) = farcall_stats::parse(bytes) {
        for block in &report.blocks {
            assert!(block.counters.len() * 8 <= bytes.len(), "no more counters than there are bytes");
        }
    }
}
