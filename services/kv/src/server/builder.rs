//! Configuration and start of a server.

use farcall_link::Nic;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;

use super::KvServer;
use crate::front_end::{FrontEndError, ListenError, Listener};
use crate::store::{Config, ConfigError};

/// Configuration of a server. Defaults: one thread, 64 MiB, values slightly below 1 MiB, no address.
#[derive(Clone, Debug)]
#[must_use]
pub struct KvServerBuilder {
    pub(super) partitions: u32,
    memory_bytes: usize,
    value_max_bytes: usize,
    evict: bool,
    tcp: Vec<SocketAddr>,
    unix: Vec<PathBuf>,
    inherited: Vec<Arc<OwnedFd>>,
    pub(super) rpc: Option<(SocketAddr, Nic)>,
    pub(super) connections_max: u64,
    buffers_bytes: Option<usize>,
}

/// Default minimum of the memory for connection buffers in bytes.
const BUFFERS_MIN_BYTES: usize = 64 << 20;

impl Default for KvServerBuilder {
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

impl KvServerBuilder {
    /// Sets the number of server threads, each with its own partition of the keys.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// Sets the memory of the complete store in bytes, index included.
    pub fn memory_bytes(mut self, memory_bytes: usize) -> Self {
        self.memory_bytes = memory_bytes;
        self
    }

    /// Sets the maximum length of a value in bytes.
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

    /// Listens for memcached clients on a Unix socket that only this user can use. May be called several times.
    pub fn unix(mut self, path: impl Into<PathBuf>) -> Self {
        self.unix.push(path.into());
        self
    }

    /// Serves memcached clients on a TCP or Unix socket that already listens, for example one opened by systemd. May
    /// be called several times.
    pub fn inherited(mut self, socket: OwnedFd) -> Self {
        self.inherited.push(Arc::new(socket));
        self
    }

    /// Listens for RPC clients on a TCP address, which carries only the handshake, and serves them with queue pairs
    /// of `nic`. Port 0 lets the system choose.
    pub fn rpc(mut self, address: SocketAddr, nic: &Nic) -> Self {
        self.rpc = Some((address, nic.clone()));
        self
    }

    /// Sets the maximum number of open memcached connections over all addresses.
    pub fn connections_max(mut self, connections_max: u64) -> Self {
        self.connections_max = connections_max;
        self
    }

    /// Sets the maximum memory for the buffers of memcached connections in bytes: incomplete commands and unsent
    /// replies. It is in addition to the memory of the store; each thread has an equal share. Above it, the connection
    /// with the largest buffers is closed. The default is the maximum of 64 MiB, an eighth of the store's memory, and
    /// four of the largest values per thread.
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
    /// If an address cannot be bound, the store does not fit its limit, or a thread cannot be started. Threads started
    /// before are stopped then.
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

    /// Checks that there is memory for the complete store, which is used up gradually.
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

/// The server could not start, or a thread has failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KvServerError {
    /// There is no address to which clients could connect.
    #[error("the server has no address: give it a TCP address, a Unix socket or an RPC address")]
    NoAddress,
    /// The number of partitions is zero.
    #[error("a server has at least one partition")]
    NoPartition,
    /// There are more threads than RPC clients can identify.
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
    #[error("cannot start a server thread (see the limits of processes and memory: ulimit -u, ulimit -v)")]
    Thread(#[source] std::io::Error),
    /// A thread panicked.
    #[error("a server thread panicked; its message is on standard error; this is a defect")]
    Panicked,
    /// A thread ended without a stop request.
    #[error("a server thread ended; its message is on standard error")]
    Ended,
}
