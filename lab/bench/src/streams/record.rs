//! Content of a write, and its check by the reader.
//!
//! The first word of a write contains its number and whether it is the last of a phase; the last word is the
//! complement of the first. In the verifying phase all bytes between them are derived from the number; later they
//! remain unchanged.

use crate::peer::PeerError;
use std::io::Read;
use std::ops::RangeInclusive;

/// Allowed lengths of writes: at least the first and the last word.
pub const WRITE_LENS_BYTES: RangeInclusive<usize> = 2 * WORD..=1 << 26;

const WORD: usize = 8;
/// Approximate number of bytes per read, rounded to whole writes.
const READ_AT_ONCE_BYTES: usize = 64 << 10;
/// Multiplier that spreads numbers over all bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Generator of consecutive writes.
pub(super) struct Writes {
    bytes: Vec<u8>,
    number: u64,
}

impl Writes {
    pub(super) fn new(len_bytes: usize) -> Self {
        Self { bytes: vec![0; len_bytes], number: 0 }
    }

    /// Returns the number of generated writes.
    pub(super) fn count(&self) -> u64 {
        self.number
    }

    /// Returns the length of each write in bytes.
    pub(super) fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the next write, of which only the first and last word are new.
    #[inline]
    pub(super) fn next(&mut self, is_last: bool) -> &[u8] {
        self.number += 1;
        let head = head_of(self.number, is_last);
        let tail = self.bytes.len() - WORD;
        self.bytes[..WORD].copy_from_slice(&head.to_le_bytes());
        self.bytes[tail..].copy_from_slice(&(!head).to_le_bytes());
        &self.bytes
    }

    /// Returns the next write, all of whose bytes are new.
    pub(super) fn next_whole(&mut self, is_last: bool) -> &[u8] {
        let body = WORD..self.bytes.len() - WORD;
        for (at, bytes) in self.bytes[body].chunks_mut(WORD).enumerate() {
            bytes.copy_from_slice(&body_word(self.number + 1, at)[..bytes.len()]);
        }
        self.next(is_last)
    }
}

const fn head_of(number: u64, is_last: bool) -> u64 {
    number << 1 | is_last as u64
}

fn body_word(number: u64, at: usize) -> [u8; WORD] {
    ((number << 32) + at as u64).wrapping_mul(SPREAD).to_le_bytes()
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + WORD].try_into().expect("a word's bytes"))
}

/// Checker of consecutive writes.
pub(super) struct Reads {
    /// Holds a whole number of writes, so that none is split at either end.
    bytes: Vec<u8>,
    len_bytes: usize,
    number: u64,
}

impl Reads {
    pub(super) fn new(len_bytes: usize) -> Self {
        let at_once = (READ_AT_ONCE_BYTES / len_bytes).max(1);
        Self { bytes: vec![0; at_once * len_bytes], len_bytes, number: 0 }
    }

    /// Returns the number of correct writes.
    pub(super) fn count(&self) -> u64 {
        self.number
    }

    /// Reads all writes of a phase. Returns false if the stream ended before the phase. `check` checks the bytes
    /// between the first and the last word.
    pub(super) fn phase<R: Read + ?Sized>(
        &mut self,
        from: &mut R,
        check: impl Fn(u64, &[u8]) -> bool,
    ) -> Result<bool, PeerError> {
        let (mut read, mut checked) = (0, 0);
        let before = self.number;
        loop {
            match from.read(&mut self.bytes[read..]).map_err(PeerError::system("read"))? {
                0 if self.number == before && read == 0 => return Ok(false),
                0 => return Err(PeerError::Ended),
                count => read += count,
            }
            while read - checked >= self.len_bytes {
                self.number += 1;
                let write = &self.bytes[checked..checked + self.len_bytes];
                checked += self.len_bytes;
                if self.judge(write, &check)? {
                    return if read == checked { Ok(true) } else { Err(self.wrong("after")) };
                }
            }
            if read == self.bytes.len() {
                (read, checked) = (0, 0);
            }
        }
    }

    /// Checks a write against the expected one. Returns whether it is the last of its phase.
    #[inline]
    fn judge(&self, write: &[u8], check: &impl Fn(u64, &[u8]) -> bool) -> Result<bool, PeerError> {
        let (head, tail) = (word_at(write, 0), word_at(write, self.len_bytes - WORD));
        let is_last = head & 1 == 1;
        let is_right = head == head_of(self.number, is_last) && tail == !head;
        if is_right && check(self.number, &write[WORD..self.len_bytes - WORD]) {
            Ok(is_last)
        } else {
            Err(self.wrong("in"))
        }
    }

    #[cold]
    fn wrong(&self, place: &str) -> PeerError {
        PeerError::Part(format!("wrong bytes arrived, {place} write {} of {} B", self.number, self.len_bytes))
    }
}

/// Returns whether the bytes between first and last word are those of a write in the verifying phase.
pub(super) fn is_whole(number: u64, body: &[u8]) -> bool {
    body.chunks(WORD).enumerate().all(|(at, bytes)| *bytes == body_word(number, at)[..bytes.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the reader's result for two phases whose bytes `change` may modify.
    fn read_changed(len_bytes: usize, change: impl Fn(&mut Vec<u8>)) -> Result<u64, PeerError> {
        let mut writes = Writes::new(len_bytes);
        let mut stream = Vec::new();
        (0..5).for_each(|number| stream.extend_from_slice(writes.next_whole(number == 4)));
        let timed = stream.len();
        (0..5).for_each(|number| stream.extend_from_slice(writes.next(number == 4)));
        change(&mut stream);
        let (mut checked, mut rest) = stream.split_at(timed.min(stream.len()));
        let mut reads = Reads::new(len_bytes);
        assert!(reads.phase(&mut checked, is_whole)?);
        assert!(reads.phase(&mut rest, |_, _| true)?);
        Ok(reads.count())
    }

    #[test]
    fn checks_all_bytes_in_the_first_phase_and_the_ends_later() {
        for len_bytes in [16, 17, 64, 1_000] {
            assert_eq!(read_changed(len_bytes, |_| ()).unwrap(), 10);
            for at in 0..10 * len_bytes {
                let (is_checked, place) = (at < 5 * len_bytes, at % len_bytes);
                let result = read_changed(len_bytes, |stream| stream[at] ^= 4);
                let is_noticed = is_checked || place < WORD || place >= len_bytes - WORD;
                assert_eq!(result.is_err(), is_noticed, "byte {at} of writes of {len_bytes} B");
            }
        }
    }

    #[test]
    fn writes_that_are_lost_swapped_or_twice_there_are_noticed() {
        let wrong = |change: fn(&mut Vec<u8>)| read_changed(64, change).unwrap_err().to_string();
        assert_eq!(wrong(|stream| drop(stream.drain(64..128))), "wrong bytes arrived, in write 2 of 64 B");
        assert!(wrong(|stream| stream.copy_within(384..448, 448)).contains("in write 8"));
        assert!(wrong(|stream| stream[320..448].rotate_left(64)).contains("in write 6"));
        assert!(wrong(|stream| stream.push(0)).contains("after write 10"));
        assert!(wrong(|stream| stream.truncate(639)).contains("ended"));
    }

    #[test]
    fn a_stream_may_end_between_phases_only() {
        let mut writes = Writes::new(16);
        let mut reads = Reads::new(16);
        assert!(!reads.phase(&mut &[0; 0][..], is_whole).unwrap());
        let part = writes.next_whole(false).to_vec();
        assert!(matches!(reads.phase(&mut &part[..], is_whole), Err(PeerError::Ended)));
    }
}
