//! Statistics that a program reports about its TCP connections under `farcall run` and about its streams: one block
//! each, which `farcall explain` reads.

use crate::Report;

crate::counters! {
    /// One connection; its block's label is `tcp LOCAL PEER connected` or `accepted` under `farcall run`, and
    /// `stream LOCAL PEER connected` or `accepted` for a stream of Farcall's own.
    pub struct Connection {
        /// Reason for its current transport: a [`PathReason`].
        why,
        /// Size in bytes of its ring to the peer, or of the ring that a stream reads from; 0 if it never had one.
        ring_bytes,
        /// Bytes sent through shared memory, or by a stream.
        sent_bytes,
        /// Bytes received through shared memory, or by a stream.
        received_bytes,
        /// Times that a thread slept until bytes arrived through it; for a stream, times that a thread was about to
        /// sleep.
        sleeps,
        /// Bytes sent by TCP, counted when the connection or its process ends.
        tcp_sent_bytes,
        /// Bytes received by TCP, counted when the connection or its process ends.
        tcp_received_bytes,
    }
}

/// Reason for the current transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum PathReason {
    /// TCP: the other end has not been found yet.
    NotPaired = 0,
    /// Shared memory: both ends found each other.
    Paired = 1,
    /// TCP: the search for the other end was without success.
    PeerNotAccelerated = 2,
    /// TCP: the other end belongs to another user.
    AnotherUser = 3,
    /// TCP: memory or descriptors were exhausted, or there is no rendezvous directory.
    NoResources = 4,
    /// Back on TCP: the process forked, and its child also used the connection.
    Forked = 5,
    /// Back on TCP: the descriptor was duplicated.
    Duplicated = 6,
    /// Back on TCP: another program may have the descriptor after an exec.
    Executed = 7,
    /// Back on TCP: its descriptor was sent to another process.
    Sent = 8,
    /// Back on TCP: one direction was shut down, or an end was closed.
    ShutDown = 9,
    /// Back on TCP: an option or a flag that only the kernel supports (urgent data, splice, kernel TLS, ...).
    KernelFeature = 10,
    /// Back on TCP: an epoll object that is nested in another one waits for it.
    NestedEpoll = 11,
    /// Back on TCP: the program uses io_uring.
    IoUring = 12,
    /// Ended: the other end has ended.
    PeerEnded = 13,
    /// Back on TCP at the request of the peer.
    PeerDemoted = 14,
    /// One-sided WRITEs: the device reaches the peer of a stream.
    DeviceReaches = 15,
    /// TCP: neither shared memory nor an RNIC reaches the peer of a stream.
    NothingReaches = 16,
    /// TCP: code of the program can make system calls that bypass the library.
    DirectCalls = 17,
    /// Ended with an error: its TCP socket received bytes that the library of the other end had not sent.
    Unannounced = 18,
    /// TCP: no connection was established.
    NotEstablished = 19,
    /// Back on TCP: the program restricts its system calls (seccomp).
    Confined = 20,
    /// TCP: a stream of the C library (`FILE`) uses its descriptor.
    Stream = 21,
    /// Back on TCP: most of its responses are so large that shared memory gains nothing.
    LargeTransfers = 22,
}

impl Report {
    /// Returns the number of bytes that its TCP connections under `farcall run` have sent and received through shared
    /// memory.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        let connections = self.blocks.iter().filter(|block| block.label.starts_with("tcp "));
        let counters = connections.flat_map(|block| &block.counters);
        let moved = counters.filter(|(name, _)| ["sent_bytes", "received_bytes"].contains(&name.as_str()));
        moved.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

impl PathReason {
    /// Returns the description of a number that a process stored; `None` for a number of another version.
    pub fn words(number: u64) -> Option<&'static str> {
        Some(match number {
            0 => "not yet paired with the other end",
            1 => "paired with the other end",
            2 => "peer not accelerated",
            3 => "another user",
            4 => "no memory, descriptors or runtime directory",
            5 => "back on TCP: fork",
            6 => "back on TCP: dup",
            7 => "back on TCP: exec",
            8 => "back on TCP: sent to another process",
            9 => "shut down",
            10 => "back on TCP: an option or flag that only the kernel knows",
            11 => "back on TCP: an epoll object inside of another",
            12 => "back on TCP: io_uring",
            13 => "the other end has ended",
            14 => "back on TCP at the request of the other end",
            15 => "the device reaches the peer",
            16 => "neither shared memory nor an RNIC reaches the peer",
            17 => "the program can make system calls itself",
            18 => "ended: bytes arrived that the library of the other end had not sent",
            19 => "no connection was established",
            20 => "back on TCP: the program restricts its system calls",
            21 => "a stream of the C library has its descriptor",
            22 => "back on TCP: large responses",
            _ => return None,
        })
    }
}
