//! What a server is made of.

use farcall_kv::door::{DoorError, ListenError, Listener};
use farcall_kv::store::{Config, ConfigError};
use farcall_providers::Selection;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Threads, memory and doors of a server.
#[derive(Debug, Clone)]
pub struct KvServerConfig {
    /// Server threads, each with its own part of the keys.
    pub partitions: u32,
    /// Memory of the whole store, index included.
    pub memory_bytes: usize,
    /// Largest value.
    pub value_max_bytes: usize,
    /// Whether old items give way when memory is full; otherwise writes are refused then.
    pub evict: bool,
    /// Addresses of memcached doors; port 0 lets the system choose.
    pub tcp: Vec<SocketAddr>,
    /// Paths of memcached doors.
    pub unix: Vec<PathBuf>,
    /// Address where RPC clients connect; port 0 lets the system choose. Clients choose the partition by the key.
    pub rpc: Option<SocketAddr>,
    /// Whose verbs RPC is served on.
    pub nic: Selection,
    /// Connections open at a time, over all memcached doors.
    pub connections_max: u64,
}

impl Default for KvServerConfig {
    /// One thread, 64 MiB, values to 1 MiB, no door.
    fn default() -> Self {
        let store = Config::default();
        Self {
            partitions: 1,
            memory_bytes: store.limit_bytes,
            value_max_bytes: store.value_max_bytes,
            evict: true,
            tcp: Vec::new(),
            unix: Vec::new(),
            rpc: None,
            nic: Selection::default(),
            connections_max: 4096,
        }
    }
}

/// A server could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum KvServerError {
    /// Nobody could reach it.
    #[error("the server has no door: give it a TCP address, a Unix socket or an RPC address")]
    NoDoor,
    /// No threads.
    #[error("a server has at least one partition")]
    NoPartition,
    /// More threads than RPC clients can name.
    #[error("{0} partitions; a server has at most 65535")]
    TooManyPartitions(u32),
    /// The provider that RPC should be served on cannot be used.
    #[error(transparent)]
    Provider(#[from] farcall_verbs::Error),
    /// RPC cannot be served.
    #[error(transparent)]
    Rpc(#[from] farcall_rpc::ServerError),
    /// A door cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A door failed.
    #[error(transparent)]
    Door(#[from] DoorError),
    /// The store's sizes contradict each other.
    #[error(transparent)]
    Store(#[from] ConfigError),
    /// A thread could not be started.
    #[error(
        "cannot start a server thread: {0}; see the limits of processes and memory (ulimit -u, ulimit -v)"
    )]
    Thread(#[source] std::io::Error),
    /// A thread panicked.
    #[error("a server thread panicked; its message is on standard error; this is a defect")]
    Panicked,
    /// A thread ended by itself.
    #[error("a server thread ended; its message is on standard error")]
    Ended,
}

impl KvServerConfig {
    pub(super) fn check(&self) -> Result<(), KvServerError> {
        if self.tcp.is_empty() && self.unix.is_empty() && self.rpc.is_none() {
            return Err(KvServerError::NoDoor);
        }
        if self.partitions == 0 {
            return Err(KvServerError::NoPartition);
        }
        if self.partitions > u32::from(u16::MAX) {
            return Err(KvServerError::TooManyPartitions(self.partitions));
        }
        Ok(())
    }

    pub(super) fn listen(&self) -> Result<Vec<Listener>, ListenError> {
        let tcp = self.tcp.iter().map(|address| Listener::tcp(*address));
        tcp.chain(self.unix.iter().map(|path| Listener::unix(path))).collect()
    }

    pub(super) fn partition(&self, partition: u32) -> Config {
        Config {
            limit_bytes: self.memory_bytes / self.partitions as usize,
            value_max_bytes: self.value_max_bytes,
            evict: self.evict,
            partition,
            partitions: self.partitions,
            ..Config::default()
        }
    }
}
