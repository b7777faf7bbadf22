//! Framing.

use super::message::Message;
use super::{Refusal, RefusalKind};

const MAGIC: [u8; 4] = *b"FCL1";

/// Length in bytes of the header: magic, range of versions, length of the body; little-endian.
const HEAD_BYTES: usize = 12;

/// Maximum length of a frame in bytes, header included. A handshake message has a few hundred bytes.
pub const FRAME_BYTES_MAX: usize = 16 * 1024;
const BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - HEAD_BYTES;

/// The versions of the protocol that an endpoint supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The oldest version.
    pub min: u16,
    /// The newest version.
    pub max: u16,
}

impl VersionRange {
    /// The versions that this build supports. Version 1 is the first, so there is no N−1 yet.
    pub const CURRENT: Self = Self { min: 1, max: 1 };

    /// Returns the newest version that both support.
    pub fn common(self, other: Self) -> Option<u16> {
        let version = self.max.min(other.max);
        (version >= self.min.max(other.min)).then_some(version)
    }
}

/// A complete frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Versions that its sender supports.
    pub(super) versions: VersionRange,
    pub(super) body: Vec<u8>,
}

impl Frame {
    /// # Panics
    /// If the message is longer than [`FRAME_BYTES_MAX`] allows, which is an error of this program.
    pub(super) fn encode(versions: VersionRange, message: &Message) -> Vec<u8> {
        // Serialising plain data into a growable vector cannot fail.
        Self { versions, body: postcard::to_allocvec(message).unwrap_or_default() }.to_bytes()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        assert!(self.body.len() <= BODY_BYTES_MAX, "a handshake message of {} bytes", self.body.len());
        let VersionRange { min, max } = self.versions;
        let len = (self.body.len() as u32).to_le_bytes();
        [&MAGIC[..], &min.to_le_bytes(), &max.to_le_bytes(), &len, &self.body].concat()
    }

    /// Decodes the message. Fields that a later version appended are ignored.
    pub(super) fn message(&self) -> Result<Message, Refusal> {
        let malformed = |error| RefusalKind::Malformed.because(format!("the body of a frame: {error}"));
        postcard::take_from_bytes(&self.body).map(|(message, _appended)| message).map_err(malformed)
    }
}

/// Splits a byte stream into frames. Buffers at most one frame.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    buffer: Vec<u8>,
}

impl FrameReader {
    /// Consumes bytes up to the end of one frame. Returns the number of bytes consumed, and the frame if it is
    /// complete.
    ///
    /// # Errors
    /// Returns a refusal if the bytes are not of this protocol, or if the frame is too long. Later bytes cannot be
    /// interpreted then.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(usize, Option<Frame>), Refusal> {
        let mut taken = self.fill(bytes, HEAD_BYTES);
        // Refuse as soon as the first bytes are wrong: a peer with another protocol may never send 12 bytes.
        let known = self.buffer.len().min(MAGIC.len());
        if self.buffer[..known] != MAGIC[..known] {
            return Err(RefusalKind::NotThisProtocol.because(format!(
                "the first bytes are {:02x?}, not the magic \"FCL1\"",
                &self.buffer[..known]
            )));
        }
        if self.buffer.len() < HEAD_BYTES {
            return Ok((taken, None));
        }
        let (versions, body_bytes) = self.head()?;
        taken += self.fill(&bytes[taken..], HEAD_BYTES + body_bytes);
        if self.buffer.len() < HEAD_BYTES + body_bytes {
            return Ok((taken, None));
        }
        let body = self.buffer.split_off(HEAD_BYTES);
        self.buffer.clear();
        Ok((taken, Some(Frame { versions, body })))
    }

    fn fill(&mut self, bytes: &[u8], upto: usize) -> usize {
        let take = upto.saturating_sub(self.buffer.len()).min(bytes.len());
        self.buffer.extend_from_slice(&bytes[..take]);
        take
    }

    fn head(&self) -> Result<(VersionRange, usize), Refusal> {
        let u16_at = |at: usize| u16::from_le_bytes([self.buffer[at], self.buffer[at + 1]]);
        let versions = VersionRange { min: u16_at(4), max: u16_at(6) };
        let body_bytes = usize::from(u16_at(8)) | usize::from(u16_at(10)) << 16;
        if versions.min > versions.max || versions.min == 0 {
            return Err(RefusalKind::Malformed
                .because(format!("the range of versions {}..={} is empty", versions.min, versions.max)));
        }
        if body_bytes > BODY_BYTES_MAX {
            let why = format!("a message of {body_bytes} bytes; at most {BODY_BYTES_MAX} are allowed");
            return Err(RefusalKind::TooLarge.because(why));
        }
        Ok((versions, body_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_meet_at_the_highest_common() {
        let range = |min, max| VersionRange { min, max };
        assert_eq!(range(1, 2).common(range(2, 3)), Some(2));
        assert_eq!(range(1, 2).common(range(1, 1)), Some(1));
        assert_eq!(range(1, 1).common(range(2, 3)), None);
    }

    #[test]
    fn each_wrong_head_has_its_refusal() {
        let refuse = |bytes: &[u8]| FrameReader::default().feed(bytes).unwrap_err().kind;
        assert_eq!(refuse(b"GET / HTTP/1.1\r\n"), RefusalKind::NotThisProtocol);
        assert_eq!(refuse(b"S"), RefusalKind::NotThisProtocol);
        let good = Frame { versions: VersionRange::CURRENT, body: Vec::new() }.to_bytes();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        assert_eq!(refuse(&with(10, 0xff)), RefusalKind::TooLarge);
        assert_eq!(refuse(&with(4, 9)), RefusalKind::Malformed);
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(body in prop::collection::vec(any::<u8>(), 0..300), cut in 1usize..40) {
            let versions = VersionRange { min: 3, max: 9 };
            let sent = [Frame { versions, body }, Frame { versions, body: Vec::new() }];
            let bytes = sent.each_ref().map(Frame::to_bytes).concat();
            let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
            for chunk in bytes.chunks(cut) {
                let mut rest = chunk;
                while !rest.is_empty() {
                    let (taken, frame) = reader.feed(rest).unwrap();
                    rest = &rest[taken..];
                    frames.extend(frame);
                }
            }
            prop_assert_eq!(frames, sent);
        }

        #[test]
        fn garbage_never_panics_and_never_grows(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut reader = FrameReader::default();
            let mut bytes = bytes;
            let magic = b"FCL1".len().min(bytes.len());
            bytes[..magic].copy_from_slice(&b"FCL1"[..magic]);
            let _ = reader.feed(&bytes);
            prop_assert!(reader.buffer.len() <= FRAME_BYTES_MAX);
        }
    }
}
