//! Configuration and limits of a stream.

/// Configuration of one end of a stream. Each end chooses its own receive ring; the sending side allocates a send ring
/// to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamConfig {
    /// Initial length of the receive ring in bytes. The peer sends from a send ring that is half as long.
    pub ring_bytes: usize,
    /// Maximum length of the receive ring in bytes. The ring grows while the peer keeps filling it. The longer ring is
    /// released when no bytes arrive for a second. If this equals `ring_bytes`, the length is fixed.
    pub ring_bytes_max: usize,
    /// `true` if the peer may be asked to send without wake-ups while the application thread of this end polls. Must
    /// be `false` for applications that wait only on the descriptor.
    pub may_poll: bool,
    /// Maximum number of bytes that [`crate::Stream::fill`] lends: the bound of the private copy.
    pub lent_bytes_max: usize,
    /// `true` if TCP may carry the bytes to another host where neither shared memory nor an RNIC reaches.
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
    /// Sets the field of the same name.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: usize) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// Sets the field of the same name.
    #[must_use]
    pub fn ring_bytes_max(mut self, bytes: usize) -> Self {
        self.ring_bytes_max = bytes;
        self
    }

    /// Sets a fixed ring length: the ring neither grows nor shrinks.
    #[must_use]
    pub fn fixed_ring(self, bytes: usize) -> Self {
        self.ring_bytes(bytes).ring_bytes_max(bytes)
    }

    /// Sets the field of the same name.
    #[must_use]
    pub fn may_poll(mut self, may_poll: bool) -> Self {
        self.may_poll = may_poll;
        self
    }

    /// Sets the field of the same name.
    #[must_use]
    pub fn lent_bytes_max(mut self, bytes: usize) -> Self {
        self.lent_bytes_max = bytes;
        self
    }

    /// Sets the field of the same name.
    #[must_use]
    pub fn may_use_tcp(mut self, may_use_tcp: bool) -> Self {
        self.may_use_tcp = may_use_tcp;
        self
    }
}

/// Minimum length of a receive ring in bytes, both local and accepted from a peer.
pub(crate) const RING_BYTES_MIN: usize = 4 << 10;
/// Maximum length of a receive ring in bytes: immediate data identifies a position by its low 30 bits.
pub(crate) const RING_BYTES_MAX: usize = 256 << 20;
