//! Datagrams of other hosts: their way brings them, and they meet receives as those out of rings do.

use farcall_verbs::{ROUTE_HEADER_BYTES, Wc};

use super::DatagramCore;

/// A datagram that came from another host.
#[derive(Clone, Copy)]
pub(crate) struct Foreign<'a> {
    /// What precedes it in its receive.
    pub(crate) header: &'a [u8; ROUTE_HEADER_BYTES],
    pub(crate) src_qpn: u32,
    pub(crate) imm_be: Option<u32>,
    pub(crate) payload: &'a [u8],
}

impl DatagramCore {
    /// Puts a datagram into the oldest receive; `None` if it was dropped.
    ///
    /// # Safety
    /// Only the owner of the receive completion queue calls it, from no work on the receives.
    pub(crate) unsafe fn deliver_foreign(&self, datagram: &Foreign<'_>) -> Option<Wc> {
        // SAFETY: the caller's promise: the owner of the one receive completion queue is the resident.
        unsafe { self.receiver.owner(|receiver| receiver.deliver_foreign(self, datagram)) }.flatten()
    }
}
