//! Framing.

use super::{Refusal, RefusalKind};

const MAGIC: u32 = u32::from_le_bytes(*b"FCL1");

/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 16;

/// The longest frame, head included. A handshake needs a few hundred bytes.
pub const FRAME_BYTES_MAX: usize = 16 * 1024;

/// The versions of the protocol that an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The oldest.
    pub min: u16,
    /// The newest.
    pub max: u16,
}

impl VersionRange {
    /// What this build speaks. Version 1 is the first, so there is no N−1 yet.
    pub const CURRENT: Self = Self { min: 1, max: 1 };

    /// The newest version that both speak.
    pub fn common(self, other: Self) -> Option<u16> {
        let version = self.max.min(other.max);
        (version >= self.min.max(other.min)).then_some(version)
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Client's first.
    Hello = 1,
    /// Server's answer.
    Welcome = 2,
    /// The other answer; ends the conversation.
    Refuse = 3,
    /// Something said later.
    Notice = 4,
}

impl FrameKind {
    fn from_u8(kind: u8) -> Option<Self> {
        [Self::Hello, Self::Welcome, Self::Refuse, Self::Notice]
            .into_iter()
            .find(|known| *known as u8 == kind)
    }
}

/// A whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What its sender speaks.
    pub versions: VersionRange,
    /// What it is.
    pub kind: FrameKind,
    /// Its body.
    pub body: Vec<u8>,
}

/// Writes a frame.
///
/// # Panics
/// If the body is longer than [`FRAME_BYTES_MAX`] allows: our own error.
pub fn encode_frame(versions: VersionRange, kind: FrameKind, body: &[u8]) -> Vec<u8> {
    assert!(HEAD_BYTES + body.len() <= FRAME_BYTES_MAX, "a handshake body of {} bytes", body.len());
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&versions.min.to_le_bytes());
    bytes.extend_from_slice(&versions.max.to_le_bytes());
    bytes.extend_from_slice(&[kind as u8, 0, 0, 0]);
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Cuts a byte stream into frames. Holds at most one frame.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
}

impl FrameReader {
    /// Takes bytes in, up to the end of one frame, and returns how many it took and the frame if it is whole.
    ///
    /// # Errors
    /// If the bytes are not of this protocol, or the frame is too long or of an unknown kind. Further bytes mean nothing
    /// then.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(usize, Option<Frame>), Refusal> {
        let mut taken = self.fill(bytes, HEAD_BYTES);
        // Refuse as soon as the first bytes are wrong: a foreign protocol may never send 16 of them.
        let known = self.buffer.len().min(4);
        if self.buffer[..known] != MAGIC.to_le_bytes()[..known] {
            return Err(RefusalKind::NotThisProtocol.because(format!(
                "the first bytes are {:02x?}, not the magic \"FCL1\"",
                &self.buffer[..known]
            )));
        }
        if self.buffer.len() < HEAD_BYTES {
            return Ok((taken, None));
        }
        let (versions, kind, body_bytes) = self.head()?;
        taken += self.fill(&bytes[taken..], HEAD_BYTES + body_bytes);
        if self.buffer.len() < HEAD_BYTES + body_bytes {
            return Ok((taken, None));
        }
        let body = self.buffer[HEAD_BYTES..].to_vec();
        self.buffer.clear();
        Ok((taken, Some(Frame { versions, kind, body })))
    }

    fn fill(&mut self, bytes: &[u8], upto: usize) -> usize {
        let take = upto.saturating_sub(self.buffer.len()).min(bytes.len());
        self.buffer.extend_from_slice(&bytes[..take]);
        take
    }

    fn head(&self) -> Result<(VersionRange, FrameKind, usize), Refusal> {
        let u16_at = |at: usize| u16::from_le_bytes([self.buffer[at], self.buffer[at + 1]]);
        let versions = VersionRange { min: u16_at(4), max: u16_at(6) };
        let body_bytes = u32::from(u16_at(12)) | u32::from(u16_at(14)) << 16;
        let body_bytes = body_bytes as usize;
        if versions.min > versions.max || versions.min == 0 {
            return Err(RefusalKind::Malformed
                .because(format!("the range of versions {}..={} is empty", versions.min, versions.max)));
        }
        if body_bytes > FRAME_BYTES_MAX - HEAD_BYTES {
            return Err(RefusalKind::TooLarge.because(format!(
                "a frame of {body_bytes} bytes; at most {} are allowed",
                FRAME_BYTES_MAX - HEAD_BYTES
            )));
        }
        let kind = FrameKind::from_u8(self.buffer[8]).ok_or_else(|| {
            RefusalKind::Malformed.because(format!("frames of kind {} are unknown", self.buffer[8]))
        })?;
        Ok((versions, kind, body_bytes))
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
        let good = encode_frame(VersionRange::CURRENT, FrameKind::Hello, &[]);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        assert_eq!(refuse(&with(14, 0xff)), RefusalKind::TooLarge);
        assert_eq!(refuse(&with(8, 77)), RefusalKind::Malformed);
        assert_eq!(refuse(&with(4, 9)), RefusalKind::Malformed);
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(body in prop::collection::vec(any::<u8>(), 0..300), cut in 1usize..40) {
            let versions = VersionRange { min: 3, max: 9 };
            let bytes = [encode_frame(versions, FrameKind::Notice, &body), encode_frame(versions, FrameKind::Refuse, &[])]
                .concat();
            let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
            for chunk in bytes.chunks(cut) {
                let mut rest = chunk;
                while !rest.is_empty() {
                    let (taken, frame) = reader.feed(rest).unwrap();
                    rest = &rest[taken..];
                    frames.extend(frame);
                }
            }
            prop_assert_eq!(frames.len(), 2);
            prop_assert_eq!(&frames[0], &Frame { versions, kind: FrameKind::Notice, body });
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
