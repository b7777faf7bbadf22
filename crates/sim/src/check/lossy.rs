//! Memory that is written without acknowledgement: each byte holds one of the values that may be there.

use super::WriteId;
use super::Wrong;

/// A reference model of memory with one writer, whose writes are executed in their order, or in part, or not at all. Only
/// of some is it known that they are there as a whole: those that were confirmed.
#[derive(Clone)]
pub struct LossyImage {
    /// For each byte: values that may be there, with the write that would have left them, oldest first.
    bytes: Vec<Vec<(WriteId, u8)>>,
    next: u64,
}

impl LossyImage {
    /// Memory that holds `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.iter().map(|byte| vec![(WriteId(0), *byte)]).collect(), next: 0 }
    }

    /// The writer begins a write.
    pub fn begin(&mut self, offset: usize, bytes: &[u8]) -> WriteId {
        self.next += 1;
        let id = WriteId(self.next);
        for (values, byte) in self.bytes[offset..].iter_mut().zip(bytes) {
            values.push((id, *byte));
        }
        id
    }

    /// A write is there as a whole. That says nothing of those before it, other than that they cannot come any more where
    /// it wrote.
    pub fn confirm(&mut self, id: WriteId, offset: usize, len_bytes: usize) {
        for values in &mut self.bytes[offset..offset + len_bytes] {
            values.retain(|(of, _)| *of >= id);
        }
    }

    /// Whether bytes found at `offset` are possible.
    ///
    /// # Errors
    /// The first byte that is not.
    pub fn check(&self, offset: usize, found: &[u8]) -> Result<(), Wrong> {
        for (at, byte) in found.iter().enumerate().map(|(i, byte)| (offset + i, *byte)) {
            let values = &self.bytes[at];
            if !values.iter().any(|(_, value)| *value == byte) {
                let possible = values.iter().map(|(_, value)| *value).collect();
                return Err(Wrong { offset: at, found: byte, possible });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_confirmed_may_be_there_or_not() {
        let mut image = LossyImage::new(&[0; 6]);
        image.begin(0, &[1; 4]);
        let second = image.begin(2, &[2; 4]);
        assert!(image.check(0, &[0; 6]).is_ok(), "both lost");
        assert!(image.check(0, &[1, 0, 2, 1, 0, 2]).is_ok(), "both in part");
        assert!(image.check(0, &[2]).is_err(), "the second does not write there");
        image.confirm(second, 2, 4);
        assert!(image.check(0, &[0, 1, 2, 2, 2, 2]).is_ok(), "the first is as uncertain as before");
        assert!(image.check(0, &[1, 1, 1, 2, 2, 2]).is_err(), "it cannot come after the second");
        assert!(image.check(5, &[0]).is_err(), "the second is there");
    }

    #[test]
    fn a_write_begun_later_may_be_over_a_confirmed_one() {
        let mut image = LossyImage::new(&[0; 2]);
        let first = image.begin(0, &[1; 2]);
        image.begin(0, &[2; 1]);
        image.confirm(first, 0, 2);
        assert!(image.check(0, &[1, 1]).is_ok() && image.check(0, &[2, 1]).is_ok());
        assert!(image.check(0, &[0]).is_err() && image.check(1, &[2]).is_err());
    }
}
