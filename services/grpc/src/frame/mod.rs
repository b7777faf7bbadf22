//! The protocol on a stream: one [`Hello`] in each direction, then frames of a [`Head`] and at most
//! [`PAYLOAD_BYTES_MAX`] bytes of payload.
//!
//! | frame | from | payload | flags |
//! |---|---|---|---|
//! | `CALL` | client | path, metadata, first bytes of the request | `END`, `DEFINES` |
//! | `RESPONSE` | server | HTTP status, metadata, trailers, first bytes of the response | `END` |
//! | `DATA` | both | bytes | `END` from a client |
//! | `TRAILERS` | server | trailers; ends its side of the call | |
//! | `RESET` | both | code and reason; a client's cancels the call, a server's ends it | |
//! | `WINDOW` | both | bytes of this call that the other end may send in addition | |
//! | `GOODBYE` | server | reason: it takes no more calls over this stream | |
//!
//! Numbers are little-endian. A path is either the number that a `CALL` with `DEFINES` assigned to it, or the number
//! [`LITERAL`] followed by the text. Metadata is encoded as described in [`metadata`]. When both sides have ended a
//! call, its number is free and the client uses it for another call. A `RESET` or a `WINDOW` that arrives after that
//! is ignored.

pub mod hello;
pub mod metadata;

use thiserror::Error;

pub use hello::Hello;

/// Length of a [`Head`] in bytes.
pub const HEAD_BYTES: usize = 8;
/// Maximum length of a payload in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a path in bytes.
pub const PATH_BYTES_MAX: usize = 1 << 10;
/// Maximum length of the reason of a `RESET` or `GOODBYE` in bytes.
pub const REASON_BYTES_MAX: usize = 1 << 10;
/// Number of a path that is sent as text.
pub const LITERAL: u16 = u16::MAX;

/// The sender's side of the call ends with this frame.
const END: u8 = 1;
/// The path's text follows its number, which identifies the path from then on.
const DEFINES: u8 = 2;

/// An invalid frame: the peer violates the protocol or does not use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct FrameError(pub &'static str);

/// Type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Begins a call.
    Call = 1,
    /// Begins the response.
    Response,
    /// Data of the request or the response.
    Data,
    /// Ends the response.
    Trailers,
    /// Resets the call.
    Reset,
    /// Permits the other end to send more.
    Window,
    /// The server accepts no more calls.
    Goodbye,
}

/// The first bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Type of the frame.
    pub kind: Kind,
    flags: u8,
    /// Number of the call to which it belongs.
    pub call: u16,
    /// Length of the payload in bytes.
    pub len_bytes: usize,
}

impl Head {
    /// Decodes a head.
    ///
    /// # Errors
    /// Returns an error if the bytes are no valid head.
    pub fn parse(bytes: &[u8; HEAD_BYTES]) -> Result<Self, FrameError> {
        let [kind, flags, call0, call1, len @ ..] = *bytes;
        let kind = match kind {
            1 => Kind::Call,
            2 => Kind::Response,
            3 => Kind::Data,
            4 => Kind::Trailers,
            5 => Kind::Reset,
            6 => Kind::Window,
            7 => Kind::Goodbye,
            _ => return Err(FrameError("a frame of a kind that does not exist")),
        };
        let allowed = match kind {
            Kind::Call => END | DEFINES,
            Kind::Response | Kind::Data => END,
            _ => 0,
        };
        if flags & !allowed != 0 {
            return Err(FrameError("a frame with flags that do not exist"));
        }
        let len_bytes = u32::from_le_bytes(len) as usize;
        if len_bytes > PAYLOAD_BYTES_MAX {
            return Err(FrameError("a frame that is longer than allowed"));
        }
        Ok(Self { kind, flags, call: u16::from_le_bytes([call0, call1]), len_bytes })
    }
}

/// Representation of the method's path in a `CALL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path<'a> {
    /// A number that was assigned before.
    Known(u16),
    /// A number, and the path that it identifies from now on.
    Defined(u16, &'a str),
    /// The path itself.
    Literal(&'a str),
}

/// A frame, borrowing its parts from the payload. Metadata blocks are not decoded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the parts are those of the module's table")]
pub enum Frame<'a> {
    Call { path: Path<'a>, metadata: &'a [u8], data: &'a [u8], is_end: bool },
    Response { http_status: u16, metadata: &'a [u8], trailers: &'a [u8], data: &'a [u8], is_end: bool },
    Data { data: &'a [u8], is_end: bool },
    Trailers { trailers: &'a [u8] },
    Reset { code: u8, reason: &'a str },
    Window { more_bytes: u32 },
    Goodbye { reason: &'a str },
}

/// Parser of a payload.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], FrameError> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or(FrameError("a frame shorter than its parts"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, FrameError> {
        self.take(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn block(&mut self) -> Result<&'a [u8], FrameError> {
        let len = self.u16()?;
        self.take(len.into())
    }

    fn path(&mut self) -> Result<&'a str, FrameError> {
        let text = self.block()?;
        if text.len() > PATH_BYTES_MAX {
            return Err(FrameError("a path that is longer than allowed"));
        }
        std::str::from_utf8(text).map_err(|_| FrameError("a path that is no text"))
    }

    fn reason(&mut self) -> Result<&'a str, FrameError> {
        if self.0.len() > REASON_BYTES_MAX {
            return Err(FrameError("a reason that is longer than allowed"));
        }
        std::str::from_utf8(self.rest()).map_err(|_| FrameError("a reason that is no text"))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

impl<'a> Frame<'a> {
    /// Decodes the payload of a frame.
    ///
    /// # Errors
    /// Returns an error if the payload does not match the head.
    pub fn parse(head: Head, payload: &'a [u8]) -> Result<Self, FrameError> {
        let mut reader = Reader(payload);
        let is_end = head.flags & END != 0;
        let frame = match head.kind {
            Kind::Call => {
                let path = match (reader.u16()?, head.flags & DEFINES != 0) {
                    (LITERAL, false) => Path::Literal(reader.path()?),
                    (LITERAL, true) => return Err(FrameError("a path that defines the number of no path")),
                    (number, true) => Path::Defined(number, reader.path()?),
                    (number, false) => Path::Known(number),
                };
                Self::Call { path, metadata: reader.block()?, data: reader.rest(), is_end }
            }
            Kind::Response => Self::Response {
                http_status: reader.u16()?,
                metadata: reader.block()?,
                trailers: reader.block()?,
                data: reader.rest(),
                is_end,
            },
            Kind::Data => Self::Data { data: reader.rest(), is_end },
            Kind::Trailers => Self::Trailers { trailers: reader.rest() },
            Kind::Reset => Self::Reset { code: reader.take(1)?[0], reason: reader.reason()? },
            Kind::Window => {
                let bytes = reader.take(4)?;
                Self::Window { more_bytes: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) }
            }
            Kind::Goodbye => Self::Goodbye { reason: reader.reason()? },
        };
        if !reader.0.is_empty() {
            return Err(FrameError("a frame that is longer than its parts"));
        }
        Ok(frame)
    }
}

/// Encoder that appends frames to a buffer.
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    at: usize,
}

impl<'a> Writer<'a> {
    /// Begins a frame at the end of `out`.
    pub fn begin(out: &'a mut Vec<u8>, kind: Kind, call: u16) -> Self {
        let at = out.len();
        out.extend_from_slice(&[kind as u8, 0]);
        out.extend_from_slice(&call.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        Self { out, at }
    }

    /// Marks the frame as the last one of the sender's side of the call.
    pub fn end(&mut self) {
        self.out[self.at + 1] |= END;
    }

    /// Appends the path of the method.
    ///
    /// # Panics
    /// If the path is longer than [`PATH_BYTES_MAX`].
    pub fn path(&mut self, path: Path<'_>) {
        let (number, text) = match path {
            Path::Known(number) => return self.u16(number),
            Path::Defined(number, text) => {
                self.out[self.at + 1] |= DEFINES;
                (number, text)
            }
            Path::Literal(text) => (LITERAL, text),
        };
        assert!(text.len() <= PATH_BYTES_MAX, "a path of {} bytes", text.len());
        self.u16(number);
        self.u16(text.len() as u16);
        self.put(text.as_bytes());
    }

    /// Appends a number.
    pub fn u16(&mut self, number: u16) {
        self.put(&number.to_le_bytes());
    }

    /// Appends bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Appends the bytes that `write` writes.
    pub fn put_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(self.out);
    }

    /// Appends a block that `write` writes, preceded by its length.
    pub fn block(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let at = self.out.len();
        self.u16(0);
        write(self.out);
        let len = (self.out.len() - at - 2) as u16;
        self.out[at..at + 2].copy_from_slice(&len.to_le_bytes());
    }

    /// Returns the length of the payload so far, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.out.len() - self.at - HEAD_BYTES
    }

    /// Completes the frame. Its payload includes `more_bytes` further bytes that the caller sends after the buffer.
    pub fn finish(self, more_bytes: usize) {
        let len = (self.len_bytes() + more_bytes) as u32;
        self.out[self.at + 4..self.at + HEAD_BYTES].copy_from_slice(&len.to_le_bytes());
    }
}

/// Truncates `text` to the maximum length of a reason.
pub fn reason(text: &str) -> &str {
    &text[..text.floor_char_boundary(REASON_BYTES_MAX)]
}

#[cfg(test)]
mod tests;
