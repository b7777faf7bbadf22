//! Objects that were detached from a queue pair, kept until no request names them any more.

use std::sync::Arc;

use farcall_verbs::{AddressHandle, UdTarget};

use crate::Region;
use crate::queue_pair::QKEY;

/// A datagram destination: an address handle, and the queue pair number there.
pub(crate) struct Address(pub Box<dyn AddressHandle>, pub u32);

impl Address {
    pub(crate) fn target(&self) -> UdTarget {
        UdTarget { ah: self.0.as_raw(), remote_qpn: self.1, remote_qkey: QKEY }
    }
}

/// An object that requests name.
pub(crate) enum ReferencedObject {
    Region { _region: Arc<Region> },
    Address(Address),
}

/// Numbers of sends and receives.
#[derive(Clone, Copy)]
pub(crate) struct Requests {
    pub sends: u64,
    pub receives: u64,
}

/// Detached objects, each with the numbers of requests posted before.
#[derive(Default)]
pub(crate) struct DeferredRelease(Vec<(Requests, ReferencedObject)>);

impl DeferredRelease {
    pub(crate) fn add(&mut self, posted: Requests, object: ReferencedObject) {
        self.0.push((posted, object));
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Releases the objects that no request after the first `ended` ones names.
    #[cold]
    pub(crate) fn release(&mut self, ended: Requests) {
        self.0.retain(|(posted, _)| posted.sends > ended.sends || posted.receives > ended.receives);
    }

    /// Returns a destination that may be in use by a request in flight.
    pub(crate) fn address(&self) -> Option<&Address> {
        self.0.iter().find_map(|(_, object)| match object {
            ReferencedObject::Address(address) => Some(address),
            ReferencedObject::Region { .. } => None,
        })
    }
}
