//! The replying end of one of many streams, which must not block.

use super::ping_pong::MESSAGE_LEN_BYTES;
use crate::peer::PeerError;
use std::io::{ErrorKind, Read, Write};

/// State of one client's messages and their replies, which may be received and sent in parts.
pub struct Echo {
    bytes: [u8; MESSAGE_LEN_BYTES],
    /// Bytes received of the message, or sent of the reply once the message is complete.
    done: usize,
    is_answer: bool,
}

impl Echo {
    pub const fn new() -> Self {
        Self { bytes: [0; MESSAGE_LEN_BYTES], done: 0, is_answer: false }
    }

    /// Replies to the received messages, as far as the stream has space. Returns whether the client has closed the
    /// stream.
    pub fn answer(&mut self, socket: &mut (impl Read + Write)) -> Result<bool, PeerError> {
        loop {
            let (name, moved) = if self.is_answer {
                ("write", socket.write(&self.bytes[self.done..]))
            } else {
                ("read", socket.read(&mut self.bytes[self.done..]))
            };
            match moved {
                Ok(0) => return Ok(true),
                Ok(count) => self.done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(true),
                Err(error) => return Err(PeerError::system(name)(error)),
            }
            if self.done == self.bytes.len() {
                (self.done, self.is_answer) = (0, !self.is_answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ping_pong::message;
    use super::*;
    use std::io;

    /// One message; every other call transfers a few bytes.
    #[derive(Default)]
    struct Slow {
        calls: usize,
        read: usize,
        written: Vec<u8>,
    }

    impl Slow {
        fn turn(&mut self) -> io::Result<usize> {
            self.calls += 1;
            if self.calls.is_multiple_of(2) { Ok(10) } else { Err(ErrorKind::WouldBlock.into()) }
        }
    }

    impl Read for Slow {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let count = self.turn()?.min(MESSAGE_LEN_BYTES - self.read).min(bytes.len());
            bytes[..count].copy_from_slice(&message(7)[self.read..][..count]);
            self.read += count;
            Ok(count)
        }
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = self.turn()?.min(bytes.len());
            self.written.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_answer_that_finds_no_room_is_finished_later() {
        let (mut slow, mut echo) = (Slow::default(), Echo::new());
        while !echo.answer(&mut slow).unwrap() {}
        assert_eq!(slow.written, message(7));
    }
}
