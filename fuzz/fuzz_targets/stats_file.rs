//! Arbitrary bytes as a process's file of counters: no panic, and names are bounded.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((report, _start)) = farcall_stats::parse(bytes) {
        for block in &report.blocks {
            assert!(block.counters.len() * 8 <= bytes.len(), "no more counters than there are bytes");
        }
    }
});
