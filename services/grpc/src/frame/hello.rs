//! The first bytes that each end sends: protocol, versions and limits.

use super::FrameError;

/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"FgRP";

/// Oldest protocol version that this build supports.
pub const VERSION_MIN: u8 = 1;
/// Newest protocol version that this build supports.
pub const VERSION_MAX: u8 = 1;

/// Parameters that each end sends before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Oldest protocol version that the end supports.
    pub version_min: u8,
    /// Newest protocol version that it supports. Both ends use the newest version that both support.
    pub version_max: u8,
    /// Number of calls that may be open at once: their numbers are smaller than this.
    pub calls_max: u16,
    /// Initial window in bytes: the amount of each call that may be sent to this end before it sends a window update.
    pub window_bytes: u32,
}

impl Hello {
    /// Encodes the hello. Four bytes are reserved for later versions.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&[self.version_min, self.version_max]);
        bytes[6..8].copy_from_slice(&self.calls_max.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.window_bytes.to_le_bytes());
        bytes
    }

    /// Decodes a hello. [`Hello::version_with`] checks for a common version.
    ///
    /// # Errors
    /// Returns an error if the bytes are no hello, or if its limits would permit no calls or no data.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Result<Self, FrameError> {
        let [m0, m1, m2, m3, version_min, version_max, c0, c1, w0, w1, w2, w3, ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(FrameError("the other end uses another protocol"));
        }
        let hello = Self {
            version_min,
            version_max,
            calls_max: u16::from_le_bytes([c0, c1]),
            window_bytes: u32::from_le_bytes([w0, w1, w2, w3]),
        };
        if hello.calls_max == 0 || hello.window_bytes == 0 || version_min > version_max {
            return Err(FrameError("the other end takes no calls"));
        }
        Ok(hello)
    }

    /// Returns the newest version that both ends support.
    pub fn version_with(self, other: Self) -> Option<u8> {
        let version = self.version_max.min(other.version_max);
        (version >= self.version_min.max(other.version_min)).then_some(version)
    }
}
