//! Queue pairs of datagrams, UD.

use farcall_verbs::{Error, QpAttr, QpState, QpType, RawCq};

use crate::bootstrap::QpInfo;
use crate::queue_pair::{PSN_MASK, PairConfig, QueuePair, is_queue_pair};
use crate::{AddressId, Nic, SharedReceives};

/// A queue pair that sends datagrams to any number of peers.
pub struct Datagrams(QueuePair);

impl Datagrams {
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

    /// Adds a destination, for [`crate::Operation::SendTo`]. It is kept as long as the pair.
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
}

is_queue_pair!(Datagrams);
