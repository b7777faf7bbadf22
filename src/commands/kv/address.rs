//! Addresses of key-value services: `tcp:HOST:PORT`, `unix:PATH` or `rpc:HOST:PORT`.

use crate::commands::nic_args::NicArgs;
use clap::Args;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Port of memcached, which most clients use.
pub const MEMCACHED_PORT: u16 = 11_211;
/// Default port for RPC clients of a service.
pub const RPC_PORT: u16 = 11_212;

/// The address and the protocol of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// The memcached protocol over TCP.
    Tcp(SocketAddr),
    /// The memcached protocol over a Unix socket.
    Unix(PathBuf),
    /// RPC over verbs; the address is the TCP address of the handshake.
    Rpc(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Rpc(address) => write!(f, "rpc:{address}"),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", address)) => resolve(address).map(Self::Tcp),
            Some(("rpc", address)) => resolve(address).map(Self::Rpc),
            _ => Err(format!("{text:?} is not an address; write tcp:HOST:PORT, unix:PATH or rpc:HOST:PORT")),
        }
    }
}

/// Returns the first address of `HOST:PORT`.
pub fn resolve(text: &str) -> Result<SocketAddr, String> {
    let mut found =
        text.to_socket_addrs().map_err(|error| format!("{text:?} is not a HOST:PORT: {error}"))?;
    found.next().ok_or_else(|| format!("{text:?} has no address"))
}

/// The option that names a service.
#[derive(Debug, Args)]
pub struct Server {
    /// Address of the service: tcp:HOST:PORT or unix:PATH for the memcached protocol, or rpc:HOST:PORT for RPC over RDMA
    /// verbs (the option --rpc of farcall kv serve).
    #[arg(long = "server", short = 's', value_name = "ADDRESS", default_value = "tcp:127.0.0.1:11211")]
    pub address: Address,
    /// Timeout of a reply in milliseconds.
    #[arg(long, default_value_t = 10_000, value_name = "MS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    timeout_ms: u64,
    #[command(flatten)]
    pub nic: NicArgs,
}

impl Server {
    /// Returns the time after which a service without a reply is considered unavailable.
    pub const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_addresses_and_explains_refusals() {
        for text in ["tcp:127.0.0.1:11211", "unix:/run/kv.sock", "tcp:[::1]:7", "rpc:127.0.0.1:11212"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "127.0.0.1:80", "tcp:nowhere", "unix:", "rpc:", "ftp:x"] {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
        assert!("kv".parse::<Address>().unwrap_err().contains("write tcp:HOST:PORT"));
    }
}
