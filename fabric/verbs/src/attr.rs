//! Attributes of devices, ports and queues.

use std::time::Duration;

use crate::{Access, Gid, LinkLayer, QpState, ReceivedRoute, Wc, WcFlags};
use bitflags::bitflags;

/// Path MTU, with libibverbs' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u32)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    #[default]
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// Returns the MTU with libibverbs' number `number`.
    pub const fn from_raw(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Mtu256,
            2 => Self::Mtu512,
            3 => Self::Mtu1024,
            4 => Self::Mtu2048,
            5 => Self::Mtu4096,
            _ => return None,
        })
    }

    /// Returns the MTU in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }
}

/// A queue pair's transport, with libibverbs' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
}

bitflags! {
    /// Operations that a device supports on one transport (IBA table 38). Providers differ, so callers check each
    /// operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct OpCaps: u32 {
        /// SEND.
        const SEND = 1;
        /// SEND with immediate.
        const SEND_IMM = 1 << 1;
        /// WRITE.
        const WRITE = 1 << 2;
        /// WRITE with immediate.
        const WRITE_IMM = 1 << 3;
        /// READ.
        const READ = 1 << 4;
        /// Compare and swap, fetch and add.
        const ATOMIC = 1 << 5;
        /// Shared receive queues.
        const SRQ = 1 << 6;
    }
}

impl QpType {
    /// Returns the operations of the transport (IBA table 38). A device may offer fewer: [`DeviceAttr::ops`].
    pub const fn operations(self) -> OpCaps {
        let sends = OpCaps::SEND.union(OpCaps::SEND_IMM);
        let writes = OpCaps::WRITE.union(OpCaps::WRITE_IMM);
        match self {
            Self::Rc => sends.union(writes).union(OpCaps::READ).union(OpCaps::ATOMIC),
            Self::Uc => sends.union(writes),
            Self::Ud => sends,
        }
    }
}

/// Capabilities and limits of a device (`ibv_device_attr`). Each `max_…` field is a maximum number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceAttr {
    /// Firmware or software version.
    pub fw_ver: String,
    /// Node GUID.
    pub node_guid: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in one queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements in one request.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions in one queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes in one region.
    pub max_mr_size: u64,
    /// Bytes of inline data.
    pub max_inline_data: u32,
    /// Outstanding READs and atomics a queue pair may have as initiator or target.
    pub max_qp_rd_atom: u8,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives in one shared receive queue.
    pub max_srq_wr: u32,
    /// Elements in one receive of a shared receive queue.
    pub max_srq_sge: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Ports.
    pub phys_port_cnt: u8,
    /// Operations over RC.
    pub rc: OpCaps,
    /// Operations over UC.
    pub uc: OpCaps,
    /// Operations over UD.
    pub ud: OpCaps,
}

impl DeviceAttr {
    /// Returns the attributes of a device with one port and no capabilities; providers fill in the rest.
    pub fn new(node_guid: u64) -> Self {
        Self { node_guid, phys_port_cnt: 1, ..Self::default() }
    }

    /// Returns the operations that the device supports on a transport.
    pub fn ops(&self, qp_type: QpType) -> OpCaps {
        match qp_type {
            QpType::Rc => self.rc,
            QpType::Uc => self.uc,
            QpType::Ud => self.ud,
        }
    }
}

/// Memory to be registered, and the address that peers use for its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrMemory {
    /// Address of the first byte.
    pub addr: *mut u8,
    /// Length in bytes.
    pub len_bytes: usize,
    /// Address of the first byte in the requests of peers.
    pub remote_addr: u64,
}

impl MrMemory {
    /// Describes memory that peers address by its own virtual address.
    pub fn new(addr: *mut u8, len_bytes: usize) -> Self {
        Self { addr, len_bytes, remote_addr: addr as u64 }
    }

    /// Returns the same memory with `remote_addr` as its first address for peers: 0 for a zero-based region.
    #[must_use]
    pub fn named_from(self, remote_addr: u64) -> Self {
        Self { remote_addr, ..self }
    }
}

/// Attributes of a memory region (`ibv_mr`).
#[derive(Clone, Copy, Debug)]
pub struct MrAttr {
    /// Address of the first byte. Peers and the NIC may write to the memory at any time: never create a reference to
    /// it.
    pub addr: *mut u8,
    /// Address of the first byte in the requests of peers: `addr`, unless [`ProtectionDomain::reg_mr_at`] was given
    /// another address. In the simulator it is the same in every process.
    ///
    /// [`ProtectionDomain::reg_mr_at`]: crate::ProtectionDomain::reg_mr_at
    pub remote_addr: u64,
    /// Length in bytes.
    pub len_bytes: usize,
    /// Key for local gather/scatter elements.
    pub lkey: u32,
    /// Key for the requests of peers.
    pub rkey: u32,
    /// Permitted accesses.
    pub access: Access,
}

// SAFETY: the type never dereferences `addr`; it only copies the pointer value. Code that dereferences it needs its own
// argument.
unsafe impl Send for MrAttr {}
// SAFETY: shared access only reads the pointer value `addr`, which is never dereferenced by this type.
unsafe impl Sync for MrAttr {}

/// State of a port, with libibverbs' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PortState {
    /// No link.
    Down = 1,
    /// Link, not configured.
    Init = 2,
    /// Configured.
    Armed = 3,
    /// Usable.
    Active = 4,
}

/// A port (`ibv_port_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PortAttr {
    /// State of the port.
    pub state: PortState,
    /// Largest MTU.
    pub max_mtu: Mtu,
    /// MTU in use.
    pub active_mtu: Mtu,
    /// Number of entries of the GID table.
    pub gid_tbl_len: u32,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Link layer.
    pub link_layer: LinkLayer,
}

/// Parameters of a new shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrqInitAttr {
    /// Maximum number of outstanding receives.
    pub max_wr: u32,
    /// Maximum number of elements in one receive.
    pub max_sge: u32,
}

/// Sizes and limit of a shared receive queue (`ibv_srq_attr`, as `ibv_query_srq` returns it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqCap {
    /// Maximum number of outstanding receives.
    pub max_wr: u32,
    /// Maximum number of elements in one receive.
    pub max_sge: u32,
    /// The limit event is raised when fewer receives than this remain; 0: the event is not armed.
    pub srq_limit: u32,
}

/// Changes of a shared receive queue (`ibv_modify_srq`): each field that is `Some` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SrqAttr {
    /// New maximum number of outstanding receives; at least the number that is outstanding now.
    pub max_wr: Option<u32>,
    /// Arms the limit event for one occurrence: it is raised when fewer receives than this remain. 0 disarms it.
    pub srq_limit: Option<u32>,
}

/// Sizes of a queue pair, laid out as `ibv_qp_cap`. Providers may allocate more than requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpCap {
    /// Maximum number of outstanding send requests.
    pub max_send_wr: u32,
    /// Maximum number of outstanding receives; 0 with a shared receive queue.
    pub max_recv_wr: u32,
    /// Maximum number of elements in one send.
    pub max_send_sge: u32,
    /// Maximum number of elements in one receive.
    pub max_recv_sge: u32,
    /// Maximum length of inline data in bytes.
    pub max_inline_data: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 256 }
    }
}

/// The path to a peer (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AhAttr {
    /// The destination's GID.
    pub dgid: Gid,
    /// Index of the local GID to send from.
    pub sgid_index: u8,
    /// The destination's LID on InfiniBand.
    pub dlid: u16,
    /// Local port.
    pub port_num: u8,
    /// Service level on InfiniBand.
    pub sl: u8,
    /// Traffic class: on RoCEv2 the IP header's TOS byte, by which lossless fabrics choose the queue.
    pub traffic_class: u8,
}

impl AhAttr {
    /// Returns the path to the sender of a received datagram, from the completion of the receive and the 40 bytes
    /// before the payload (`ibv_init_ah_from_wc`). Returns `None` if the completion reports no such header.
    pub fn from_received(wc: &Wc, header: &[u8; 40], port_num: u8) -> Option<Self> {
        if !wc.wc_flags.contains(WcFlags::GRH) {
            return None;
        }
        let ReceivedRoute { source: dgid, traffic_class, .. } = ReceivedRoute::of(header);
        Some(Self { dgid, dlid: wc.slid, sl: wc.sl, port_num, traffic_class, ..Self::default() })
    }
}

/// An RNR NAK timer: the specification's five-bit code (IBA table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RnrTimer(pub u8);

/// IBA table 45 in units of 10 µs, by code.
const RNR_TIMER_10US: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

impl RnrTimer {
    /// Returns how long an initiator waits after a receiver-not-ready NAK with this code.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(RNR_TIMER_10US[(self.0 & 31) as usize] as u64 * 10)
    }
}

/// Changes of a queue pair (`ibv_qp_attr` with its mask): each field that is `Some` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpAttr {
    /// The new state.
    pub state: Option<QpState>,
    /// Port (to `Init`).
    pub port_num: Option<u8>,
    /// P_Key index (to `Init`).
    pub pkey_index: Option<u16>,
    /// Accesses permitted to the peer (to `Init`).
    pub access: Option<Access>,
    /// Q_Key (datagrams).
    pub qkey: Option<u32>,
    /// Path MTU (to `Rtr`).
    pub path_mtu: Option<Mtu>,
    /// The peer's queue pair number (to `Rtr`).
    pub dest_qp_num: Option<u32>,
    /// The peer's starting packet sequence number (to `Rtr`).
    pub rq_psn: Option<u32>,
    /// The path to the peer (to `Rtr`).
    pub ah: Option<AhAttr>,
    /// READs and atomics that the local side accepts at once as target (to `Rtr`).
    pub max_dest_rd_atomic: Option<u8>,
    /// RNR timer code sent to a peer whose request finds no receive (to `Rtr`).
    pub min_rnr_timer: Option<RnrTimer>,
    /// Local starting packet sequence number (to `Rts`).
    pub sq_psn: Option<u32>,
    /// ACK timeout code: 4.096 µs · 2^code; 0 means infinite (to `Rts`).
    pub timeout: Option<u8>,
    /// Transport retries (to `Rts`).
    pub retry_cnt: Option<u8>,
    /// Receiver-not-ready retries; 7 means infinite (to `Rts`).
    pub rnr_retry: Option<u8>,
    /// READs and atomics that the local side may have outstanding as initiator (to `Rts`).
    pub max_rd_atomic: Option<u8>,
    /// Whether [`crate::AsyncEventKind::SqDrained`] is raised when the send queue has drained (to `Sqd`).
    pub en_sqd_async_notify: Option<bool>,
}

impl QpAttr {
    /// Returns the attributes of RESET → INIT.
    pub fn init(access: Access) -> Self {
        Self {
            state: Some(QpState::Init),
            port_num: Some(1),
            pkey_index: Some(0),
            access: Some(access),
            ..Self::default()
        }
    }

    /// Returns the attributes of INIT → RTR of a reliable connection, with usual values.
    pub fn rtr(dest_qp_num: u32, rq_psn: u32, ah: AhAttr, path_mtu: Mtu) -> Self {
        Self {
            state: Some(QpState::Rtr),
            dest_qp_num: Some(dest_qp_num),
            rq_psn: Some(rq_psn),
            ah: Some(ah),
            path_mtu: Some(path_mtu),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(RnrTimer(12)),
            ..Self::default()
        }
    }

    /// Returns the attributes of RTR → RTS of a reliable connection, with usual values: about half a second of
    /// transport retries, unlimited RNR retries.
    pub fn rts(sq_psn: u32) -> Self {
        Self {
            state: Some(QpState::Rts),
            sq_psn: Some(sq_psn),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..Self::default()
        }
    }

    /// Returns the attributes of INIT → RTR of an unreliable connection.
    pub fn rtr_unreliable(dest_qp_num: u32, rq_psn: u32, ah: AhAttr, path_mtu: Mtu) -> Self {
        let reliable = Self::rtr(dest_qp_num, rq_psn, ah, path_mtu);
        Self { max_dest_rd_atomic: None, min_rnr_timer: None, ..reliable }
    }

    /// Returns the attributes of RTR → RTS of transports without retries: unreliable connections and datagrams.
    pub fn rts_unreliable(sq_psn: u32) -> Self {
        Self { sq_psn: Some(sq_psn), ..Self::to(QpState::Rts) }
    }

    /// Returns the attributes of RESET → INIT of a datagram queue pair. For its INIT → RTR use
    /// [`QpAttr::to`]`(QpState::Rtr)`.
    pub fn init_datagrams(qkey: u32) -> Self {
        Self { access: None, qkey: Some(qkey), ..Self::init(Access::empty()) }
    }

    /// Returns the attributes of a change to `state` from any state, without other changes.
    pub fn to(state: QpState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_to_the_source_of_the_header() {
        let mut header = [0; 40];
        header[..2].copy_from_slice(&[0x6A, 0xB0]);
        header[8..24].fill(1);
        header[24..].fill(2);
        let wc = Wc { wc_flags: WcFlags::GRH, slid: 7, sl: 3, ..Wc::default() };
        let back = AhAttr::from_received(&wc, &header, 1).unwrap();
        assert_eq!((back.dgid, back.dlid, back.sl), (Gid([1; 16]), 7, 3));
        assert_eq!((back.port_num, back.sgid_index, back.traffic_class), (1, 0, 0xAB));
        assert_eq!(AhAttr::from_received(&Wc::default(), &header, 1), None);
    }

    #[test]
    fn units() {
        assert_eq!((Mtu::Mtu256.bytes(), Mtu::Mtu4096.bytes()), (256, 4096));
        assert_eq!(RnrTimer(0).duration(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer(1).duration(), Duration::from_micros(10));
        assert_eq!(RnrTimer(31).duration(), Duration::from_micros(491_520));
    }
}
