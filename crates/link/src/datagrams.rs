//! Queue pairs of datagrams, UD.

use farcall_verbs::{Error, QpAttr, QpState, QpType, RawCq, SendFlags, SendWr};

use crate::bootstrap::QpInfo;
use crate::queue_pair::{PSN_MASK, PairConfig, QueuePair, is_queue_pair};
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
        let rts = QpAttr::rts_unreliable(self.0.psn());
        self.0.modify([QpAttr::to(QpState::Rtr), rts])
    }

    /// Adds a destination, for [`Datagrams::send`] and [`crate::Operation::SendTo`].
    ///
    /// # Errors
    /// If the peer cannot be reached or its number is impossible.
    pub fn add_peer(&mut self, nic: &Nic, peer: &QpInfo) -> Result<AddressId, Error> {
        if peer.qp_num > PSN_MASK {
            return Err(Error::invalid("add peer", "a queue pair number of more than 24 bits"));
        }
        let handle = nic.pd.create_ah(&nic.path_to(peer.gid(), peer.lid))?;
        Ok(AddressId(self.0.add_address(handle, peer.qp_num)))
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
        let sges = [self.0.regions.sge(from)];
        let wr = SendWr::send_to(0, &sges, self.0.address(to.0));
        self.0.post_seldom_signalled(wr.with_flags(SendFlags::SOLICITED))
    }
}

is_queue_pair!(Datagrams);
