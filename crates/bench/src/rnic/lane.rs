//! A row of queue pairs of one transport, each connected to (or, of datagrams, talking to) its counterpart in the row at
//! the other end.

use super::RnicError;
use super::handshake::Card;
use super::nic::Nic;
use farcall_link::Transport;
use farcall_verbs::{
    Access, AddressHandle, AhAttr, Gid, QpAttr, QpCap, QpInitAttr, QpState, RawCq, RawQp, RawSrq, UdTarget,
};

/// What datagrams carry so that they are accepted.
const QKEY: u32 = 0x0fa2_ca11;

pub(super) struct Lane {
    pub(super) transport: Transport,
    /// Dropped before what they use.
    pub(super) qps: Vec<Box<dyn RawQp>>,
    /// The path of datagrams.
    path: Option<Box<dyn AddressHandle>>,
    remote_qp_nums: Vec<u32>,
}

impl Lane {
    /// Makes `count` queue pairs and takes them to INIT, so that receives can be posted.
    pub(super) fn new(
        nic: &Nic,
        transport: Transport,
        count: u32,
        cap: QpCap,
        cq: &dyn RawCq,
        srq: Option<&dyn RawSrq>,
        access: Access,
    ) -> Result<Self, RnicError> {
        let attr = QpInitAttr {
            send_cq: cq,
            recv_cq: cq,
            srq,
            cap,
            qp_type: transport.qp_type(),
            sq_sig_all: false,
        };
        let qps = (0..count)
            .map(|_| {
                let mut qp = nic.pd.create_qp(&attr)?;
                qp.modify(&init(transport, nic, access))?;
                Ok::<_, RnicError>(qp)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { transport, qps, path: None, remote_qp_nums: Vec::new() })
    }

    pub(super) fn qp_nums(&self) -> Vec<u32> {
        self.qps.iter().map(|qp| qp.qp_num()).collect()
    }

    /// Takes all queue pairs to RTS, towards lane `number` of the other end.
    pub(super) fn connect(&mut self, nic: &Nic, remote: &Card, number: usize) -> Result<(), RnicError> {
        let remote_qp_nums = remote.qp_nums.get(number).filter(|nums| nums.len() == self.qps.len());
        self.remote_qp_nums = remote_qp_nums
            .ok_or_else(|| RnicError::Handshake("the other end has other queue pairs".to_owned()))?
            .clone();
        let path = nic.port.path_to(Gid(remote.gid), remote.lid);
        if self.transport == Transport::Ud {
            self.path = Some(nic.pd.create_ah(&path)?);
        }
        for (qp, remote_qp_num) in self.qps.iter_mut().zip(&self.remote_qp_nums) {
            let (rtr, rts) = ready(self.transport, qp.qp_num(), *remote_qp_num, path, nic);
            qp.modify(&rtr)?;
            qp.modify(&rts)?;
        }
        Ok(())
    }

    /// Where datagrams of queue pair `qp` go; `None` on connected transports.
    pub(super) fn datagram_target(&self, qp: usize) -> Option<UdTarget> {
        let path = self.path.as_ref()?;
        Some(UdTarget { ah: path.as_raw(), remote_qpn: self.remote_qp_nums[qp], remote_qkey: QKEY })
    }
}

/// RESET → INIT. Each transport takes its own attributes (IBA table 91), and real devices refuse any other.
fn init(transport: Transport, nic: &Nic, access: Access) -> QpAttr {
    match transport {
        Transport::Ud => QpAttr { port_num: Some(nic.port.port_num), ..QpAttr::init_datagrams(QKEY) },
        Transport::Uc => nic.port.init(access & (Access::LOCAL_WRITE | Access::REMOTE_WRITE)),
        _ => nic.port.init(access),
    }
}

/// INIT → RTR and RTR → RTS.
fn ready(transport: Transport, qp_num: u32, remote_qp_num: u32, path: AhAttr, nic: &Nic) -> (QpAttr, QpAttr) {
    // Each end starts at a number that the other can derive.
    let psn = |qp_num: u32| qp_num & 0x00ff_ffff;
    let (mine, theirs, mtu) = (psn(qp_num), psn(remote_qp_num), nic.port.attr.active_mtu);
    match transport {
        Transport::Ud => (QpAttr::to(QpState::Rtr), QpAttr::rts_unreliable(mine)),
        Transport::Uc => {
            (QpAttr::rtr_unreliable(remote_qp_num, theirs, path, mtu), QpAttr::rts_unreliable(mine))
        }
        _ => {
            let reads = Some(nic.reads_outstanding);
            let rtr = QpAttr::rtr(remote_qp_num, theirs, path, mtu);
            (
                QpAttr { max_dest_rd_atomic: reads, ..rtr },
                QpAttr { max_rd_atomic: reads, ..QpAttr::rts(mine) },
            )
        }
    }
}
