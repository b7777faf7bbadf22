//! Round trips of a message and its reply; both ends check every byte.

use super::medium::Bytes;
use crate::measure::{self, RoundTrips};
use crate::peer::PeerError;
use std::io::ErrorKind;
use std::time::Duration;

/// Length of message and reply in bytes.
pub const MESSAGE_LEN_BYTES: usize = 64;

/// Returns the message with a number. Each word differs from all others, in both directions.
#[inline]
pub(super) fn message(number: u64) -> [u8; MESSAGE_LEN_BYTES] {
    let mut bytes = [0; MESSAGE_LEN_BYTES];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(number << 3 | at as u64).to_le_bytes());
    }
    bytes
}

/// Runs the measuring end.
pub(super) fn round_trips(
    stream: &mut dyn Bytes,
    warm_up: Duration,
    duration: Duration,
) -> Result<RoundTrips, PeerError> {
    let mut reply = [0; MESSAGE_LEN_BYTES];
    measure::ping_pong(warm_up, duration, |number| {
        stream.write_all(&message(2 * number)).map_err(PeerError::system("write"))?;
        stream.read_exact(&mut reply).map_err(PeerError::system("read"))?;
        if reply == message(2 * number + 1) { Ok(()) } else { Err(PeerError::WrongEcho(number)) }
    })
}

/// Runs the replying end until the stream ends.
pub(super) fn answer(stream: &mut dyn Bytes) -> Result<(), PeerError> {
    let mut bytes = [0; MESSAGE_LEN_BYTES];
    for number in 1.. {
        match stream.read_exact(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            read => read.map_err(PeerError::system("read"))?,
        }
        if bytes != message(2 * number) {
            return Err(PeerError::Part(format!("wrong bytes arrived, in message {number}")));
        }
        stream.write_all(&message(2 * number + 1)).map_err(PeerError::system("write"))?;
    }
    Ok(())
}
