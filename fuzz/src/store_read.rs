//! Memory of a store as its clients READ it: nothing is found that nobody stored, nothing may panic.

/// Runs one input.
pub fn run(bytes: &[u8]) {
    farcall_kv::bypass::fuzz_look(bytes);
}
