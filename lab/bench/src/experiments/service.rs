//! Services that a server process provides: plain data.

use super::kv_main::StoreService;
use farcall::select::Selection;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Maximum number of threads of a service.
const THREADS_MAX: u16 = 256;

/// A server to start, on this host or another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// RNIC of the server.
    pub nic: Selection,
    /// Service to start.
    pub what: Served,
}

/// Kind of service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Served {
    /// The echo service.
    Echo {
        /// Number of server threads.
        threads: u16,
    },
    /// A key-value store behind one front end.
    Store(StoreService),
}

impl Service {
    /// Returns the number of threads that serve.
    pub(crate) fn threads(&self) -> u16 {
        match self.what {
            Served::Echo { threads } => threads,
            Served::Store(_) => 1,
        }
    }

    /// Rejects requests that no client half sends.
    pub(crate) fn check(&self) -> Result<(), String> {
        match &self.what {
            Served::Echo { threads: 1..=THREADS_MAX } => Ok(()),
            Served::Echo { threads } => {
                Err(format!("a service has 1 to {THREADS_MAX} threads, not {threads}"))
            }
            Served::Store(store) => store.check(),
        }
    }

    /// Returns the arguments with which this program serves it at `ip`.
    pub(crate) fn args(&self, ip: IpAddr) -> Vec<String> {
        let address = SocketAddr::new(ip, 0).to_string();
        match &self.what {
            Served::Echo { threads } => {
                let threads = threads.to_string();
                let args = ["--json", "rpc", "serve", "--listen", &address, "--threads", &threads];
                args.map(str::to_owned).into_iter().chain(self.nic.args()).collect()
            }
            Served::Store(store) => store.args(&self.nic, &address, None),
        }
    }
}
