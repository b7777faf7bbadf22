//! A small blocking client of the text protocol with pipelining, for loading, benchmarks and tests.
//!
//! Requests are queued without being sent. [`Client::flush`] sends them in one write, and the replies are then read in
//! the order of the requests. The plain calls ([`Client::get`], [`Client::set`] …) perform all three steps.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use farcall_shm::fork::Generation;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use thiserror::Error;

use super::text::{number, push_number};
use crate::key::{KEY_MAX_BYTES, KeyError};

/// Errors between this client and its server.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The connection failed.
    #[error("the connection to the memcached server failed")]
    Io(#[from] io::Error),
    /// The server did not reply, or did not read, within the timeout of [`Client::set_timeout`].
    #[error("no answer within {within:?}; the outcome of unanswered requests is unknown")]
    NoAnswer {
        /// The timeout.
        within: Duration,
    },
    /// The server closed the connection while replies were outstanding; whether those requests were executed is
    /// unknown.
    #[error("the server closed the connection; the outcome of unanswered requests is unknown")]
    Closed,
    /// The client was inherited by a fork: this process would consume replies to its parent.
    #[error("the client belongs to the process that made it, of which this one is a fork; connect again")]
    Forked,
    /// The server refused the request.
    #[error("the server refused: {0}")]
    Refused(String),
    /// The reply is not valid for this request.
    #[error("the server's reply is not understood: {0:?}")]
    Unexpected(String),
    /// The key cannot be sent.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Keys of the text protocol have no spaces and no control characters.
    #[error(
        "the key holds a space or a control character (byte {byte:#04x}), which this protocol cannot carry"
    )]
    KeyByte {
        /// The first such byte.
        byte: u8,
    },
}

/// An item as the server sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value<'a> {
    /// The stored bytes.
    pub bytes: &'a [u8],
    /// Flags for use by the client.
    pub flags: u32,
}

/// A connection to a memcached server.
pub struct Client {
    /// The socket; also used for a Unix stream socket, which has the same system calls.
    stream: TcpStream,
    out: Vec<u8>,
    /// Received bytes; those before `at` have been processed, those from `filled` on are free space.
    input: Vec<u8>,
    at: usize,
    filled: usize,
    made_in: Generation,
}

farcall_verbs::opaque_debug!(Client);

const INPUT_BYTES: usize = 64 << 10;

impl Client {
    /// Connects over TCP without Nagle's algorithm.
    ///
    /// # Errors
    /// Returns any error of the system.
    pub fn connect_tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self::with_stream(stream))
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// Returns any error of the system.
    pub fn connect_unix(path: &Path) -> io::Result<Self> {
        Ok(Self::with_stream(OwnedFd::from(UnixStream::connect(path)?).into()))
    }

    /// Like [`Client::connect_tcp`] with a timeout, which also bounds every later wait for the server (see
    /// [`Client::set_timeout`]).
    ///
    /// # Errors
    /// Returns any error of the system; [`io::ErrorKind::TimedOut`] if the connection was not accepted in time. A zero
    /// duration is refused.
    pub fn connect_tcp_within(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream =
            TcpStream::connect_timeout(&address, timeout).map_err(|error| timeout_error(error, timeout))?;
        stream.set_nodelay(true)?;
        let client = Self::with_stream(stream);
        client.set_timeout(Some(timeout))?;
        Ok(client)
    }

    /// Like [`Client::connect_unix`] with a timeout, which also bounds every later wait for the server (see
    /// [`Client::set_timeout`]).
    ///
    /// # Errors
    /// Like [`Client::connect_tcp_within`].
    pub fn connect_unix_within(path: &Path, timeout: Duration) -> io::Result<Self> {
        let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let client = Self::with_stream(stream.into());
        // Set before connecting, because it also bounds the wait for a slot in the backlog.
        client.set_timeout(Some(timeout))?;
        connect(&client, &SocketAddrUnix::new(path)?)
            .map_err(|error| timeout_error(error.into(), timeout))?;
        Ok(client)
    }

    fn with_stream(stream: TcpStream) -> Self {
        let (input, made_in) = (vec![0; INPUT_BYTES], Generation::current());
        Client { stream, out: Vec::new(), input, at: 0, filled: 0, made_in }
    }

    /// Bounds every wait for the server (`None`: without limit). After a timeout, calls fail with
    /// [`ClientError::NoAnswer`], and the connection should be dropped.
    ///
    /// # Errors
    /// Returns any error of the system; a zero duration is refused.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(timeout).and(self.stream.set_write_timeout(timeout))
    }

    /// Queues a `get`. [`Client::read_value`] reads its reply.
    ///
    /// # Errors
    /// If this protocol cannot carry the key.
    pub fn queue_get(&mut self, key: &[u8]) -> Result<(), ClientError> {
        self.queue(&[b"get ", check(key)?]);
        Ok(())
    }

    /// Queues a storage command (`set`, `add`, `replace`, `append`, `prepend`). [`Client::read_stored`] reads its
    /// reply. `exptime` is in seconds; 0: never.
    ///
    /// # Errors
    /// If this protocol cannot carry the key.
    pub fn queue_store(
        &mut self,
        verb: &str,
        key: &[u8],
        value: &[u8],
        flags: u32,
        exptime: u32,
    ) -> Result<(), ClientError> {
        for part in [verb.as_bytes(), b" ", check(key)?] {
            self.out.extend_from_slice(part);
        }
        for number in [u64::from(flags), u64::from(exptime), value.len() as u64] {
            self.out.push(b' ');
            push_number(&mut self.out, number);
        }
        self.queue(&[b"\r\n", value]);
        Ok(())
    }

    /// Queues a `delete`. [`Client::read_found`] reads its reply.
    ///
    /// # Errors
    /// If this protocol cannot carry the key.
    pub fn queue_delete(&mut self, key: &[u8]) -> Result<(), ClientError> {
        self.queue(&[b"delete ", check(key)?]);
        Ok(())
    }

    /// Sends all queued requests.
    ///
    /// # Errors
    /// [`ClientError::Io`], [`ClientError::NoAnswer`], [`ClientError::Forked`].
    pub fn flush(&mut self) -> Result<(), ClientError> {
        if self.made_in.is_inherited() {
            return Err(ClientError::Forked);
        }
        let sent = self.stream.write_all(&self.out);
        self.out.clear();
        sent.map_err(|error| self.failed(error))
    }

    /// Reads the reply to a [`Client::queue_get`]: the value, borrowed until the next call, or `None`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn read_value(&mut self) -> Result<Option<Value<'_>>, ClientError> {
        let line = self.read_line()?;
        let text = &self.input[line.clone()];
        if text == b"END" {
            return Ok(None);
        }
        let Some(rest) = text.strip_prefix(b"VALUE ") else { return Err(unexpected(text)) };
        let mut fields = rest.split(|&byte| byte == b' ').skip(1);
        let mut field = || fields.next().and_then(number);
        let (Some(flags), Some(len)) = (field().and_then(|flags| u32::try_from(flags).ok()), field()) else {
            return Err(unexpected(text));
        };
        let len = usize::try_from(len).map_err(|_| unexpected(text))?;
        const TRAILER: &[u8] = b"\r\nEND\r\n";
        let whole = self.read_exact(len + TRAILER.len())?;
        let (bytes, trailer) = self.input[whole].split_at(len);
        if trailer != TRAILER {
            return Err(unexpected(trailer));
        }
        Ok(Some(Value { bytes, flags }))
    }

    /// Reads the reply to a storage command. Returns whether the value was stored.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn read_stored(&mut self) -> Result<bool, ClientError> {
        let line = self.read_line()?;
        match &self.input[line] {
            b"STORED" => Ok(true),
            b"NOT_STORED" | b"EXISTS" | b"NOT_FOUND" => Ok(false),
            text => Err(unexpected(text)),
        }
    }

    /// Reads the reply to a `delete`. Returns whether the key had an item.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn read_found(&mut self) -> Result<bool, ClientError> {
        let line = self.read_line()?;
        match &self.input[line] {
            b"DELETED" => Ok(true),
            b"NOT_FOUND" => Ok(false),
            text => Err(unexpected(text)),
        }
    }

    /// Returns the value of `key`, borrowed until the next call.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value<'_>>, ClientError> {
        self.queue_get(key)?;
        self.flush()?;
        self.read_value()
    }

    /// Stores a value without expiration.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        self.queue_store("set", key, value, 0, 0)?;
        self.flush()?;
        self.read_stored()?;
        Ok(())
    }

    /// Removes a key. Returns whether it had an item.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, ClientError> {
        self.queue_delete(key)?;
        self.flush()?;
        self.read_found()
    }

    /// Returns the server's statistics by name.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn stats(&mut self) -> Result<Vec<(String, String)>, ClientError> {
        self.queue(&[b"stats"]);
        self.flush()?;
        let mut stats = Vec::new();
        loop {
            let line = self.read_line()?;
            let text = &self.input[line];
            if text == b"END" {
                return Ok(stats);
            }
            let readable = String::from_utf8_lossy(text);
            let mut fields = readable.splitn(3, ' ');
            match (fields.next(), fields.next(), fields.next()) {
                (Some("STAT"), Some(name), Some(value)) => stats.push((name.to_owned(), value.to_owned())),
                _ => return Err(unexpected(text)),
            }
        }
    }

    /// Makes all items of the server unreachable.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn flush_all(&mut self) -> Result<(), ClientError> {
        self.queue(&[b"flush_all"]);
        self.flush()?;
        let line = self.read_line()?;
        match &self.input[line] {
            b"OK" => Ok(()),
            text => Err(unexpected(text)),
        }
    }

    fn queue(&mut self, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.out.extend_from_slice(part));
        self.out.extend_from_slice(b"\r\n");
    }

    /// Reads one line; returns it without its end, as a range of `input`.
    fn read_line(&mut self) -> Result<std::ops::Range<usize>, ClientError> {
        let mut searched = 0;
        loop {
            let unread = &self.input[self.at..self.filled];
            if let Some(found) = memchr::memchr(b'\n', &unread[searched..]) {
                let (start, end) = (self.at, self.at + searched + found);
                self.at = end + 1;
                let end = if end > start && self.input[end - 1] == b'\r' { end - 1 } else { end };
                return Ok(start..end);
            }
            searched = unread.len();
            self.fill(searched + 1)?;
        }
    }

    fn read_exact(&mut self, len: usize) -> Result<std::ops::Range<usize>, ClientError> {
        while self.filled - self.at < len {
            self.fill(len)?;
        }
        self.at += len;
        Ok(self.at - len..self.at)
    }

    /// Reads once, after providing space for at least `needed` unread bytes.
    fn fill(&mut self, needed: usize) -> Result<(), ClientError> {
        if self.made_in.is_inherited() {
            return Err(ClientError::Forked);
        }
        if self.at + needed > self.input.len() || self.at == self.filled {
            self.input.copy_within(self.at..self.filled, 0);
            (self.filled, self.at) = (self.filled - self.at, 0);
        }
        if needed > self.input.len() {
            self.input.resize(needed.next_multiple_of(INPUT_BYTES), 0);
        }
        let room = &mut self.input[self.filled..];
        match self.stream.read(room) {
            Ok(0) => Err(ClientError::Closed),
            Ok(bytes) => {
                self.filled += bytes;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Converts an error. The kernel reports a timeout by the same error as a non-blocking socket without data.
    fn failed(&self, error: io::Error) -> ClientError {
        match self.stream.read_timeout() {
            Ok(Some(within)) if error.kind() == ErrorKind::WouldBlock => ClientError::NoAnswer { within },
            _ => error.into(),
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Reports a connection that was not accepted in time by one kind of error, with the timeout.
fn timeout_error(error: io::Error, timeout: Duration) -> io::Error {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            io::Error::new(ErrorKind::TimedOut, format!("the connection was not accepted within {timeout:?}"))
        }
        _ => error,
    }
}

fn check(key: &[u8]) -> Result<&[u8], ClientError> {
    match key.len() {
        0 => return Err(KeyError::Empty.into()),
        1..=KEY_MAX_BYTES => {}
        len_bytes => return Err(KeyError::TooLong { len_bytes }.into()),
    }
    match key.iter().find(|&&byte| byte <= b' ' || byte == 0x7f) {
        Some(&byte) => Err(ClientError::KeyByte { byte }),
        None => Ok(key),
    }
}

fn unexpected(text: &[u8]) -> ClientError {
    let readable = String::from_utf8_lossy(text).into_owned();
    let refused =
        readable == "ERROR" || readable.starts_with("CLIENT_ERROR") || readable.starts_with("SERVER_ERROR");
    if refused { ClientError::Refused(readable) } else { ClientError::Unexpected(readable) }
}
