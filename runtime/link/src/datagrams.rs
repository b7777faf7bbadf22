//! Datagram queue pairs (UD).

use farcall_verbs::{Error, QpType, RawCq};

use crate::bootstrap::QpInfo;
use crate::queue_pair::{QpSizes, QueuePair, is_queue_pair};
use crate::{AddressId, LocalSlice, Nic, PostRefused, SharedReceives, Ticket};

/// A queue pair that sends datagrams to any number of peers.
pub struct Datagrams(QueuePair);

impl Datagrams {
    /// Number of bytes that precede the payload in a receive buffer (IBA 11.4.1.2).
    pub const HEADER_BYTES: usize = 40;

    /// Creates a queue pair whose send and receive completions go to `cq`. Receives can be posted.
    ///
    /// # Errors
    /// Returns the errors of creating and initialising a queue pair.
    pub fn new(
        nic: &Nic,
        cq: &dyn RawCq,
        config: QpSizes,
        shared: Option<&SharedReceives>,
    ) -> Result<Self, Error> {
        QueuePair::new(nic, QpType::Ud, cq, config, shared).map(Self)
    }

    /// Enables sending and receiving: INIT → RTR → RTS.
    ///
    /// # Errors
    /// If the device fails.
    pub fn start(&mut self) -> Result<(), Error> {
        self.0.start_datagrams()
    }

    /// Adds a destination, for [`Datagrams::send`] and [`crate::Operation::SendTo`].
    ///
    /// # Errors
    /// If the peer cannot be reached, or its number is out of range.
    pub fn add_peer(&mut self, nic: &Nic, peer: &QpInfo) -> Result<AddressId, Error> {
        self.0.add_peer(nic, peer)
    }

    /// Removes a destination. No later datagram is sent there, and its identifier may be reused. Existing chains must
    /// be prepared again.
    pub fn remove_peer(&mut self, peer: AddressId) {
        self.0.remove_address(peer.0);
    }

    /// SENDs a local buffer to a destination. A short buffer is sent inline, as in [`crate::Connection::write`].
    ///
    /// # Errors
    /// If the queue is full or the provider refuses.
    ///
    /// # Panics
    /// If the destination does not exist, or the region of `from` is not attached.
    #[inline]
    pub fn send(&mut self, from: LocalSlice, to: AddressId) -> Result<Ticket, PostRefused> {
        self.0.send_to(from, to)
    }
}

is_queue_pair!(Datagrams);
