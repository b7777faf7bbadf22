//! What the owner of a queue pair has taken away from it, kept until no request names it any more.

use std::sync::Arc;

use farcall_verbs::{AddressHandle, UdTarget};

use crate::Region;
use crate::queue_pair::QKEY;

/// Where datagrams go: an address handle, and the number of the queue pair there.
pub(crate) struct Address(pub Box<dyn AddressHandle>, pub u32);

impl Address {
    pub(crate) fn target(&self) -> UdTarget {
        UdTarget { ah: self.0.as_raw(), remote_qpn: self.1, remote_qkey: QKEY }
    }
}

/// What requests name.
pub(crate) enum Named {
    Region { _kept: Arc<Region> },
    Address(Address),
}

/// How many sends and receives.
#[derive(Clone, Copy)]
pub(crate) struct Requests {
    pub sends: u64,
    pub receives: u64,
}

/// Things that were taken away, each with the requests posted until then.
#[derive(Default)]
pub(crate) struct Retired(Vec<(Requests, Named)>);

impl Retired {
    pub(crate) fn keep(&mut self, posted: Requests, named: Named) {
        self.0.push((posted, named));
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// So many requests have ended: lets go of what they alone named.
    #[cold]
    pub(crate) fn release(&mut self, ended: Requests) {
        self.0.retain(|(posted, _)| posted.sends > ended.sends || posted.receives > ended.receives);
    }

    /// A destination that requests under way name.
    pub(crate) fn address(&self) -> Option<&Address> {
        self.0.iter().find_map(|(_, named)| match named {
            Named::Address(address) => Some(address),
            Named::Region { .. } => None,
        })
    }
}
