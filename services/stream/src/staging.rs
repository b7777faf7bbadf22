//! The send ring: where bytes lie from the call that writes them until the WRITE that carries them is complete.

use std::collections::VecDeque;

use farcall_link::Ticket;

/// Places in a piece of local memory, given and taken back in order. When all are back it begins at the front again, so
/// that a stream whose WRITEs complete at once always uses the same cache lines.
#[derive(Debug)]
pub(crate) struct Staging {
    len_bytes: usize,
    /// Where the next place begins.
    head: usize,
    /// The places under way: the WRITE that reads each, and where it begins.
    under_way: VecDeque<(Ticket, usize)>,
}

impl Staging {
    pub fn new(len_bytes: usize, writes_max: usize) -> Self {
        Self { len_bytes, head: 0, under_way: VecDeque::with_capacity(writes_max) }
    }

    /// Takes back what is not under way any more.
    #[inline]
    pub fn reclaim(&mut self, is_done: impl Fn(Ticket) -> bool) {
        while self.under_way.front().is_some_and(|(ticket, _)| is_done(*ticket)) {
            self.under_way.pop_front();
        }
        if self.under_way.is_empty() {
            self.head = 0;
        }
    }

    /// A place of at most `most` bytes: where, and how long. It stays free until [`Staging::used`].
    #[inline]
    pub fn place(&mut self, most: usize) -> (usize, usize) {
        let Some((_, tail)) = self.under_way.front().copied() else { return (0, most.min(self.len_bytes)) };
        if self.head > tail && self.head == self.len_bytes {
            self.head = 0;
        }
        let end = if self.head > tail { self.len_bytes } else { tail };
        (self.head, most.min(end - self.head))
    }

    /// The first bytes of the last place are read by a WRITE.
    #[inline]
    pub fn used(&mut self, len_bytes: usize, ticket: Ticket) {
        if ticket != Ticket::NONE {
            self.under_way.push_back((ticket, self.head));
            self.head += len_bytes;
        }
    }
}
