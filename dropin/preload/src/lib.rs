//! Preloaded into a socket program (`farcall run`), moves its TCP connections to other such programs of the same user
//! on the same host into shared memory. The TCP socket stays: for the handshake, for peers without this library, and
//! for the end.
//!
//! No byte is added to a connection. Its ends meet outside of it (`meet`) and share two rings (`ring`), one a
//! direction. A sender begins its ring at a byte that the kernel of its peer has everything before of; the receiver
//! empties the socket, then the ring. Either end ends both rings at once, by one bit in the word that counts what was
//! sent (`sock::Sock::demote`): the receiver empties the ring, then goes back to the socket. That happens wherever the
//! kernel is needed: fork, dup, exec, descriptors sent, half-close, urgent data, sendfile, splice, options; and it is
//! final.
//!
//! | file | what it holds |
//! |---|---|
//! | `calls` | the functions in front of the C library's |
//! | `real` | the C library's |
//! | `sock`, `descriptors`, `own_fds` | connections by descriptor; what happens to these; the library's own |
//! | `meet`, `diagnosis` | how two ends find each other, and that they are the ends of one connection |
//! | `switch` | one direction between TCP and a carrier of its bytes, as a state machine |
//! | `ring`, `memory`, `tcp` | bytes in shared memory; what the kernel reports of those that went by TCP |
//! | `pointers` | memory that the program passes and that may not be there |
//! | `io`, `poll`, `epoll` | sending and receiving; waiting for readiness |
//! | `door`, `sleepers` | what wakes threads that sleep; threads that sleep for one connection |
//! | `signals` | which handlers let a call continue that they interrupted |
//! | `jumps` | jumps of the program out of calls |
//! | `spin` | how long to look before sleeping |
//! | `fork`, `thread` | what a child must not take for its own |
//! | `direct_calls` | code of the program that makes system calls itself |
//! | `confined` | what remains once the program restricts its system calls |
//! | `config`, `fd_set` | variables; sets of descriptors |
#![allow(clippy::missing_safety_doc, reason = "the exported functions' contracts are the man pages'")]

mod calls;
mod clock;
mod config;
mod confined;
mod descriptors;
mod diagnosis;
mod direct_calls;
mod door;
mod epoll;
mod errno;
mod fd_set;
mod fork;
mod io;
mod jumps;
mod meet;
mod memory;
mod own_fds;
mod pointers;
mod poll;
mod real;
mod ring;
mod signals;
mod sleepers;
mod sock;
mod spin;
mod switch;
mod tcp;
mod thread;

/// Sends `signal` to this process before its `nth` store to shared memory from now on; for tests, in builds with debug
/// assertions alone. Whether this build can.
#[cfg(debug_assertions)]
#[unsafe(no_mangle)]
pub extern "C" fn farcall_preload_arm_store_hook(nth: u64, signal: std::ffi::c_int) -> bool {
    farcall_shm::arm_store_hook(nth, signal)
}
