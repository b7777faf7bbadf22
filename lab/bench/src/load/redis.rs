//! Redis as a target: behaves like a blocking client that pipelines up to the window.

use super::rpc::Traffic;
use super::target::{Outcome, Request, Target, TargetError};
use redis_protocol::resp2::decode::decode_range;
use redis_protocol::resp2::encode::encode_borrowed;
use redis_protocol::resp2::types::{BorrowedFrame, RangeFrame};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Length of the input buffer in bytes; only a single longer reply makes it grow.
const INPUT_BYTES: usize = 64 << 10;

/// A connection to Redis. Requests are sent together by one write, and then all their replies are awaited.
pub struct RedisTarget {
    /// TCP or Unix stream socket; both are read and written by the same system calls.
    stream: TcpStream,
    out: Vec<u8>,
    /// Received bytes. Those before `at` have been consumed; from `filled` on the buffer is free.
    input: Vec<u8>,
    at: usize,
    filled: usize,
    /// Requests in the order of their replies: slot, and whether the request is a read.
    outstanding: VecDeque<(u32, bool)>,
    exchanges: u64,
}

impl RedisTarget {
    /// Connects over TCP, with Nagle's algorithm disabled.
    ///
    /// # Errors
    /// Returns the error of the failed system call.
    pub fn connect_tcp(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Self::over(stream, patience)
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// Returns the error of the failed system call.
    pub fn connect_unix(path: &Path, patience: Duration) -> io::Result<Self> {
        Self::over(OwnedFd::from(UnixStream::connect(path)?).into(), patience)
    }

    fn over(stream: TcpStream, patience: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let (out, input, outstanding) = (Vec::new(), vec![0; INPUT_BYTES], VecDeque::new());
        Ok(Self { stream, out, input, at: 0, filled: 0, outstanding, exchanges: 0 })
    }

    /// Returns the traffic so far: the number of times that requests were sent together and awaited.
    pub fn traffic(&self) -> Traffic {
        Traffic { verbs: self.exchanges, empty_reads: 0 }
    }

    fn queue(&mut self, words: &[&[u8]]) -> Result<(), TargetError> {
        let mut bulk = [const { BorrowedFrame::Null }; 3];
        bulk.iter_mut().zip(words).for_each(|(frame, word)| *frame = BorrowedFrame::BulkString(word));
        let frame = BorrowedFrame::Array(&bulk[..words.len()]);
        let at = self.out.len();
        self.out.resize(at + frame.encode_len(false), 0);
        let encoded = encode_borrowed(&mut self.out[at..], &frame, false);
        encoded.map(|_| ()).map_err(|error| TargetError::Protocol(error.to_string()))
    }

    /// Returns the next reply and its offset in the input.
    fn next_reply(&mut self) -> Result<(usize, RangeFrame), TargetError> {
        loop {
            let decoded = decode_range(&self.input[self.at..self.filled]);
            if let Some((frame, taken)) = decoded.map_err(|e| TargetError::Protocol(e.to_string()))? {
                let begin = self.at;
                self.at += taken;
                return Ok((begin, frame));
            }
            self.read_more().map_err(|error| TargetError::Lost(error.to_string()))?;
        }
    }

    fn read_more(&mut self) -> io::Result<()> {
        if self.filled == self.input.len() {
            self.input.copy_within(self.at..self.filled, 0);
            self.filled -= self.at;
            self.at = 0;
            if self.filled == self.input.len() {
                self.input.resize(2 * self.filled, 0);
            }
        }
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
            Ok(got) => {
                self.filled += got;
                Ok(())
            }
            // Tracing for the count of system calls interrupts this process. The next call reads again.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Target for RedisTarget {
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError> {
        let is_read = match request {
            Request::Get { key } => {
                self.queue(&[b"GET", key])?;
                true
            }
            Request::Put { key, value } => {
                self.queue(&[b"SET", key, value])?;
                false
            }
        };
        self.outstanding.push_back((slot, is_read));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TargetError> {
        if self.outstanding.is_empty() {
            return Ok(());
        }
        self.exchanges += 1;
        let written = self.stream.write_all(&self.out);
        self.out.clear();
        written.map_err(|error| TargetError::Lost(error.to_string()))
    }

    fn poll(&mut self, mut done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
        while let Some((slot, is_read)) = self.outstanding.pop_front() {
            let (begin, reply) = self.next_reply().inspect_err(|_| self.outstanding.clear())?;
            done(
                slot,
                match (is_read, reply) {
                    (true, RangeFrame::BulkString((from, to))) => {
                        Outcome::Value(&self.input[begin + from..begin + to])
                    }
                    (true, RangeFrame::Null) => Outcome::Absent,
                    (false, RangeFrame::SimpleString(_)) => Outcome::Stored,
                    (_, RangeFrame::Error(_)) => Outcome::Refused,
                    (_, other) => {
                        self.outstanding.clear();
                        return Err(TargetError::Protocol(format!("{other:?} is no reply to this request")));
                    }
                },
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Starts a service that expects one fixed request, sends one reply in small segments and closes the connection.
    fn converse(expected: &'static [u8], reply: &'static [u8]) -> (RedisTarget, thread::JoinHandle<()>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let service = thread::spawn(move || {
            let mut request = vec![0; expected.len()];
            theirs.read_exact(&mut request).unwrap();
            assert_eq!(request, expected);
            reply.chunks(3).for_each(|piece| theirs.write_all(piece).unwrap());
        });
        (RedisTarget::over(OwnedFd::from(ours).into(), Duration::from_secs(20)).unwrap(), service)
    }

    #[test]
    fn a_window_is_sent_at_once_and_answered_in_order() {
        let (mut target, service) = converse(
            b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$4\r\nh\r\ni\r\n*2\r\n$3\r\nGET\r\n$1\r\nc\r\n\
              *3\r\n$3\r\nSET\r\n$1\r\nd\r\n$0\r\n\r\n",
            b"$5\r\nx\r\nyz\r\n+OK\r\n$-1\r\n-OOM command not allowed\r\n",
        );
        target.submit(7, Request::Get { key: b"a" }).unwrap();
        target.submit(2, Request::Put { key: b"b", value: b"h\r\ni" }).unwrap();
        target.submit(5, Request::Get { key: b"c" }).unwrap();
        target.submit(6, Request::Put { key: b"d", value: b"" }).unwrap();
        let mut seen = Vec::new();
        target.flush().unwrap();
        target.poll(|slot, outcome| seen.push(format!("{slot} {outcome:?}"))).unwrap();
        service.join().unwrap();
        assert_eq!(seen, ["7 Value([120, 13, 10, 121, 122])", "2 Stored", "5 Absent", "6 Refused"]);
        target.submit(0, Request::Get { key: b"a" }).unwrap();
        let result = target.flush().and_then(|()| target.poll(|_, _| {}));
        assert!(matches!(result, Err(TargetError::Lost(_))), "{result:?}");
    }

    #[test]
    fn garbage_is_a_protocol_error() {
        for reply in [&b"HELLO\r\n"[..], b":5\r\n"] {
            let (mut target, service) = converse(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n", reply);
            target.submit(0, Request::Get { key: b"a" }).unwrap();
            target.flush().unwrap();
            assert!(matches!(target.poll(|_, _| {}), Err(TargetError::Protocol(_))));
            service.join().unwrap();
        }
    }
}
