//! The tail of a message, and the optional checksum.

use farcall_link::{Region, SplitMix64};

use super::Seq;

/// A connection's key.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct TailKey(pub u64);

impl TailKey {
    /// Returns the tail of a message. A payload contains these 64 bits by chance with a probability of 2⁻⁶⁴, since the
    /// key is random and never part of a payload.
    #[inline]
    pub const fn tail(self, seq: Seq) -> u64 {
        SplitMix64::mix(self.0 ^ (seq.0 as u64 | (seq.0 as u64) << 32))
    }

    /// Returns the CRC-32C of a message: of the key, the header words (with the CRC zeroed) and the payload. The key
    /// is covered because a slot may still hold a message of an earlier session with the same number and length.
    /// Without ordered placement, the new tail may be visible before the rest of the new message.
    pub fn checksum(self, header: &[u64], payload: &[u8]) -> u32 {
        let key = crc32c::crc32c(&self.0.to_le_bytes());
        let crc = header.iter().fold(key, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()));
        crc32c::crc32c_append(crc, payload)
    }

    /// Returns [`TailKey::checksum`] of a message whose payload lies in a region, without copying the payload.
    pub fn checksum_in(self, header: &[u64], region: &Region, offset: usize, len_bytes: usize) -> u32 {
        let mut crc = self.checksum(header, &[]);
        let mut piece = [0; 512];
        let mut done_bytes = 0;
        while done_bytes < len_bytes {
            let piece = &mut piece[..(len_bytes - done_bytes).min(512)];
            region.copy_out(offset + done_bytes, piece);
            crc = crc32c::crc32c_append(crc, piece);
            done_bytes += piece.len();
        }
        crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_differ_by_key_and_by_number() {
        let tails = [
            TailKey(1).tail(Seq(1)),
            TailKey(1).tail(Seq(2)),
            TailKey(2).tail(Seq(1)),
            TailKey(2).tail(Seq(2)),
        ];
        for (i, a) in tails.iter().enumerate() {
            assert!(tails[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn rejects_a_message_with_the_tail_of_another_session() {
        let (before, now) = (TailKey(1), TailKey(2));
        let words = [Seq(13).0.into(), 4];
        assert_ne!(before.checksum(&words, b"old!"), now.checksum(&words, b"old!"));
    }
}
