//! The frames of the software RNIC's rendezvous sockets: what decodes must encode to itself, and nothing may panic.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| farcall_softnic::fuzz_frame(bytes));
