//! Datagrams from other hosts. The RoCEv2 transport receives them; they consume receives like datagrams from rings.

use farcall_verbs::{ROUTE_HEADER_BYTES, Wc};

use super::DatagramCore;

/// A datagram from another host.
#[derive(Clone, Copy)]
pub(crate) struct RemoteDatagram<'a> {
    /// Route header that precedes the payload in the receive buffer.
    pub(crate) header: &'a [u8; ROUTE_HEADER_BYTES],
    pub(crate) src_qpn: u32,
    pub(crate) imm_be: Option<u32>,
    pub(crate) payload: &'a [u8],
}

impl DatagramCore {
    /// Delivers a datagram to the oldest receive. Returns `None` if it was dropped.
    ///
    /// # Safety
    /// Only the thread that polls the receive completion queue may call it, and not while it works on the receives.
    pub(crate) unsafe fn deliver_remote(&self, datagram: &RemoteDatagram<'_>) -> Option<Wc> {
        // SAFETY: by the contract of this function only the polling thread calls it, and not from within `owner`, as
        // `BiasedLock::owner` requires.
        unsafe { self.receiver.owner(|receiver| receiver.deliver_remote(self, datagram)) }.flatten()
    }
}
