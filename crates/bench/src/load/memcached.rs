//! The memcached text protocol over a stream socket, pipelined up to the window: what an ordinary client of the TCP
//! and Unix-socket doors does, with a blocking socket.

use super::target::{Outcome, Request, Target, TargetError};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

/// One read asks for so much.
const READ_LEN_BYTES: usize = 64 << 10;
/// No reply line is longer: `VALUE <key of 250> <flags> <bytes>` fits several times.
const LINE_LEN_BYTES_MAX: usize = 1024;

/// A connected stream socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP, with Nagle's algorithm off.
    Tcp(TcpStream),
    /// A Unix stream socket.
    Unix(UnixStream),
}

impl Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(into),
            Self::Unix(socket) => socket.read(into),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.write_all(bytes),
            Self::Unix(socket) => socket.write_all(bytes),
        }
    }
}

/// A connection to a memcached door.
#[derive(Debug)]
pub struct MemcachedTarget {
    stream: Stream,
    /// Requests not sent yet.
    to_send: Vec<u8>,
    /// Slots in the order of their requests, which is the order of the replies.
    outstanding: VecDeque<u32>,
    /// Bytes received; those before `parsed` are done with.
    received: Vec<u8>,
    received_len_bytes: usize,
    parsed: usize,
}

/// One reply at the start of the received bytes.
#[derive(Debug, PartialEq, Eq)]
enum Reply<'a> {
    /// More bytes are needed.
    Incomplete,
    /// An outcome that takes so many bytes.
    Complete(Outcome<'a>, usize),
}

impl MemcachedTarget {
    /// Speaks over `stream`, which must be blocking.
    ///
    /// # Errors
    /// When the socket refuses its options.
    pub fn new(stream: Stream) -> io::Result<Self> {
        if let Stream::Tcp(socket) = &stream {
            socket.set_nodelay(true)?;
        }
        Ok(Self {
            stream,
            to_send: Vec::with_capacity(READ_LEN_BYTES),
            outstanding: VecDeque::new(),
            received: vec![0; READ_LEN_BYTES],
            received_len_bytes: 0,
            parsed: 0,
        })
    }

    fn flush(&mut self) -> Result<(), TargetError> {
        if !self.to_send.is_empty() {
            self.stream.write_all(&self.to_send).map_err(lost)?;
            self.to_send.clear();
        }
        Ok(())
    }

    /// Receives at least one byte, after moving what is left to the front and growing the buffer if it is full.
    fn receive(&mut self) -> Result<(), TargetError> {
        self.received.copy_within(self.parsed..self.received_len_bytes, 0);
        self.received_len_bytes -= self.parsed;
        self.parsed = 0;
        if self.received_len_bytes == self.received.len() {
            self.received.resize(self.received.len() * 2, 0);
        }
        loop {
            match self.stream.read(&mut self.received[self.received_len_bytes..]) {
                Ok(0) => return Err(TargetError::Lost("the service closed it".to_owned())),
                Ok(count) => {
                    self.received_len_bytes += count;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(error)),
            }
        }
    }
}

fn lost(error: io::Error) -> TargetError {
    TargetError::Lost(error.to_string())
}

impl Target for MemcachedTarget {
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError> {
        match request {
            Request::Get { key } => {
                self.to_send.extend_from_slice(b"get ");
                self.to_send.extend_from_slice(key);
            }
            Request::Put { key, value } => {
                self.to_send.extend_from_slice(b"set ");
                self.to_send.extend_from_slice(key);
                // Writing to a vector cannot fail.
                let _ = write!(self.to_send, " 0 0 {}\r\n", value.len());
                self.to_send.extend_from_slice(value);
            }
        }
        self.to_send.extend_from_slice(b"\r\n");
        self.outstanding.push_back(slot);
        Ok(())
    }

    fn poll(&mut self, mut done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
        if self.outstanding.is_empty() {
            return Ok(());
        }
        self.flush()?;
        self.receive()?;
        while let Some(slot) = self.outstanding.front() {
            match parse(&self.received[self.parsed..self.received_len_bytes])? {
                Reply::Incomplete => break,
                Reply::Complete(outcome, len_bytes) => {
                    done(*slot, outcome);
                    self.parsed += len_bytes;
                    self.outstanding.pop_front();
                }
            }
        }
        Ok(())
    }
}

/// The first reply in `bytes`.
fn parse(bytes: &[u8]) -> Result<Reply<'_>, TargetError> {
    let window = &bytes[..bytes.len().min(LINE_LEN_BYTES_MAX)];
    let Some(line_end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() >= LINE_LEN_BYTES_MAX {
            Err(unexpected(window))
        } else {
            Ok(Reply::Incomplete)
        };
    };
    let (line, after_line) = (&bytes[..line_end], line_end + 2);
    let complete = |outcome| Ok(Reply::Complete(outcome, after_line));
    match line {
        b"STORED" => complete(Outcome::Stored),
        b"END" => complete(Outcome::Absent),
        _ if line.starts_with(b"SERVER_ERROR") || line.starts_with(b"CLIENT_ERROR") => {
            complete(Outcome::Refused)
        }
        b"NOT_STORED" => complete(Outcome::Refused),
        _ => parse_value(bytes, line, after_line),
    }
}

/// `VALUE <key> <flags> <bytes>\r\n<data>\r\nEND\r\n`.
fn parse_value<'a>(bytes: &'a [u8], line: &[u8], start: usize) -> Result<Reply<'a>, TargetError> {
    const TAIL: &[u8] = b"\r\nEND\r\n";
    let len_bytes = std::str::from_utf8(line)
        .ok()
        .and_then(|line| line.strip_prefix("VALUE "))
        .and_then(|rest| rest.split(' ').nth(2)?.parse::<u32>().ok())
        .ok_or_else(|| unexpected(line))? as usize;
    let Some(tail) = bytes.get(start + len_bytes..start + len_bytes + TAIL.len()) else {
        return Ok(Reply::Incomplete);
    };
    if tail != TAIL {
        return Err(unexpected(tail));
    }
    Ok(Reply::Complete(Outcome::Value(&bytes[start..start + len_bytes]), start + len_bytes + TAIL.len()))
}

fn unexpected(bytes: &[u8]) -> TargetError {
    let shown = &bytes[..bytes.len().min(60)];
    TargetError::Protocol(format!("unexpected reply {:?}", shown.escape_ascii().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn replies_are_parsed_whole_or_not_at_all() {
        let cases: [(&[u8], Outcome<'_>); 5] = [
            (b"STORED\r\n", Outcome::Stored),
            (b"END\r\n", Outcome::Absent),
            (b"VALUE k 0 5\r\na\r\nbc\r\nEND\r\n", Outcome::Value(b"a\r\nbc")),
            (b"VALUE k 0 0\r\n\r\nEND\r\n", Outcome::Value(b"")),
            (b"SERVER_ERROR out of memory\r\n", Outcome::Refused),
        ];
        for (bytes, outcome) in cases {
            let followed = [bytes, b"STORED\r\n"].concat();
            assert_eq!(parse(&followed), Ok(Reply::Complete(outcome, bytes.len())));
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), Ok(Reply::Incomplete), "{cut} bytes of {bytes:?}");
            }
        }
    }

    #[test]
    fn garbage_is_a_protocol_error() {
        for bytes in [&b"HELLO\r\n"[..], b"VALUE k 0 x\r\n", b"VALUE k 0 1\r\nabcdefghijkl", &[0; 2000]] {
            assert!(matches!(parse(bytes), Err(TargetError::Protocol(_))), "{bytes:?}");
        }
    }

    #[test]
    fn pipelined_requests_are_answered_in_order_even_in_pieces() {
        let (client, mut server) = UnixStream::pair().unwrap();
        let service = thread::spawn(move || {
            let expected = b"get a\r\nset b 0 0 2\r\nhi\r\nget c\r\n";
            let mut request = vec![0; expected.len()];
            server.read_exact(&mut request).unwrap();
            assert_eq!(request, expected);
            for piece in b"VALUE a 0 3\r\nxyz\r\nEND\r\nSTORED\r\nEND\r\n".chunks(4) {
                server.write_all(piece).unwrap();
            }
        });
        let mut target = MemcachedTarget::new(Stream::Unix(client)).unwrap();
        target.submit(7, Request::Get { key: b"a" }).unwrap();
        target.submit(2, Request::Put { key: b"b", value: b"hi" }).unwrap();
        target.submit(5, Request::Get { key: b"c" }).unwrap();
        let mut seen = Vec::new();
        while seen.len() < 3 {
            target.poll(|slot, outcome| seen.push((slot, format!("{outcome:?}")))).unwrap();
        }
        service.join().unwrap();
        let names: Vec<_> = seen.iter().map(|(slot, outcome)| (*slot, outcome.as_str())).collect();
        assert_eq!(names, [(7, "Value([120, 121, 122])"), (2, "Stored"), (5, "Absent")]);
        target.submit(0, Request::Get { key: b"a" }).unwrap();
        assert!(matches!(target.poll(|_, _| {}), Err(TargetError::Lost(_))));
    }
}
