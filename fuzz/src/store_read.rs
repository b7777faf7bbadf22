//! Memory of a store as its clients READ it: no panic, and only stored values are found.

/// Runs one input.
pub fn run(bytes: &[u8]) {
    farcall_kv::bypass::fuzz_lookup(bytes);
}
