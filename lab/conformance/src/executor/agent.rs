//! The loop of an agent: executes the calls received on a stream until the stream is closed.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::call::{Answer, Call, Refusal, VERSION};
use super::{Executor, Local};

/// Maximum length of a frame in bytes.
const MAX_FRAME_BYTES: usize = 32 << 20;

/// Writes one message: its length, then its bytes.
pub(super) fn write_frame<T: Serialize>(line: &mut UnixStream, message: &T) -> io::Result<()> {
    let bytes = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
    frame.extend(bytes);
    line.write_all(&frame)
}

/// Reads one message.
pub(super) fn read_frame<T: DeserializeOwned>(line: &mut UnixStream) -> io::Result<T> {
    let mut len = [0; 4];
    line.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_FRAME_BYTES {
        return Err(io::Error::other(format!("a message of {len} bytes; at most {MAX_FRAME_BYTES}")));
    }
    let mut bytes = vec![0; len];
    line.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Serves one end on a stream until the other side closes it.
///
/// # Errors
/// Returns an error if the stream fails within a message.
pub fn serve(mut end: Local, mut line: UnixStream) -> io::Result<()> {
    write_frame(&mut line, &VERSION)?;
    loop {
        let call: Call = match read_frame(&mut line) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            call => call?,
        };
        let answer: Result<Answer, Refusal> = end.call(&call);
        write_frame(&mut line, &answer)?;
    }
}
