//! Frames of the software RNIC's rendezvous sockets: no panic, and decoded frames encode to themselves.

/// Runs one input.
pub fn run(bytes: &[u8]) {
    farcall_softnic::fuzz_frame(bytes);
}
