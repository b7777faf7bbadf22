//! Discovery of memory nodes through etcd: nodes register under a lease, and clients query etcd periodically.
//!
//! ```text
//! /farcall/memory/v1/CLUSTER/nodes/ADDRESS     a running node, under a lease of its own
//! /farcall/memory/v1/CLUSTER/volumes/VOLUME    the nodes that may have the volume
//! ```
//!
//! Running nodes and clients do not depend on etcd. While it is unreachable they continue, and only new nodes are not
//! found. A client decides from the replies of a node whether to use it, never from the absence of its key.
//!
//! - [`Directory`] names the keys of a cluster in etcd: `etcd://HOST:PORT,.../CLUSTER`.
//! - [`Registration`] keeps a node registered.
//! - [`NodeDiscovery`] adds nodes that register later to an open address space.

mod directory;
mod discovery;
mod etcd;
mod periodic;
mod record;
mod registration;

pub use directory::{Directory, ParseError};
pub use discovery::NodeDiscovery;
pub use etcd::EtcdError;
pub use record::{NODES_MAX, Record, UnknownRecord};
pub use registration::Registration;
