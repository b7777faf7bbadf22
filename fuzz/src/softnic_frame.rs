//! The frames of the software RNIC's rendezvous sockets: what decodes must encode to itself, and nothing may panic.

/// Runs one input.
pub fn run(bytes: &[u8]) {
    farcall_softnic::fuzz_frame(bytes);
}
