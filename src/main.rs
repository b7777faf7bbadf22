//! The `farcall` binary.
fn main() {}
