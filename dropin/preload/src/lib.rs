//! Preloaded into a socket program (`farcall run`), moves its TCP connections to other such programs of the same user on
//! the same host into shared memory. The TCP socket stays: for the handshake, for who is not preloaded, and for the end.
//!
//! No byte is added to a connection. Its ends meet outside of it (`meet`) and share two rings (`ring`), one a
//! direction. A sender begins its ring at a byte that the kernel of its peer has everything before of; the receiver empties
//! the socket, then the ring. Either end ends both rings at once, by one bit in the word that counts what was sent
//! (`sock::Sock::demote`): the receiver empties the ring, then goes back to the socket. That happens wherever the kernel
//! is needed: fork, dup, exec, descriptors sent, half-close, urgent data, sendfile, splice, options; and it is final.
//!
//! | file | what it holds |
//! |---|---|
//! | `calls` | the functions in front of the C library's |
//! | `real` | the C library's |
//! | `sock`, `descriptors`, `own_fds` | connections by descriptor; what happens to these; the library's own |
//! | `meet`, `diagnosis` | how two ends find each other, and that they are the ends of one connection |
//! | `ring`, `memory`, `tcp` | bytes in shared memory; what the kernel tells of those that went by TCP |
//! | `io`, `poll`, `epoll` | sending and receiving; waiting for readiness |
//! | `spin` | how long to look before sleeping |
//! | `fork`, `thread` | what a child must not take for its own |
//! | `config` | variables |
#![allow(clippy::missing_safety_doc, reason = "the exported functions' contracts are the man pages'")]

mod calls;
mod clock;
mod config;
mod descriptors;
mod diagnosis;
mod epoll;
mod errno;
mod fork;
mod io;
mod meet;
mod memory;
mod own_fds;
mod poll;
mod real;
mod ring;
mod sock;
mod spin;
mod tcp;
mod thread;

/// Sends `signal` to this process before its `nth` store to shared memory from now on; for tests, in builds with debug
/// assertions alone. Whether this build can.
#[cfg(debug_assertions)]
#[unsafe(no_mangle)]
pub extern "C" fn farcall_preload_arm_store_hook(nth: u64, signal: std::ffi::c_int) -> bool {
    farcall_shm::arm_store_hook(nth, signal)
}
