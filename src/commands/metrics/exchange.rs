//! One client of `--metrics`: a request, a reply, the end of the connection; each step as far as it does not block.

use rustix::event::PollFlags;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

/// Maximum length of a request in bytes: a line and some headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;

pub(super) struct Exchange {
    socket: TcpStream,
    state: State,
}

enum State {
    /// Reads the request.
    Request(Vec<u8>),
    /// Writes the reply; `sent` bytes of it are written.
    Reply { bytes: Vec<u8>, sent: usize },
    /// Waits for the client to close: a socket that is closed with unread bytes resets the connection, and the client
    /// may lose the end of the reply.
    Closing,
}

/// Result of a step of an exchange.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for the client.
    Waits,
    /// The client has its reply.
    Replied,
    /// The client disconnected or sent no request.
    Failed,
}

impl Exchange {
    pub(super) fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, state: State::Request(Vec::new()) })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The events that it waits for.
    pub(super) fn awaited(&self) -> PollFlags {
        match self.state {
            State::Request(_) | State::Closing => PollFlags::IN,
            State::Reply { .. } => PollFlags::OUT,
        }
    }

    /// Returns whether the reply is written.
    pub(super) fn has_replied(&self) -> bool {
        matches!(self.state, State::Closing)
    }

    /// Reads or writes what is possible now. `reply` returns the status and the body for a method and a path.
    pub(super) fn proceed(&mut self, reply: impl Fn(&str, &str) -> (&'static str, String)) -> Progress {
        match self.advance(reply) {
            Ok(()) if self.has_replied() => Progress::Replied,
            Ok(()) => Progress::Failed,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Progress::Waits,
            Err(_) if self.has_replied() => Progress::Replied,
            Err(_) => Progress::Failed,
        }
    }

    /// Ends when the connection has ended, or with [`ErrorKind::WouldBlock`].
    fn advance(&mut self, reply: impl Fn(&str, &str) -> (&'static str, String)) -> io::Result<()> {
        let mut part = [0; 1024];
        loop {
            match &mut self.state {
                State::Request(request) => {
                    let end = loop {
                        if let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
                            break end;
                        }
                        if request.len() >= REQUEST_BYTES_MAX {
                            return Ok(());
                        }
                        match read(&mut self.socket, &mut part)? {
                            0 => return Ok(()),
                            got => request.extend_from_slice(&part[..got]),
                        }
                    };
                    let bytes = respond(&String::from_utf8_lossy(&request[..end]), &reply);
                    self.state = State::Reply { bytes, sent: 0 };
                }
                State::Reply { bytes, sent } => {
                    while *sent < bytes.len() {
                        match self.socket.write(&bytes[*sent..]) {
                            Ok(0) => return Ok(()),
                            Ok(written) => *sent += written,
                            Err(error) if error.kind() == ErrorKind::Interrupted => {}
                            Err(error) => return Err(error),
                        }
                    }
                    self.socket.shutdown(Shutdown::Write)?;
                    self.state = State::Closing;
                }
                State::Closing => {
                    if read(&mut self.socket, &mut part)? == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }
}

fn read(socket: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.read(into) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn respond(request: &str, reply: impl Fn(&str, &str) -> (&'static str, String)) -> Vec<u8> {
    let mut words = request.split([' ', '?', '\r']);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, body) = reply(method, path);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let body = if method == "HEAD" { "" } else { &body };
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, Exchange) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, Exchange::new(listener.accept().unwrap().0).unwrap())
    }

    fn until_not_waiting(exchange: &mut Exchange) -> Progress {
        loop {
            match exchange.proceed(|method, path| ("200 OK", format!("{method} of {path}\n"))) {
                Progress::Waits => std::thread::yield_now(),
                ended => return ended,
            }
        }
    }

    #[test]
    fn replies_to_a_request_in_pieces_and_closes() {
        let (mut client, mut exchange) = pair();
        for piece in ["GET /met", "rics?x=1 HTTP/1.1\r\nHost: x\r", "\n\r\nmore"] {
            assert_eq!(exchange.proceed(|_, _| unreachable!("no request")), Progress::Waits);
            client.write_all(piece.as_bytes()).unwrap();
        }
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(until_not_waiting(&mut exchange), Progress::Replied);
        drop(exchange);
        let mut received = String::new();
        client.read_to_string(&mut received).unwrap();
        assert!(
            received.starts_with("HTTP/1.1 200 OK\r\n") && received.ends_with("\r\n\r\nGET of /metrics\n"),
            "{received}"
        );
        assert!(received.contains("Content-Length: 16\r\n"), "{received}");
    }

    #[test]
    fn ends_on_an_endless_request_or_a_disconnect() {
        let (mut client, mut exchange) = pair();
        client.write_all(&[b'x'; REQUEST_BYTES_MAX]).unwrap();
        assert_eq!(until_not_waiting(&mut exchange), Progress::Failed);
        let (client, mut exchange) = pair();
        drop(client);
        assert_eq!(until_not_waiting(&mut exchange), Progress::Failed);
    }
}
