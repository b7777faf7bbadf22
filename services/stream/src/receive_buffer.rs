//! The private copy of received bytes that a stream lends to the application. The peer cannot modify it.

/// Received bytes that the application has not consumed.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBuffer {
    bytes: Vec<u8>,
    consumed: usize,
}

impl ReceiveBuffer {
    /// Returns the bytes that were not consumed.
    #[inline]
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    /// Copies unconsumed bytes into `out` and consumes them. Returns their number.
    pub fn take(&mut self, out: &mut [u8]) -> usize {
        let len = out.len().min(self.rest().len());
        out[..len].copy_from_slice(&self.rest()[..len]);
        self.consume(len);
        len
    }

    /// # Panics
    /// If fewer than `len_bytes` bytes are left.
    #[inline]
    pub fn consume(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.rest().len(), "more is consumed than was lent");
        self.consumed += len_bytes;
        if self.consumed == self.bytes.len() {
            self.bytes.clear();
            self.consumed = 0;
        }
    }

    /// Returns the unconsumed bytes as a vector to append to.
    pub fn appended(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..std::mem::take(&mut self.consumed));
        &mut self.bytes
    }
}
