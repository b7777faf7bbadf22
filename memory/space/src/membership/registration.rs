//! Registration of a node in the directory.

use std::net::SocketAddr;
use std::time::Duration;

use super::directory::Directory;
use super::etcd::{Etcd, EtcdError, Lease};
use super::periodic::PeriodicTask;
use super::record::Record;

/// Term of the lease. A node that has exited without deregistering can be found for this time.
const TERM: Duration = Duration::from_secs(10);
/// Interval between renewals of the lease.
const RENEW_INTERVAL: Duration = Duration::from_secs(3);

/// Keeps a node registered until this value is dropped. If etcd becomes unreachable, the node continues to serve, and
/// it registers again when etcd responds.
pub struct Registration {
    _task: PeriodicTask,
}

impl Registration {
    /// Registers a node under the address at which clients reach it.
    ///
    /// # Errors
    /// If no etcd server responds, one refuses the request, or the thread for renewals cannot be created.
    pub fn start(directory: &Directory, address: SocketAddr) -> Result<Self, EtcdError> {
        let (etcd, key) = (directory.etcd(), directory.node_key(address));
        let mut registered = Registered { etcd, key, lease: None, is_failing: false };
        registered.register()?;
        let task = PeriodicTask::start("etcd-registration", RENEW_INTERVAL, move || registered.run());
        let task = task.map_err(|error| EtcdError::Unreachable(format!("no thread to ask it: {error}")))?;
        Ok(Self { _task: task })
    }
}

/// State of the thread for renewals.
struct Registered {
    etcd: Etcd,
    key: String,
    lease: Option<Lease>,
    /// Whether the last renewal failed. Only changes are logged.
    is_failing: bool,
}

impl Registered {
    /// Creates a lease and the key of the node under it.
    fn register(&mut self) -> Result<(), EtcdError> {
        let lease = self.etcd.grant(TERM)?;
        self.etcd.put(&self.key, &Record::new(Vec::new()).to_bytes(), Some(&lease))?;
        self.lease = Some(lease);
        Ok(())
    }

    /// Renews the lease; registers again with a new lease if it has expired.
    fn renew(&mut self) -> Result<(), EtcdError> {
        match &self.lease {
            Some(lease) if self.etcd.keep_alive(lease)? => Ok(()),
            _ => self.register(),
        }
    }

    /// Renews the registration, and logs a change of the outcome.
    fn run(&mut self) {
        let renewed = self.renew();
        match &renewed {
            Ok(()) if self.is_failing => {
                tracing::info!(key = self.key, "etcd is back: this node is registered")
            }
            Err(error) if !self.is_failing => {
                tracing::warn!(key = self.key, "this node cannot be found by new clients: {error}");
            }
            _ => {}
        }
        self.is_failing = renewed.is_err();
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
