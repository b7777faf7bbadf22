//! A group of queue pairs of one transport. Each is connected to its counterpart of the group at the other end, or
//! exchanges datagrams with it.

use super::RnicError;
use crate::peer::PeerError;
use farcall_link::bootstrap::QpInfo;
use farcall_link::{
    AddressId, Connection, Datagrams, Nic, Operation, QpSizes, QueuePair, SharedReceives, Transport,
};
use farcall_verbs::RawCq;

pub(super) struct QpGroup {
    pub(super) transport: Transport,
    pub(super) qps: Vec<QueuePair>,
    /// Destination address of each queue pair's datagrams; empty for connections.
    addresses: Vec<AddressId>,
}

/// A group that is not yet connected.
pub(super) enum UnconnectedQpGroup {
    Connections(Transport, Vec<Connection>),
    Datagrams(Vec<Datagrams>),
}

impl UnconnectedQpGroup {
    pub(super) fn new(
        nic: &Nic,
        (transport, count): (Transport, u32),
        cq: &dyn RawCq,
        config: QpSizes,
        shared: Option<&SharedReceives>,
    ) -> Result<Self, RnicError> {
        if transport == Transport::Ud {
            let qps = (0..count).map(|_| Datagrams::new(nic, cq, config, shared));
            return Ok(Self::Datagrams(qps.collect::<Result<_, _>>()?));
        }
        let qps = (0..count).map(|_| Connection::new(nic, transport, cq, config, shared));
        Ok(Self::Connections(transport, qps.collect::<Result<_, _>>()?))
    }

    pub(super) fn infos(&self, nic: &Nic) -> Vec<QpInfo> {
        match self {
            Self::Connections(_, qps) => qps.iter().map(|qp| qp.info(nic)).collect(),
            Self::Datagrams(qps) => qps.iter().map(|qp| qp.info(nic)).collect(),
        }
    }

    /// Moves all queue pairs to RTS, connected to those of the other end.
    pub(super) fn connect(self, nic: &Nic, remote: &[QpInfo]) -> Result<QpGroup, RnicError> {
        if self.infos(nic).len() != remote.len() {
            return Err(PeerError::Exchange("the other end has other queue pairs".to_owned()).into());
        }
        match self {
            Self::Connections(transport, mut qps) => {
                qps.iter_mut().zip(remote).try_for_each(|(qp, remote)| qp.connect(nic, remote))?;
                let qps = qps.into_iter().map(QueuePair::from).collect();
                Ok(QpGroup { transport, qps, addresses: Vec::new() })
            }
            Self::Datagrams(mut qps) => {
                let start = |(qp, remote): (&mut Datagrams, _)| {
                    qp.start()?;
                    qp.add_peer(nic, remote)
                };
                let addresses = qps.iter_mut().zip(remote).map(start).collect::<Result<_, _>>()?;
                let qps = qps.into_iter().map(QueuePair::from).collect();
                Ok(QpGroup { transport: Transport::Ud, qps, addresses })
            }
        }
    }
}

impl QpGroup {
    /// Returns a SEND of queue pair `qp`.
    pub(super) fn send(&self, qp: usize) -> Operation<'static> {
        self.addresses.get(qp).map_or(Operation::Send, |address| Operation::SendTo(*address))
    }
}
