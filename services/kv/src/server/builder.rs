//! How a server is described and started.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use farcall_verbs::Provider;
use thiserror::Error;

use super::KvServer;
use crate::front_end::{FrontEndError, ListenError, Listener};
use crate::store::{Config, ConfigError};

/// Describes a server: one thread, 64 MiB, values up to a little less than 1 MiB and no address, if nothing else is
/// said.
#[derive(Clone)]
#[must_use]
pub struct KvServerBuilder<'p> {
    pub(super) partitions: u32,
    memory_bytes: usize,
    value_max_bytes: usize,
    evict: bool,
    tcp: Vec<SocketAddr>,
    unix: Vec<PathBuf>,
    inherited: Vec<Arc<OwnedFd>>,
    pub(super) rpc: Option<(SocketAddr, &'p dyn Provider)>,
    pub(super) connections_max: u64,
    buffers_bytes: Option<usize>,
}

/// What buffers of connections may take at least, if nothing else is said.
const BUFFERS_MIN_BYTES: usize = 64 << 20;

impl Default for KvServerBuilder<'_> {
    fn default() -> Self {
        let store = Config::default();
        Self {
            partitions: 1,
            memory_bytes: store.limit_bytes,
            value_max_bytes: store.value_max_bytes,
            evict: true,
            tcp: Vec::new(),
            unix: Vec::new(),
            inherited: Vec::new(),
            rpc: None,
            connections_max: 4096,
            buffers_bytes: None,
        }
    }
}

impl<'p> KvServerBuilder<'p> {
    /// Server threads, each with its own part of the keys.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// Memory of the whole store in bytes, index included.
    pub fn memory_bytes(mut self, memory_bytes: usize) -> Self {
        self.memory_bytes = memory_bytes;
        self
    }

    /// The largest value, in bytes.
    pub fn value_max_bytes(mut self, value_max_bytes: usize) -> Self {
        self.value_max_bytes = value_max_bytes;
        self
    }

    /// Refuses writes when memory is full, instead of evicting old items.
    pub fn refuse_when_full(mut self) -> Self {
        self.evict = false;
        self
    }

    /// Listens for memcached clients on a TCP address; port 0 lets the system choose. May be called several times.
    pub fn tcp(mut self, address: SocketAddr) -> Self {
        self.tcp.push(address);
        self
    }

    /// Listens for memcached clients on a Unix socket, usable by this user alone. May be called several times.
    pub fn unix(mut self, path: impl Into<PathBuf>) -> Self {
        self.unix.push(path.into());
        self
    }

    /// Serves memcached clients on a TCP or Unix socket that listens already, such as one that systemd opened. May be
    /// called several times.
    pub fn inherited(mut self, socket: OwnedFd) -> Self {
        self.inherited.push(Arc::new(socket));
        self
    }

    /// Listens for RPC clients on a TCP address, which carries the handshake only, and serves them with the verbs of
    /// `provider`. Port 0 lets the system choose.
    pub fn rpc(mut self, address: SocketAddr, provider: &'p dyn Provider) -> Self {
        self.rpc = Some((address, provider));
        self
    }

    /// Memcached connections open at a time, over all addresses.
    pub fn connections_max(mut self, connections_max: u64) -> Self {
        self.connections_max = connections_max;
        self
    }

    /// Memory of the buffers of memcached connections, in bytes: commands that came in part, replies that were not
    /// taken. It comes on top of the store's; each thread has an equal share. Above it, the connection that holds most
    /// is closed. By default 64 MiB, or an eighth of the store's memory or four of the largest values for each thread
    /// if that is more.
    pub fn buffers_bytes(mut self, buffers_bytes: usize) -> Self {
        self.buffers_bytes = Some(buffers_bytes);
        self
    }

    pub(super) fn buffers_max_bytes(&self) -> usize {
        let values_bytes = self.value_max_bytes.saturating_mul(4).saturating_mul(self.partitions as usize);
        let usual_bytes = BUFFERS_MIN_BYTES.max(self.memory_bytes / 8).max(values_bytes);
        self.buffers_bytes.unwrap_or(usual_bytes)
    }

    /// Binds every address, then starts the threads.
    ///
    /// # Errors
    /// When an address cannot be bound, the store does not fit its limit, or a thread cannot be started. Nothing is
    /// left running then.
    pub fn start(self) -> Result<KvServer, KvServerError> {
        let has_sockets = !(self.tcp.is_empty() && self.unix.is_empty() && self.inherited.is_empty());
        if !has_sockets && self.rpc.is_none() {
            return Err(KvServerError::NoAddress);
        }
        if self.partitions == 0 {
            return Err(KvServerError::NoPartition);
        }
        if self.partitions > u32::from(u16::MAX) {
            return Err(KvServerError::TooManyPartitions(self.partitions));
        }
        KvServer::start(self)
    }

    pub(super) fn listen(&self) -> Result<Vec<Listener>, ListenError> {
        let tcp = self.tcp.iter().map(|address| Listener::tcp(*address));
        let inherited = self.inherited.iter().map(|socket| {
            let failed = |source| ListenError::Bind { address: "an inherited socket".to_owned(), source };
            Listener::inherited(socket.try_clone().map_err(failed)?)
        });
        tcp.chain(self.unix.iter().map(|path| Listener::unix(path))).chain(inherited).collect()
    }

    /// Whether there is memory for the whole store, which takes it bit by bit.
    pub(super) fn check_memory(&self) -> Result<(), ConfigError> {
        let bytes = self.memory_bytes;
        let checked = farcall_shm::require_memory(bytes as u64);
        checked.map_err(|source| ConfigError::Map { bytes, source: source.into() })
    }

    pub(super) fn partition_config(&self, partition: u32) -> Config {
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

/// A server could not start, or ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KvServerError {
    /// Nobody could reach it.
    #[error("the server has no address: give it a TCP address, a Unix socket or an RPC address")]
    NoAddress,
    /// No threads.
    #[error("a server has at least one partition")]
    NoPartition,
    /// More threads than RPC clients can name.
    #[error("{0} partitions; a server has at most 65535")]
    TooManyPartitions(u32),
    /// RPC cannot be served.
    #[error(transparent)]
    Rpc(#[from] farcall_rpc::ServerError),
    /// An address for memcached clients cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Waiting for memcached clients failed.
    #[error(transparent)]
    FrontEnd(#[from] FrontEndError),
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
