//! A node in the directory.

use std::net::SocketAddr;
use std::time::Duration;

use super::directory::Directory;
use super::etcd::{Etcd, EtcdError, Lease};
use super::record::Record;
use super::rounds::Rounds;

/// For so long a node is found that has died.
const TERM: Duration = Duration::from_secs(10);
const KEEP_PERIOD: Duration = Duration::from_secs(3);

/// A node is found by others until this is dropped. While etcd is away the node serves on, and registers again when it
/// is back.
pub struct Registration {
    _rounds: Rounds,
}

impl Registration {
    /// Registers a node by the address that others reach it at.
    ///
    /// # Errors
    /// If etcd does not answer, or refuses, or the system gives no thread.
    pub fn start(directory: &Directory, address: SocketAddr) -> Result<Self, EtcdError> {
        let (etcd, key) = (directory.etcd(), directory.node_key(address));
        let mut registered = Registered { etcd, key, lease: None, is_away: false };
        registered.register()?;
        let rounds = Rounds::start("etcd-registration", KEEP_PERIOD, move || registered.turn());
        let rounds = rounds.map_err(|error| EtcdError::Away(format!("no thread to ask it: {error}")))?;
        Ok(Self { _rounds: rounds })
    }
}

struct Registered {
    etcd: Etcd,
    key: String,
    lease: Option<Lease>,
    is_away: bool,
}

impl Registered {
    fn register(&mut self) -> Result<(), EtcdError> {
        let lease = self.etcd.grant(TERM)?;
        self.etcd.put(&self.key, &Record::new(Vec::new()).to_bytes(), Some(&lease))?;
        self.lease = Some(lease);
        Ok(())
    }

    /// Keeps the lease alive, and takes another one if it is over.
    fn renew(&mut self) -> Result<(), EtcdError> {
        match &self.lease {
            Some(lease) if self.etcd.keep_alive(lease)? => Ok(()),
            _ => self.register(),
        }
    }

    fn turn(&mut self) {
        let renewed = self.renew();
        match &renewed {
            Ok(()) if self.is_away => tracing::info!(key = self.key, "etcd is back: this node is registered"),
            Err(error) if !self.is_away => {
                tracing::warn!(key = self.key, "this node cannot be found by new clients: {error}");
            }
            _ => {}
        }
        self.is_away = renewed.is_err();
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(lease) = &self.lease
            && let Err(error) = self.etcd.revoke(lease)
        {
            tracing::warn!(key = self.key, "this node is found until its lease ends: {error}");
        }
    }
}
