//! Stores of other projects, run as programs of this host: memcached and Redis. Each runs with one thread and in
//! memory only, as the store of Farcall does.

use crate::experiments::ready::Ready;
use serde::{Deserialize, Serialize};
use std::process::Command;

/// A store that is a separate program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForeignStore {
    /// memcached, accessed by its text protocol.
    Memcached,
    /// Redis, accessed by RESP2.
    Redis,
}

names! { ForeignStore { Memcached => "memcached", Redis => "redis" } }

/// Kind of socket over which clients reach the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Socket {
    /// Loopback TCP.
    Tcp,
    /// A Unix stream socket.
    Unix,
}

names! { Socket { Tcp => "TCP", Unix => "Unix socket" } }

impl ForeignStore {
    /// Returns the name of the server program, which is also the name of Debian's package.
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Redis => "redis-server",
        }
    }

    /// Returns the version line that the program prints.
    pub fn version(self) -> String {
        let output = Command::new(self.program()).arg("--version").output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        text.unwrap_or_else(|error| format!("unknown: {error}"))
    }

    /// Returns the arguments that start the server at the addresses in `at`.
    pub(crate) fn args(self, at: &Ready, memory_bytes: u64) -> Vec<String> {
        let host_and_port = at.tcp.first().and_then(|address| address.rsplit_once(':'));
        let path = at.unix.first().map(|path| path.to_string_lossy().into_owned());
        let mut args: Vec<&str> = Vec::new();
        let memory_mib = memory_bytes.div_ceil(1 << 20).to_string();
        match self {
            Self::Memcached => {
                args.extend(["-t", "1", "-m", &memory_mib]);
                if let Some((host, port)) = host_and_port {
                    args.extend(["-l", host, "-p", port, "-U", "0"]);
                }
                if let Some(path) = &path {
                    args.extend(["-s", path, "-a", "600"]);
                }
                if rustix::process::geteuid().is_root() {
                    args.extend(["-u", "root"]);
                }
            }
            Self::Redis => {
                args.extend([
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--io-threads",
                    "1",
                    "--loglevel",
                    "warning",
                ]);
                match host_and_port {
                    Some((host, port)) => args.extend(["--bind", host, "--port", port]),
                    None => args.extend(["--port", "0"]),
                }
                if let Some(path) = &path {
                    args.extend(["--unixsocket", path, "--unixsocketperm", "600"]);
                }
            }
        }
        args.into_iter().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configures_each_store_for_its_address_without_persistence() {
        let tcp = Ready { tcp: vec!["127.0.0.1:4711".to_owned()], ..Ready::default() };
        let unix = Ready { unix: vec!["/tmp/s".into()], ..Ready::default() };
        let args = |store: ForeignStore, at| format!("{} ", store.args(at, 5 << 20).join(" "));
        let memcached = args(ForeignStore::Memcached, &tcp);
        assert!(memcached.starts_with("-t 1 -m 5 -l 127.0.0.1 -p 4711 -U 0 "), "{memcached}");
        assert!(args(ForeignStore::Memcached, &unix).contains("-s /tmp/s -a 600 "));
        let redis = args(ForeignStore::Redis, &tcp);
        assert!(
            redis.contains("--save  --appendonly no ") && redis.contains("--bind 127.0.0.1 --port 4711 ")
        );
        assert!(
            args(ForeignStore::Redis, &unix).contains("--port 0 --unixsocket /tmp/s --unixsocketperm 600 ")
        );
    }
}
