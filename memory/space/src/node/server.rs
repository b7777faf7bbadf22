//! A memory node as a service: one thread that handles calls and ends expired leases.

use std::net::SocketAddr;

use farcall_link::{Entropy, Nic, WaitStrategy};
use farcall_rpc::{Responder, ResponderConfig, Server, ServerError, ThreadEndpoint};
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Progress, Result, WaitSet};
use thiserror::Error;

use super::{Node, NodeConfig};

/// Error of starting a memory node.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A configuration value is out of range.
    #[error("{name} is {value}: from {min} to {max}")]
    Range {
        /// Name of the value.
        name: &'static str,
        /// The value.
        value: u64,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// The service cannot be started.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The device reported an error.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// The kernel provides no random number.
    #[error("the system gives no random number")]
    Random(#[from] std::io::Error),
}

/// A running memory node. Dropping it ends it immediately, and all data that clients store there is lost.
#[derive(Debug)]
pub struct MemoryServer(Server);

impl MemoryServer {
    /// Starts a node that serves on a bootstrap address.
    ///
    /// # Errors
    /// Returns an error if a configuration value is out of range, the address cannot be bound, or resources cannot be
    /// created.
    pub fn start(
        nic: &Nic,
        address: impl Into<String>,
        config: NodeConfig,
    ) -> std::result::Result<Self, ServeError> {
        let ranges = [
            ("slab_bytes", config.slab_bytes as u64, 4_096, 1 << 30),
            ("slabs", config.slabs.into(), 0, 1 << 20),
            ("term in milliseconds", config.term.as_millis() as u64, 100, 3_600_000),
            ("leases_max", config.leases_max as u64, 1, 4_096),
            ("pairs_max", config.pairs_max as u64, 1, 64),
            ("volumes_max", config.volumes_max.into(), 0, 4_096),
            ("notes_bytes_max", config.metadata_bytes_max, 0, 1 << 40),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(ServeError::Range { name, value, min, max });
            }
        }
        let incarnation = u64::from_le_bytes(Entropy::System.bytes()?);
        let limits = ResponderConfig::default()
            .connections_max(2 * config.leases_max + 16)
            .request_bytes_max(16 << 10)
            .result_bytes_max(1 << 20);
        // Calls are rare: a few per second and client.
        let builder = Server::builder().address(address).config(limits).waiting(WaitStrategy::EventBatch);
        let own = nic.clone();
        let server = builder.start_endpoints(nic, move |parts| {
            Ok(NodeThread { responder: parts.with(Node::new(own.clone(), config, incarnation))? })
        })?;
        Ok(Self(server))
    }

    /// Returns the address for clients.
    pub const fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Returns whether its thread is running.
    pub fn is_serving(&self) -> bool {
        self.0.is_serving()
    }
}

struct NodeThread {
    responder: Responder<Node, MonotonicClock>,
}

impl ThreadEndpoint for NodeThread {
    type Handler = Node;

    fn responder(&mut self) -> &mut Responder<Node, MonotonicClock> {
        &mut self.responder
    }
}

impl Endpoint for NodeThread {
    fn progress(&mut self, now: Nanos) -> Progress {
        let next = self.responder.progress(now);
        if next == Progress::Again {
            return next;
        }
        let due = self.responder.handler().tick(now);
        next.merge(Progress::Idle { until: due })
    }

    fn arm(&mut self) -> Result<()> {
        self.responder.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        self.responder.wait_set(set);
    }
}
