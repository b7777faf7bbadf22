//! Fields in the bytes of a MAD: numbers are big-endian, and a byte may contain several fields.

/// Length in bytes of the part after a MAD's header.
pub(super) const BODY_BYTES: usize = 232;

/// The part after a MAD's header. Offsets of fields are those of the tables in section 12.6, in bytes from here.
#[derive(Clone, Copy)]
pub(super) struct Body(pub(super) [u8; BODY_BYTES]);

impl Body {
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..at + N].try_into().expect("as many as were asked for")
    }

    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    /// Reads a number of 24 bits.
    pub(super) fn u24(&self, at: usize) -> u32 {
        let [a, b, c] = self.bytes(at);
        u32::from_be_bytes([0, a, b, c])
    }

    pub(super) fn put_u24(&mut self, at: usize, number: u32) {
        self.put(at, &number.to_be_bytes()[1..]);
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    pub(super) fn put_u32(&mut self, at: usize, number: u32) {
        self.put(at, &number.to_be_bytes());
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    pub(super) fn put_u64(&mut self, at: usize, number: u64) {
        self.put(at, &number.to_be_bytes());
    }

    /// Reads a number of `width` bits of one byte, from bit `first`; bit 0 is the lowest.
    pub(super) fn bits(&self, at: usize, first: u32, width: u32) -> u8 {
        self.0[at] >> first & mask(width)
    }

    pub(super) fn put_bits(&mut self, at: usize, first: u32, width: u32, number: u8) {
        let of_field = mask(width) << first;
        self.0[at] = self.0[at] & !of_field | number << first & of_field;
    }
}

fn mask(width: u32) -> u8 {
    u8::MAX >> (8 - width)
}
