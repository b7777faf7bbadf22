//! The private copy that an end lends to its owner, whom the peer cannot disturb in it.

/// Bytes that were received, up to those that the owner has not consumed.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    bytes: Vec<u8>,
    consumed: usize,
}

impl Lent {
    /// What was not consumed.
    #[inline]
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    /// Copies out as much of the rest as fits, and consumes it.
    pub fn take(&mut self, out: &mut [u8]) -> usize {
        let len = out.len().min(self.rest().len());
        out[..len].copy_from_slice(&self.rest()[..len]);
        self.consume(len);
        len
    }

    /// # Panics
    /// If the rest is shorter.
    #[inline]
    pub fn consume(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.rest().len(), "more is consumed than was lent");
        self.consumed += len_bytes;
        if self.consumed == self.bytes.len() {
            self.bytes.clear();
            self.consumed = 0;
        }
    }

    /// The rest, to append to.
    pub fn appended(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..std::mem::take(&mut self.consumed));
        &mut self.bytes
    }
}
