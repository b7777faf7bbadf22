//! The first bytes of each end: who speaks, which versions, and what it takes.

use super::Garbled;

/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"FgRP";

/// The versions that this build speaks.
pub const VERSION_MIN: u8 = 1;
/// See [`VERSION_MIN`].
pub const VERSION_MAX: u8 = 1;

/// What an end says of itself before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The versions that it speaks, from
    pub version_min: u8,
    /// and to. Both ends use the newest that both speak.
    pub version_max: u8,
    /// Calls that may be open at once: their numbers are smaller than this.
    pub calls_max: u16,
    /// Bytes of each call that may be sent to this end before it says more.
    pub window_bytes: u32,
}

impl Hello {
    /// As it goes over the stream. Four bytes are left for later versions.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&[self.version_min, self.version_max]);
        bytes[6..8].copy_from_slice(&self.calls_max.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.window_bytes.to_le_bytes());
        bytes
    }

    /// Reads a hello. Whether there is a version in common: [`Hello::version_with`].
    ///
    /// # Errors
    /// If it is none, or if nothing could be sent to who says it.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Garbled> {
        let [m0, m1, m2, m3, version_min, version_max, c0, c1, w0, w1, w2, w3, ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(Garbled("the other end speaks something else"));
        }
        let hello = Self {
            version_min,
            version_max,
            calls_max: u16::from_le_bytes([c0, c1]),
            window_bytes: u32::from_le_bytes([w0, w1, w2, w3]),
        };
        if hello.calls_max == 0 || hello.window_bytes == 0 || version_min > version_max {
            return Err(Garbled("the other end takes no calls"));
        }
        Ok(hello)
    }

    /// The newest version that both speak.
    pub fn version_with(self, other: Self) -> Option<u8> {
        let version = self.version_max.min(other.version_max);
        (version >= self.version_min.max(other.version_min)).then_some(version)
    }
}
