//! A memcached front end as a target: behaves like a blocking client that pipelines up to the window.

use super::rpc::Traffic;
use super::target::{Outcome, Request, Target, TargetError};
use farcall_kv::memcached::client::{Client, ClientError};
use farcall_verbs::with_sources;
use std::collections::VecDeque;

/// A connection to a memcached front end. Requests are sent together by one write, and then all their replies are
/// awaited, as pipelining clients do. A window therefore costs each side one wake-up.
pub struct MemcachedTarget {
    client: Client,
    /// Requests in the order of their replies: slot, and whether the request is a read.
    outstanding: VecDeque<(u32, bool)>,
    exchanges: u64,
}

impl MemcachedTarget {
    /// Creates a target that uses `client`.
    pub fn new(client: Client) -> Self {
        Self { client, outstanding: VecDeque::new(), exchanges: 0 }
    }

    /// Returns the traffic so far: the number of times that requests were sent together and awaited.
    pub fn traffic(&self) -> Traffic {
        Traffic { verbs: self.exchanges, empty_reads: 0 }
    }
}

impl Target for MemcachedTarget {
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError> {
        let (queued, is_read) = match request {
            Request::Get { key } => (self.client.queue_get(key), true),
            Request::Put { key, value } => (self.client.queue_store("set", key, value, 0, 0), false),
        };
        queued.map_err(|error| broken(&error))?;
        self.outstanding.push_back((slot, is_read));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TargetError> {
        if self.outstanding.is_empty() {
            return Ok(());
        }
        self.exchanges += 1;
        self.client.flush().map_err(|error| broken(&error))
    }

    fn poll(&mut self, mut done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
        while let Some((slot, is_read)) = self.outstanding.pop_front() {
            if is_read {
                match self.client.read_value() {
                    Ok(Some(value)) => done(slot, Outcome::Value(value.bytes)),
                    Ok(None) => done(slot, Outcome::Absent),
                    Err(ClientError::Refused(_)) => done(slot, Outcome::Refused),
                    Err(error) => return Err(self.lose(&error)),
                }
            } else {
                match self.client.read_stored() {
                    Ok(true) => done(slot, Outcome::Stored),
                    Ok(false) | Err(ClientError::Refused(_)) => done(slot, Outcome::Refused),
                    Err(error) => return Err(self.lose(&error)),
                }
            }
        }
        Ok(())
    }
}

impl MemcachedTarget {
    fn lose(&mut self, error: &ClientError) -> TargetError {
        self.outstanding.clear();
        broken(error)
    }
}

fn broken(error: &ClientError) -> TargetError {
    match error {
        ClientError::Io(_) | ClientError::Closed => TargetError::Lost(with_sources(&error)),
        _ => TargetError::Protocol(with_sources(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    /// Starts a service that expects one fixed request, sends one reply and closes the connection.
    fn converse(
        name: &str,
        expected: &'static [u8],
        reply: &'static [u8],
    ) -> (MemcachedTarget, thread::JoinHandle<()>) {
        let path = std::env::temp_dir().join(format!("farcall-bench-{}-{name}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let target = MemcachedTarget::new(Client::connect_unix(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let service = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; expected.len()];
            stream.read_exact(&mut request).unwrap();
            assert_eq!(request, expected);
            for piece in reply.chunks(4) {
                stream.write_all(piece).unwrap();
            }
        });
        (target, service)
    }

    #[test]
    fn a_window_is_sent_at_once_and_answered_in_order() {
        let (mut target, service) = converse(
            "order",
            b"get a\r\nset b 0 0 2\r\nhi\r\nget c\r\n",
            b"VALUE a 0 3\r\nxyz\r\nEND\r\nSERVER_ERROR out of memory\r\nEND\r\n",
        );
        target.submit(7, Request::Get { key: b"a" }).unwrap();
        target.submit(2, Request::Put { key: b"b", value: b"hi" }).unwrap();
        target.submit(5, Request::Get { key: b"c" }).unwrap();
        let mut seen = Vec::new();
        target.flush().unwrap();
        target.poll(|slot, outcome| seen.push((slot, format!("{outcome:?}")))).unwrap();
        service.join().unwrap();
        let names: Vec<_> = seen.iter().map(|(slot, outcome)| (*slot, outcome.as_str())).collect();
        assert_eq!(names, [(7, "Value([120, 121, 122])"), (2, "Refused"), (5, "Absent")]);
        target.submit(0, Request::Get { key: b"a" }).unwrap();
        let result = target.flush().and_then(|()| target.poll(|_, _| {}));
        assert!(matches!(result, Err(TargetError::Lost(_))));
    }

    #[test]
    fn garbage_is_a_protocol_error() {
        let (mut target, service) = converse("garbage", b"get a\r\n", b"HELLO\r\n");
        target.submit(0, Request::Get { key: b"a" }).unwrap();
        target.flush().unwrap();
        assert!(matches!(target.poll(|_, _| {}), Err(TargetError::Protocol(_))));
        service.join().unwrap();
    }
}
