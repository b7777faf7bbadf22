//! Preloaded into a socket program (`farcall run`), moves its TCP connections to other such programs of the same user
//! on the same host into shared memory. The TCP socket remains for the handshake, for peers without this library, and
//! for the end of the connection.
//!
//! No byte is added to a connection. Its ends pair outside of it (`rendezvous`) and share two rings (`ring`), one for
//! each direction. A sender begins its ring at a byte before which the peer's kernel has received all bytes; the
//! receiver empties the socket, then the ring. Either end ends both rings at once, by one bit in the word that counts
//! the sent bytes (`sock::Sock::demote`): the receiver empties the ring, then returns to the socket. This happens
//! whenever the kernel is required: fork, dup, exec, descriptors sent, half-close, urgent data, sendfile, splice,
//! options; and it is final.
//!
//! | module | contents |
//! |---|---|
//! | `calls` | the functions that replace those of the C library |
//! | `libc_next` | the functions of the C library |
//! | `sock`, `descriptors`, `own_fds` | connections by descriptor; changes of descriptors; the library's descriptors |
//! | `rendezvous`, `sock_diag` | pairing of two ends, and the proof that they are the ends of one connection |
//! | `switch` | one direction between TCP and a carrier of its bytes, as a state machine |
//! | `ring`, `memory`, `tcp` | bytes in shared memory; the kernel's counts of bytes sent by TCP |
//! | `pointers` | memory that the program passes and that may not be accessible |
//! | `io` | sending and receiving |
//! | `readiness`, `poll`, `epoll` | readiness of a connection; waits for it |
//! | `doorbell`, `waiters` | wake-ups of sleeping threads; the threads that sleep for one connection |
//! | `signals` | the signal handlers after which an interrupted call continues |
//! | `jumps` | jumps of the program out of calls |
//! | `spin` | polling time before a sleep |
//! | `fork`, `thread` | state that a child must not use as its own |
//! | `direct_calls` | code of the program that makes system calls itself |
//! | `confined` | whether the program has restricted its system calls |
//! | `protocols`, `options` | sockets of TCP; options of sockets that the rings do not provide |
//! | `config`, `fd_set` | variables; sets of descriptors |
#![allow(clippy::missing_safety_doc, reason = "the exported functions' contracts are the man pages'")]

mod calls;
mod clock;
mod config;
mod confined;
mod descriptors;
mod direct_calls;
mod doorbell;
mod epoll;
mod errno;
mod fd_set;
mod fork;
mod io;
mod jumps;
mod libc_next;
mod memory;
mod options;
mod own_fds;
mod pointers;
mod poll;
mod protocols;
mod readiness;
mod rendezvous;
mod ring;
mod signals;
mod sock;
mod sock_diag;
mod spin;
mod switch;
mod tcp;
mod thread;
mod waiters;

/// Sends `signal` to this process before its `nth` store to shared memory from now on; for tests, in builds with debug
/// assertions alone. Returns whether this build can do so.
#[cfg(debug_assertions)]
#[unsafe(no_mangle)]
pub extern "C" fn farcall_preload_arm_store_hook(nth: u64, signal: std::ffi::c_int) -> bool {
    farcall_shm::arm_store_hook(nth, signal)
}
