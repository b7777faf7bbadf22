//! Which memory nodes there are, as etcd knows: nodes register under a lease, clients look for them now and then.
//!
//! ```text
//! /farcall/memory/v1/CLUSTER/nodes/ADDRESS     a node that runs, under a lease of its own
//! /farcall/memory/v1/CLUSTER/volumes/VOLUME    where a volume was when it was mounted last
//! ```
//!
//! Nothing that is in use depends on etcd: nodes serve and clients go on while it is away; only nobody new is found.
//! Whether a node is to be used its clients judge by themselves, from its answers: a key that goes says nothing.
//!
//! - [`Directory`] is a cluster's place in etcd: `etcd://HOST:PORT,.../CLUSTER`.
//! - [`Registration`] keeps a node registered.
//! - [`Joining`] has nodes that register join an address space that is in use.

mod directory;
mod etcd;
mod joining;
mod record;
mod registration;
mod rounds;

pub use directory::{Directory, ParseError};
pub use etcd::EtcdError;
pub use joining::Joining;
pub use record::{ForeignRecord, NODES_MAX, Record};
pub use registration::Registration;
