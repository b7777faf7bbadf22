//! Passive side of a session: memory that a peer may read and write, and the queue pairs for it.

use std::sync::Arc;

use farcall_link::bootstrap::QpInfo;
use farcall_link::{Connection, Nic, QpSizes, Region, RemoteRegion, Transport};
use farcall_verbs::{Access, CqInitAttr, Error, RawCq, Result, Wc};

/// Memory granted to one peer. No code of this side needs to run while the peer reads and writes.
pub struct Target {
    nic: Nic,
    // Declared before the completion queue, so that the queue pairs are dropped first.
    connections: Vec<Connection>,
    cq: Box<dyn RawCq>,
    region: Option<Arc<Region>>,
}

impl Target {
    /// Grants a region, which must allow remote access, over `connections` queue pairs.
    ///
    /// # Errors
    /// If the device cannot create the queue pairs or their completion queue.
    pub fn new(nic: &Nic, region: Arc<Region>, connections: usize) -> Result<Self> {
        let mut target = Self::without_memory(nic, connections)?;
        for connection in &mut target.connections {
            connection.attach(Arc::clone(&region));
        }
        target.region = Some(region);
        Ok(target)
    }

    /// Creates the queue pairs without memory. The caller owns the regions, announces each of them to the peer, and
    /// revokes one by dropping it.
    ///
    /// # Errors
    /// Like [`Target::new`].
    pub fn without_memory(nic: &Nic, connections: usize) -> Result<Self> {
        let cq = nic.context().create_cq(&CqInitAttr { cqe: 2 * connections as u32 + 2, channel: None })?;
        let config = QpSizes {
            send_depth: 2,
            recv_depth: 1,
            sges_max: 1,
            signal_every: 1,
            inline_max_bytes: 0,
            access: Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
        };
        let connection = |_| Connection::new(nic, Transport::Rc, &*cq, config, None);
        let connections = (0..connections).map(connection).collect::<Result<_>>()?;
        Ok(Self { nic: nic.clone(), connections, cq, region: None })
    }

    /// Returns the information that the peer needs to connect.
    pub fn infos(&self) -> Vec<QpInfo> {
        self.connections.iter().map(|connection| connection.info(&self.nic)).collect()
    }

    /// Returns the information that the peer needs to access the memory; empty without memory.
    pub fn grant(&self) -> RemoteRegion {
        self.region.as_ref().map(|region| region.remote()).unwrap_or_default()
    }

    /// Connects to the peer's queue pairs, which must have the same number and order as those of this side.
    ///
    /// # Errors
    /// If their number differs, or one cannot be connected.
    pub fn connect(&mut self, peer: &[QpInfo]) -> Result<()> {
        if peer.len() != self.connections.len() {
            let what = format!("{} queue pairs of the peer; ours are {}", peer.len(), self.connections.len());
            return Err(Error::invalid("connect target", what));
        }
        let mut pairs = self.connections.iter_mut().zip(peer);
        pairs.try_for_each(|(connection, info)| connection.connect(&self.nic, info))
    }

    /// Revokes the peer's access: WRITEs of the peer that arrive later are refused. The memory may be granted again as
    /// soon as [`Target::is_quiesced`] returns true.
    pub fn close(&mut self) {
        self.connections.iter_mut().for_each(|connection| connection.close());
    }

    /// Returns whether no request of the peer accesses the memory any more. Meaningful after [`Target::close`].
    pub fn is_quiesced(&mut self) -> bool {
        let mut wcs = [Wc::default(); 4];
        while let Ok(count @ 1..) = self.cq.poll(&mut wcs) {
            for wc in &wcs[..count] {
                let of = self.connections.iter_mut().find(|connection| connection.qp_num() == wc.qp_num);
                of.map(|connection| connection.complete(wc));
            }
        }
        self.connections.iter().all(|connection| connection.is_quiesced())
    }
}
