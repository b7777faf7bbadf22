//! The ways to the store.

use super::super::server::Ready;
use crate::load::{MemcachedTarget, Outcome, Request, Target, TargetError};
use farcall_kv::memcached::client::Client;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A service that does not answer for so long is dead.
const PATIENCE: Duration = Duration::from_secs(5);

/// A way to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Door {
    /// The memcached protocol over loopback TCP.
    Tcp,
    /// The memcached protocol over a Unix stream socket.
    Unix,
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Unix => "Unix socket",
        })
    }
}

impl Door {
    /// All of them, the slowest first.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Unix];

    /// The arguments that start a server with this door only; `again` is where an earlier one served.
    #[must_use]
    pub fn serve_args(self, again: Option<&Ready>) -> Vec<String> {
        let mut args = vec!["--json".to_owned(), "kv".to_owned(), "serve".to_owned()];
        let address = |known: Option<&String>| known.cloned().unwrap_or_else(|| "127.0.0.1:0".to_owned());
        match self {
            Self::Tcp => {
                args.extend(["--tcp".to_owned(), address(again.and_then(|ready| ready.tcp.first()))])
            }
            Self::Unix => {
                let known = again.and_then(|ready| ready.unix.first()).cloned();
                let path = known.unwrap_or_else(private_socket);
                args.extend(["--unix".to_owned(), path.to_string_lossy().into_owned()]);
            }
        }
        args
    }

    /// Connects to a server of this door.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn connect(self, ready: &Ready) -> Result<DoorTarget, TargetError> {
        let lost = |error: &dyn fmt::Display| TargetError::Lost(error.to_string());
        let absent = || TargetError::Lost("the server does not serve this door".to_owned());
        let client = match self {
            Self::Tcp => {
                let address = ready.tcp.first().ok_or_else(absent)?;
                Client::connect_tcp(address.parse().map_err(|error: std::net::AddrParseError| lost(&error))?)
            }
            Self::Unix => Client::connect_unix(ready.unix.first().ok_or_else(absent)?),
        };
        let client = client.and_then(|client| client.set_timeout(Some(PATIENCE)).map(|()| client));
        Ok(DoorTarget::Memcached(Box::new(MemcachedTarget::new(client.map_err(|error| lost(&error))?))))
    }
}

/// A fresh path for a socket. The server makes it usable by this user alone, and removes it when it ends.
fn private_socket() -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("farcall-bench-{}-{number}.sock", std::process::id()))
}

/// A connection through any door.
pub enum DoorTarget {
    /// Over a stream socket.
    Memcached(Box<MemcachedTarget>),
}

impl DoorTarget {
    /// Operations on the wire that this end began so far: WRITEs and READs over RDMA, exchanges over sockets.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        match self {
            Self::Memcached(target) => target.exchanges(),
        }
    }
}

impl Target for DoorTarget {
    #[inline]
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError> {
        match self {
            Self::Memcached(target) => target.submit(slot, request),
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<(), TargetError> {
        match self {
            Self::Memcached(target) => target.flush(),
        }
    }

    #[inline]
    fn poll(&mut self, done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
        match self {
            Self::Memcached(target) => target.poll(done),
        }
    }
}
