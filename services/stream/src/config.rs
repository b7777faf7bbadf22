//! All limits and knobs in one place.

/// How an end of a stream is set up. Each end chooses its own receive ring; the sending side follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamConfig {
    /// Bytes of the receive ring at first. The peer sends from memory of its own that is half as long.
    pub ring_bytes: usize,
    /// Bytes that the receive ring grows to while the peer keeps filling it. A ring that grew is given back when
    /// nothing comes for a second. A ring of fixed length is one that is that long at first.
    pub ring_bytes_max: usize,
    /// Whether the peer may be told to send without wake-ups while the owner of this end polls. Not for owners that
    /// wait on the descriptor alone.
    pub may_poll: bool,
    /// The longest piece that [`crate::Stream::fill`] lends: the bound of the private copy.
    pub lent_bytes_max: usize,
    /// Whether the bytes may go over TCP to another host where neither shared memory nor an RNIC reaches.
    pub may_use_tcp: bool,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            ring_bytes: 32 << 10,
            ring_bytes_max: 4 << 20,
            may_poll: true,
            lent_bytes_max: 4 << 20,
            may_use_tcp: true,
        }
    }
}

impl StreamConfig {
    /// See the field.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: usize) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// See the field.
    #[must_use]
    pub fn ring_bytes_max(mut self, bytes: usize) -> Self {
        self.ring_bytes_max = bytes;
        self
    }

    /// A ring that neither grows nor shrinks.
    #[must_use]
    pub fn fixed_ring(self, bytes: usize) -> Self {
        self.ring_bytes(bytes).ring_bytes_max(bytes)
    }

    /// See the field.
    #[must_use]
    pub fn may_poll(mut self, may_poll: bool) -> Self {
        self.may_poll = may_poll;
        self
    }

    /// See the field.
    #[must_use]
    pub fn lent_bytes_max(mut self, bytes: usize) -> Self {
        self.lent_bytes_max = bytes;
        self
    }

    /// See the field.
    #[must_use]
    pub fn may_use_tcp(mut self, may_use_tcp: bool) -> Self {
        self.may_use_tcp = may_use_tcp;
        self
    }
}

/// The shortest ring that is accepted of a peer, and made.
pub(crate) const RING_BYTES_MIN: usize = 4 << 10;
/// The longest: a position in it is known by 30 bits of immediate data.
pub(crate) const RING_BYTES_MAX: usize = 256 << 20;
