//! Queue pairs of datagrams, UD.

use farcall_verbs::{Error, QpType, RawCq};

use crate::bootstrap::QpInfo;
use crate::queue_pair::{PairConfig, QueuePair, is_queue_pair};
use crate::{AddressId, Nic, Piece, PostRefused, SharedReceives, Ticket};

/// A queue pair that sends datagrams to any number of peers.
pub struct Datagrams(QueuePair);

impl Datagrams {
    /// Bytes in front of what was sent, in a receive (IBA 11.4.1.2).
    pub const HEADER_BYTES: usize = 40;

    /// Makes a queue pair whose completions, of sends and receives, go to `cq`; receives can be posted.
    ///
    /// # Errors
    /// Those of creating and initialising a queue pair.
    pub fn new(
        nic: &Nic,
        cq: &dyn RawCq,
        config: PairConfig,
        shared: Option<&SharedReceives>,
    ) -> Result<Self, Error> {
        QueuePair::new(nic, QpType::Ud, cq, config, shared).map(Self)
    }

    /// INIT → RTR → RTS: it sends and receives from now on.
    ///
    /// # Errors
    /// If the device fails.
    pub fn start(&mut self) -> Result<(), Error> {
        self.0.start_datagrams()
    }

    /// Adds a destination, for [`Datagrams::send`] and [`crate::Operation::SendTo`].
    ///
    /// # Errors
    /// If the peer cannot be reached or its number is impossible.
    pub fn add_peer(&mut self, nic: &Nic, peer: &QpInfo) -> Result<AddressId, Error> {
        self.0.add_peer(nic, peer)
    }

    /// Takes a destination away: nothing more is sent there, and another one may get its name. Chains must be prepared
    /// again.
    pub fn remove_peer(&mut self, peer: AddressId) {
        self.0.remove_address(peer.0);
    }

    /// SENDs a piece of ours to a destination. Short pieces go inline, as with [`crate::Connection::write`].
    ///
    /// # Errors
    /// If the queue is full or the pair refuses.
    ///
    /// # Panics
    /// If there is no such destination, or the piece is not attached.
    #[inline]
    pub fn send(&mut self, from: Piece, to: AddressId) -> Result<Ticket, PostRefused> {
        self.0.send_to(from, to)
    }
}

is_queue_pair!(Datagrams);
