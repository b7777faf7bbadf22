//! A client of one front end, which reports what is known about the outcome of every operation.

use std::path::Path;
use std::time::Duration;

use farcall::Nic;
use farcall::kv::{Change, KvClient, KvError, MemcachedClient, MemcachedError, Write};
use farcall::rpc::{ClientOptions, Executed};
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Longer than the server is stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The front ends of a server.
#[derive(Clone)]
pub enum Door {
    Tcp(String),
    Unix(String),
    Rpc(String),
}

/// Outcome of an operation.
#[derive(Debug)]
pub enum Outcome<T> {
    /// It was executed with this result.
    Known(T),
    /// It was not executed and will not be.
    Nothing,
    /// It may have been executed, or may be executed later.
    Unknown,
}

/// A value and, if the protocol provides it, its version.
pub type Item = (Vec<u8>, Option<u64>);

enum Connection {
    Memcached(MemcachedClient),
    Rpc(Box<KvClient>),
}

/// Reconnects after every failure.
pub struct Client {
    door: Door,
    connection: Option<Connection>,
}

impl Client {
    pub fn new(door: Door) -> Self {
        Self { door, connection: None }
    }

    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    fn connected(&mut self) -> Option<&mut Connection> {
        if self.connection.is_none() {
            self.connection = connect(&self.door);
        }
        self.connection.as_mut()
    }

    /// Executes an operation on the connection, which is closed after an unknown outcome.
    fn with<T>(&mut self, operation: impl FnOnce(&mut Connection) -> Outcome<T>) -> Outcome<T> {
        let Some(connection) = self.connected() else {
            std::thread::sleep(Duration::from_millis(10));
            return Outcome::Nothing;
        };
        let outcome = operation(connection);
        if !matches!(outcome, Outcome::Known(_)) {
            self.connection = None;
        }
        outcome
    }

    pub fn get(&mut self, key: &[u8]) -> Outcome<Option<Item>> {
        self.with(|connection| match connection {
            Connection::Memcached(client) => {
                of_memcached(client.get(key).map(|value| value.map(|value| (value.bytes.to_vec(), None))))
            }
            Connection::Rpc(client) => {
                of_rpc(client.get(key).map(|item| item.map(|item| (item.value.to_vec(), Some(item.cas)))))
            }
        })
    }

    /// Stores a value. Only RPC supports a time to live below one second.
    pub fn set(&mut self, key: &[u8], value: &[u8], time_to_live: Duration) -> Outcome<()> {
        self.with(|connection| match connection {
            Connection::Memcached(client) => {
                let stored = client
                    .queue_store("set", key, value, 0, time_to_live.as_secs() as u32)
                    .and_then(|()| client.flush())
                    .and_then(|()| client.read_stored());
                of_memcached(stored.map(|stored| assert!(stored, "a SET has no condition")))
            }
            Connection::Rpc(client) => {
                of_rpc(client.put(key, Write::of(value).time_to_live(time_to_live)).map(|_| ()))
            }
        })
    }

    /// Deletes a key. Returns whether it existed.
    pub fn delete(&mut self, key: &[u8]) -> Outcome<bool> {
        self.with(|connection| match connection {
            Connection::Memcached(client) => of_memcached(client.delete(key)),
            Connection::Rpc(client) => {
                of_rpc(client.delete(key, None).map(|change| matches!(change, Change::Done { .. })))
            }
        })
    }

    /// Compares the version and stores a value; supported over RPC only.
    pub fn compare_and_swap(&mut self, key: &[u8], version: u64, value: &[u8]) -> Outcome<Change> {
        self.with(|connection| match connection {
            Connection::Memcached(_) => panic!("this client has no cas"),
            Connection::Rpc(client) => of_rpc(client.compare_and_swap(key, version, Write::of(value))),
        })
    }
}

fn connect(door: &Door) -> Option<Connection> {
    let memcached = match door {
        Door::Tcp(address) => MemcachedClient::connect_tcp(address.parse().expect("an address")),
        Door::Unix(path) => MemcachedClient::connect_unix(Path::new(path)),
        Door::Rpc(address) => {
            let options = ClientOptions::default()
                .connect_timeout(ANSWER_TIMEOUT)
                .call_timeout(ANSWER_TIMEOUT)
                .reconnect(false)
                .probe(false);
            let client = KvClient::connect(&nic(), address, &options).ok()?;
            return Some(Connection::Rpc(Box::new(client)));
        }
    };
    let client = memcached.ok()?;
    client.set_timeout(Some(ANSWER_TIMEOUT)).expect("a socket has timeouts");
    Some(Connection::Memcached(client))
}

fn of_memcached<T>(result: Result<T, MemcachedError>) -> Outcome<T> {
    match result {
        Ok(value) => Outcome::Known(value),
        Err(MemcachedError::Io(_) | MemcachedError::NoAnswer { .. } | MemcachedError::Closed) => {
            Outcome::Unknown
        }
        // The store is temporarily full.
        Err(MemcachedError::Refused(_)) => Outcome::Nothing,
        Err(error) => panic!("{error}"),
    }
}

fn of_rpc<T>(result: Result<T, KvError>) -> Outcome<T> {
    match result {
        Ok(value) => Outcome::Known(value),
        Err(error) => match error.executed() {
            Executed::No => Outcome::Nothing,
            Executed::Unknown => Outcome::Unknown,
            Executed::Yes => panic!("executed, and no result: {error}"),
        },
    }
}
