//! What the two ends tell each other over their control socket: a length, then JSON.

use super::RnicError;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// A longer message is not ours.
const LEN_BYTES_MAX: u32 = 1 << 20;

/// What one end must know of the other to connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Card {
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    /// Where this end's memory for incoming messages starts.
    pub(super) addr: u64,
    pub(super) rkey: u32,
    /// Bytes from one place for an incoming message to the next; both ends must agree.
    pub(super) stride_bytes: usize,
    /// The numbers of the queue pairs of each lane.
    pub(super) qp_nums: Vec<Vec<u32>>,
}

/// This end is connected and has posted its receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ready {
    /// Whether its memory may be polled for the last byte of a WRITE.
    pub(super) places_in_order: bool,
    /// Messages of one queue pair that it has receives for, whatever comes over the others.
    pub(super) receives_each: u32,
}

/// The initiator asks for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stop;

/// What the target saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Messages that consumed a receive.
    pub(super) received: u64,
    /// The first 8 bytes of its memory: what atomics left there.
    pub(super) first_word: u64,
}

/// Sends `mine` and receives the other end's.
pub(super) fn exchange<T: Serialize + DeserializeOwned>(
    control: &UnixStream,
    mine: &T,
) -> Result<T, RnicError> {
    send(control, mine)?;
    receive(control)
}

pub(super) fn send<T: Serialize>(mut control: &UnixStream, message: &T) -> Result<(), RnicError> {
    let text = serde_json::to_vec(message).map_err(failed)?;
    let len = u32::try_from(text.len()).map_err(failed)?;
    control.write_all(&len.to_le_bytes()).and_then(|()| control.write_all(&text)).map_err(failed)
}

pub(super) fn receive<T: DeserializeOwned>(mut control: &UnixStream) -> Result<T, RnicError> {
    let mut len = [0; 4];
    control.read_exact(&mut len).map_err(failed)?;
    let len = u32::from_le_bytes(len);
    if len > LEN_BYTES_MAX {
        return Err(RnicError::Handshake(format!("a message of {len} bytes")));
    }
    let mut text = vec![0; len as usize];
    control.read_exact(&mut text).map_err(failed)?;
    serde_json::from_slice(&text).map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> RnicError {
    RnicError::Handshake(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_garbage_is_refused() {
        let (left, right) = UnixStream::pair().unwrap();
        let ready = Ready { places_in_order: true, receives_each: 3 };
        send(&left, &ready).unwrap();
        send(&left, &Stop).unwrap();
        assert_eq!(receive::<Ready>(&right).unwrap(), ready);
        assert_eq!(receive::<Stop>(&right).unwrap(), Stop);
        (&left).write_all(&[255; 8]).unwrap();
        assert!(receive::<Stop>(&right).is_err());
        send(&left, &"something else").unwrap();
        drop(left);
        assert!(receive::<Ready>(&right).is_err());
    }
}
