//! The send ring: holds bytes from the call that writes them until the WRITE that carries them completes.

use std::collections::VecDeque;

use farcall_link::Ticket;

/// Allocator of ranges in local memory, allocated and released in FIFO order. When all ranges are released it starts
/// at offset 0 again, so that a stream whose WRITEs complete immediately keeps using the same cache lines.
#[derive(Debug)]
pub(crate) struct SendRing {
    len_bytes: usize,
    /// Offset of the next range.
    head: usize,
    /// The allocated ranges: the WRITE that reads each, and its offset.
    in_flight: VecDeque<(Ticket, usize)>,
}

impl SendRing {
    pub fn new(len_bytes: usize, writes_max: usize) -> Self {
        Self { len_bytes, head: 0, in_flight: VecDeque::with_capacity(writes_max) }
    }

    /// Releases the ranges whose WRITEs have completed.
    #[inline]
    pub fn reclaim(&mut self, is_done: impl Fn(Ticket) -> bool) {
        while self.in_flight.front().is_some_and(|(ticket, _)| is_done(*ticket)) {
            self.in_flight.pop_front();
        }
        if self.in_flight.is_empty() {
            self.head = 0;
        }
    }

    /// Returns offset and length of a free range of at most `most` bytes. It is not allocated until [`SendRing::used`].
    #[inline]
    pub fn reserve(&mut self, most: usize) -> (usize, usize) {
        let Some((_, tail)) = self.in_flight.front().copied() else { return (0, most.min(self.len_bytes)) };
        if self.head > tail && self.head == self.len_bytes {
            self.head = 0;
        }
        let end = if self.head > tail { self.len_bytes } else { tail };
        (self.head, most.min(end - self.head))
    }

    /// Allocates the first `len_bytes` bytes of the range last returned; the WRITE `ticket` reads them.
    #[inline]
    pub fn used(&mut self, len_bytes: usize, ticket: Ticket) {
        if ticket != Ticket::NONE {
            self.in_flight.push_back((ticket, self.head));
            self.head += len_bytes;
        }
    }
}
