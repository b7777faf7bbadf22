//! The passive end of a session: memory that a peer may read and write, and the queue pairs that it does so over.

use std::sync::Arc;

use farcall_link::bootstrap::QpInfo;
use farcall_link::{Connection, Nic, PairConfig, Region, RemoteRegion, Transport};
use farcall_verbs::{Access, CqInitAttr, Error, RawCq, Result, Wc};

/// Memory granted to one peer. Nothing of it needs to run while the peer reads and writes.
pub struct Target {
    nic: Nic,
    // Before the completion queue: queue pairs go first.
    connections: Vec<Connection>,
    cq: Box<dyn RawCq>,
    region: Option<Arc<Region>>,
}

impl Target {
    /// Grants a region, which must allow remote access, over so many queue pairs.
    ///
    /// # Errors
    /// If the device has no room for the queue pairs.
    pub fn new(nic: &Nic, region: Arc<Region>, connections: usize) -> Result<Self> {
        let mut target = Self::without_memory(nic, connections)?;
        for connection in &mut target.connections {
            connection.attach(Arc::clone(&region));
        }
        target.region = Some(region);
        Ok(target)
    }

    /// Queue pairs alone: the memory is its owner's, who tells the peer of each region, and takes one back by dropping
    /// it.
    ///
    /// # Errors
    /// As [`Target::new`].
    pub fn without_memory(nic: &Nic, connections: usize) -> Result<Self> {
        let cq = nic.context.create_cq(&CqInitAttr { cqe: 2 * connections as u32 + 2, channel: None })?;
        let config = PairConfig {
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

    /// What the peer needs to connect.
    pub fn infos(&self) -> Vec<QpInfo> {
        self.connections.iter().map(|connection| connection.info(&self.nic)).collect()
    }

    /// What the peer needs to reach the memory.
    pub fn grant(&self) -> RemoteRegion {
        self.region.as_ref().map(|region| region.remote()).unwrap_or_default()
    }

    /// Connects to the peer's queue pairs, as many as ours and in the same order.
    ///
    /// # Errors
    /// If there are not as many, or one cannot be connected.
    pub fn connect(&mut self, peer: &[QpInfo]) -> Result<()> {
        if peer.len() != self.connections.len() {
            let what = format!("{} queue pairs of the peer; ours are {}", peer.len(), self.connections.len());
            return Err(Error::invalid("connect target", what));
        }
        let mut pairs = self.connections.iter_mut().zip(peer);
        pairs.try_for_each(|(connection, info)| connection.connect(&self.nic, info))
    }

    /// Takes the peer's access away: from now on no late WRITE of his is admitted. The memory may be granted anew when
    /// [`Target::is_quiesced`].
    pub fn close(&mut self) {
        self.connections.iter_mut().for_each(|connection| connection.close());
    }

    /// Whether nothing of the peer's is under way in the memory any more. To be asked after [`Target::close`].
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
