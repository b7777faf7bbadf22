//! Attributes of devices, ports and queues.

use std::time::Duration;

use crate::{Access, CompChannel, Gid, QpState, RawCq, RawSrq, ReceivedRoute, Wc, WcFlags};
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
    /// The MTU with libibverbs' number.
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

    /// In bytes.
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
    /// Which operations a transport of a device has (IBA table 38), asked per operation because providers differ.
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
    /// The operations of the transport (IBA table 38). A device may offer fewer: [`DeviceAttr::ops`].
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

/// What a device can do (`ibv_device_attr`).
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
    /// An empty device; providers fill in what they have.
    pub fn new(node_guid: u64) -> Self {
        Self { node_guid, phys_port_cnt: 1, ..Self::default() }
    }

    /// The operations of a transport.
    pub fn ops(&self, qp_type: QpType) -> OpCaps {
        match qp_type {
            QpType::Rc => self.rc,
            QpType::Uc => self.uc,
            QpType::Ud => self.ud,
        }
    }
}

/// Memory to be registered, and the address by which peers name its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrMemory {
    /// Its first byte.
    pub addr: *mut u8,
    /// Its length in bytes.
    pub len_bytes: usize,
    /// The address of the first byte in the requests of peers.
    pub remote_addr: u64,
}

impl MrMemory {
    /// Memory that peers name by its own address.
    pub fn new(addr: *mut u8, len_bytes: usize) -> Self {
        Self { addr, len_bytes, remote_addr: addr as u64 }
    }

    /// The same memory, named from `remote_addr` on: 0 for a zero-based region.
    #[must_use]
    pub fn named_from(self, remote_addr: u64) -> Self {
        Self { remote_addr, ..self }
    }
}

/// What a memory region is (`ibv_mr`), and what it allows.
#[derive(Clone, Copy, Debug)]
pub struct MrAttr {
    /// Its first byte. Peers and the NIC may write at any time: never make a reference of it.
    pub addr: *mut u8,
    /// The address of its first byte in the requests of peers: `addr`, unless [`ProtectionDomain::reg_mr_at`] was given
    /// another. In the simulator it is the same in every process.
    ///
    /// [`ProtectionDomain::reg_mr_at`]: crate::ProtectionDomain::reg_mr_at
    pub remote_addr: u64,
    /// Its length in bytes.
    pub len_bytes: usize,
    /// The key of local gather/scatter elements.
    pub lkey: u32,
    /// The key that peers need.
    pub rkey: u32,
    /// What it allows.
    pub access: Access,
}

// SAFETY: the address is a number here; who follows it answers for that.
unsafe impl Send for MrAttr {}
// SAFETY: as above.
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

/// What a port runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID.
    InfiniBand = 1,
    /// Ethernet (RoCE, software): addressed by GID.
    Ethernet = 2,
}

/// A port (`ibv_port_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PortAttr {
    /// Its state.
    pub state: PortState,
    /// Largest MTU.
    pub max_mtu: Mtu,
    /// MTU in use.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_tbl_len: u32,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// What it runs over.
    pub link_layer: LinkLayer,
}

/// What a completion queue is made with.
pub struct CqInitAttr<'a> {
    /// Completions it holds at least.
    pub cqe: u32,
    /// Where its events go; `None`: it can only be polled.
    pub channel: Option<&'a dyn CompChannel>,
}

/// What a shared receive queue is made with.
#[derive(Clone, Copy, Debug)]
pub struct SrqInitAttr {
    /// Receives it holds.
    pub max_wr: u32,
    /// Elements in one receive.
    pub max_sge: u32,
}

/// What a shared receive queue has (`ibv_srq_attr`, as `ibv_query_srq` gives it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqCap {
    /// Receives it holds.
    pub max_wr: u32,
    /// Elements in one receive.
    pub max_sge: u32,
    /// Below how many receives its limit event comes; 0: it is not armed.
    pub srq_limit: u32,
}

/// Changes of a shared receive queue (`ibv_modify_srq`: what is `Some` is set).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SrqAttr {
    /// Receives it should hold; not fewer than it has now.
    pub max_wr: Option<u32>,
    /// Arms the limit event, once: it comes when fewer receives than this are left. 0 disarms.
    pub srq_limit: Option<u32>,
}

/// Sizes of a queue pair, laid out as `ibv_qp_cap`. Providers may give more than asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpCap {
    /// Outstanding send requests.
    pub max_send_wr: u32,
    /// Outstanding receives; 0 with a shared receive queue.
    pub max_recv_wr: u32,
    /// Elements in one send.
    pub max_send_sge: u32,
    /// Elements in one receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 256 }
    }
}

/// What a queue pair is made with (`ibv_qp_init_attr`).
pub struct QpInitAttr<'a> {
    /// Where completions of sends go.
    pub send_cq: &'a dyn RawCq,
    /// Where completions of receives go.
    pub recv_cq: &'a dyn RawCq,
    /// A shared receive queue instead of the pair's own.
    pub srq: Option<&'a dyn RawSrq>,
    /// Sizes.
    pub cap: QpCap,
    /// Transport.
    pub qp_type: QpType,
    /// Whether every send is signalled, whatever its flags.
    pub sq_sig_all: bool,
}

/// The path to a peer (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AhAttr {
    /// The destination's GID.
    pub dgid: Gid,
    /// Index of our own GID to send from.
    pub sgid_index: u8,
    /// The destination's LID on InfiniBand.
    pub dlid: u16,
    /// Our port.
    pub port_num: u8,
    /// Service level on InfiniBand.
    pub sl: u8,
    /// Traffic class: on RoCEv2 the IP header's TOS byte, by which lossless fabrics choose the queue.
    pub traffic_class: u8,
}

impl AhAttr {
    /// The way back to the sender of a datagram: of the completion of its receive and the 40 bytes before its payload
    /// (`ibv_init_ah_from_wc`). `None` if there is no such header.
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
    /// How long an initiator waits after a receiver-not-ready NAK with this code.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(RNR_TIMER_10US[(self.0 & 31) as usize] as u64 * 10)
    }
}

/// Changes of a queue pair (`ibv_qp_attr` with its mask: what is `Some` is set).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpAttr {
    /// The state to go to.
    pub state: Option<QpState>,
    /// Port (to `Init`).
    pub port_num: Option<u8>,
    /// P_Key index (to `Init`).
    pub pkey_index: Option<u16>,
    /// What the peer may do (to `Init`).
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
    /// READs and atomics we accept at once (to `Rtr`).
    pub max_dest_rd_atomic: Option<u8>,
    /// What we tell a peer that finds no receive (to `Rtr`).
    pub min_rnr_timer: Option<RnrTimer>,
    /// Our starting packet sequence number (to `Rts`).
    pub sq_psn: Option<u32>,
    /// ACK timeout code: 4.096 µs · 2^code, 0 is for ever (to `Rts`).
    pub timeout: Option<u8>,
    /// Transport retries (to `Rts`).
    pub retry_cnt: Option<u8>,
    /// Receiver-not-ready retries, 7 is for ever (to `Rts`).
    pub rnr_retry: Option<u8>,
    /// READs and atomics we have outstanding (to `Rts`).
    pub max_rd_atomic: Option<u8>,
    /// Whether [`crate::AsyncEventKind::SqDrained`] tells that the send queue has drained (to `Sqd`).
    pub en_sqd_async_notify: Option<bool>,
}

impl QpAttr {
    /// RESET → INIT.
    pub fn init(access: Access) -> Self {
        Self {
            state: Some(QpState::Init),
            port_num: Some(1),
            pkey_index: Some(0),
            access: Some(access),
            ..Self::default()
        }
    }

    /// INIT → RTR over a connection, with usual values.
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

    /// RTR → RTS over a connection, with usual values: about half a second of transport retries, RNR for ever.
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

    /// INIT → RTR over an unreliable connection.
    pub fn rtr_unreliable(dest_qp_num: u32, rq_psn: u32, ah: AhAttr, path_mtu: Mtu) -> Self {
        let reliable = Self::rtr(dest_qp_num, rq_psn, ah, path_mtu);
        Self { max_dest_rd_atomic: None, min_rnr_timer: None, ..reliable }
    }

    /// RTR → RTS where nothing is retried: unreliable connections and datagrams.
    pub fn rts_unreliable(sq_psn: u32) -> Self {
        Self { sq_psn: Some(sq_psn), ..Self::to(QpState::Rts) }
    }

    /// RESET → INIT of a datagram queue pair. Its way to RTR is [`QpAttr::to`]`(QpState::Rtr)`.
    pub fn init_datagrams(qkey: u32) -> Self {
        Self { access: None, qkey: Some(qkey), ..Self::init(Access::empty()) }
    }

    /// Any state → `state`, nothing else changed.
    pub fn to(state: QpState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_is_the_source_of_the_header() {
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
