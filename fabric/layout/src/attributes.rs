//! Attributes that programs pass to libibverbs, or that it fills in.

use std::ffi::{c_char, c_int, c_void};

use farcall_verbs::{QpAttrMask, QpCap};

use crate::{Cq, Srq};

/// `struct ibv_device_attr`.
#[repr(C)]
pub struct DeviceAttr {
    /// Firmware version, a C string.
    pub fw_ver: [c_char; 64],
    /// Big-endian.
    pub node_guid: u64,
    /// Big-endian.
    pub sys_image_guid: u64,
    /// Length of the largest region in bytes.
    pub max_mr_size: u64,
    /// Supported page sizes, as a bit mask.
    pub page_size_cap: u64,
    /// Vendor ID.
    pub vendor_id: u32,
    /// Vendor's part ID.
    pub vendor_part_id: u32,
    /// Hardware revision.
    pub hw_ver: u32,
    /// Queue pairs.
    pub max_qp: c_int,
    /// Requests in a queue.
    pub max_qp_wr: c_int,
    /// `ibv_device_cap_flags`.
    pub device_cap_flags: u32,
    /// Elements of a request.
    pub max_sge: c_int,
    /// Elements of a READ (iWARP).
    pub max_sge_rd: c_int,
    /// Completion queues.
    pub max_cq: c_int,
    /// Completions in a queue.
    pub max_cqe: c_int,
    /// Regions.
    pub max_mr: c_int,
    /// Protection domains.
    pub max_pd: c_int,
    /// Outstanding READs and atomics of a queue pair as target.
    pub max_qp_rd_atom: c_int,
    /// Unused.
    pub max_ee_rd_atom: c_int,
    /// READs and atomics as target of the complete device.
    pub max_res_rd_atom: c_int,
    /// Outstanding READs and atomics of a queue pair as initiator.
    pub max_qp_init_rd_atom: c_int,
    /// Unused.
    pub max_ee_init_rd_atom: c_int,
    /// `ibv_atomic_cap`: 0 none.
    pub atomic_cap: c_int,
    /// Unused.
    pub max_ee: c_int,
    /// Unused.
    pub max_rdd: c_int,
    /// Memory windows.
    pub max_mw: c_int,
    /// Unused.
    pub max_raw_ipv6_qp: c_int,
    /// Unused.
    pub max_raw_ethy_qp: c_int,
    /// Multicast groups.
    pub max_mcast_grp: c_int,
    /// Queue pairs in a group.
    pub max_mcast_qp_attach: c_int,
    /// Attached queue pairs of all groups.
    pub max_total_mcast_qp_attach: c_int,
    /// Address handles.
    pub max_ah: c_int,
    /// Unused.
    pub max_fmr: c_int,
    /// Unused.
    pub max_map_per_fmr: c_int,
    /// Shared receive queues.
    pub max_srq: c_int,
    /// Receives in a shared receive queue.
    pub max_srq_wr: c_int,
    /// Elements of a receive of a shared receive queue.
    pub max_srq_sge: c_int,
    /// Entries of the P_Key table.
    pub max_pkeys: u16,
    /// Acknowledgement delay of the device.
    pub local_ca_ack_delay: u8,
    /// Ports.
    pub phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[derive(Default)]
#[repr(C)]
pub struct PortAttr {
    /// `ibv_port_state`.
    pub state: c_int,
    /// `ibv_mtu`.
    pub max_mtu: c_int,
    /// `ibv_mtu`.
    pub active_mtu: c_int,
    /// Entries of the GID table.
    pub gid_tbl_len: c_int,
    /// Capability flags.
    pub port_cap_flags: u32,
    /// Length of the largest message in bytes.
    pub max_msg_sz: u32,
    /// Counter.
    pub bad_pkey_cntr: u32,
    /// Counter.
    pub qkey_viol_cntr: u32,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Local identifier.
    pub lid: u16,
    /// LID of the subnet manager.
    pub sm_lid: u16,
    /// LID mask bits.
    pub lmc: u8,
    /// Virtual lanes.
    pub max_vl_num: u8,
    /// Service level of the subnet manager.
    pub sm_sl: u8,
    /// Timeout code.
    pub subnet_timeout: u8,
    /// Type of initialisation performed by the subnet manager.
    pub init_type_reply: u8,
    /// Active link width, encoded.
    pub active_width: u8,
    /// Active link speed, encoded.
    pub active_speed: u8,
    /// Physical state of the link.
    pub phys_state: u8,
    /// 0 unspecified, 1 InfiniBand, 2 Ethernet.
    pub link_layer: u8,
    /// `ibv_port_cap_flags`' second set.
    pub flags: u8,
    /// More capability flags.
    pub port_cap_flags2: u16,
}

/// `struct ibv_global_route`.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub struct GlobalRoute {
    /// Destination.
    pub dgid: [u8; 16],
    /// Flow label.
    pub flow_label: u32,
    /// Index of the local GID.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// IPv6 traffic class or IPv4 TOS.
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct AhAttr {
    /// The global route, valid if `is_global`.
    pub grh: GlobalRoute,
    /// Destination on InfiniBand.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Low bits of the local LID.
    pub src_path_bits: u8,
    /// Rate limit.
    pub static_rate: u8,
    /// Whether `grh` is valid.
    pub is_global: u8,
    /// Local port.
    pub port_num: u8,
}

/// `struct ibv_qp_init_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct QpInitAttr {
    /// Pointer of the program.
    pub qp_context: *mut c_void,
    /// Completion queue of sends.
    pub send_cq: *mut Cq,
    /// Completion queue of receives.
    pub recv_cq: *mut Cq,
    /// Shared receive queue or null.
    pub srq: *mut Srq,
    /// Requested sizes, replaced by the allocated ones.
    pub cap: QpCap,
    /// `ibv_qp_type`.
    pub qp_type: u32,
    /// Whether all sends are signalled.
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct QpAttr {
    /// New `ibv_qp_state`.
    pub qp_state: u32,
    /// Current `ibv_qp_state`.
    pub cur_qp_state: u32,
    /// `ibv_mtu`.
    pub path_mtu: u32,
    /// State of path migration.
    pub path_mig_state: u32,
    /// Q_Key of datagrams.
    pub qkey: u32,
    /// First expected packet sequence number.
    pub rq_psn: u32,
    /// First sent packet sequence number.
    pub sq_psn: u32,
    /// Queue pair number of the peer.
    pub dest_qp_num: u32,
    /// `ibv_access_flags`.
    pub qp_access_flags: u32,
    /// Sizes.
    pub cap: QpCap,
    /// Path to the peer.
    pub ah_attr: AhAttr,
    /// Alternate path.
    pub alt_ah_attr: AhAttr,
    /// P_Key index.
    pub pkey_index: u16,
    /// P_Key index of the alternate path.
    pub alt_pkey_index: u16,
    /// Whether the end of draining raises an event.
    pub en_sqd_async_notify: u8,
    /// Whether the send queue is draining.
    pub sq_draining: u8,
    /// READs and atomics as initiator.
    pub max_rd_atomic: u8,
    /// READs and atomics as target.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Local port.
    pub port_num: u8,
    /// Timeout code.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
    /// Receiver-not-ready retries.
    pub rnr_retry: u8,
    /// Port of the alternate path.
    pub alt_port_num: u8,
    /// Timeout code of the alternate path.
    pub alt_timeout: u8,
    /// Rate limit in kbit/s.
    pub rate_limit: u32,
}

macro_rules! qp_attr_mask {
    ($($name:ident)*) => {
        /// `enum ibv_qp_attr_mask`, in C's type: the valid fields of [`QpAttr`].
        pub mod mask {
            use super::{QpAttrMask, c_int};

            $(pub const $name: c_int = QpAttrMask::$name.bits() as c_int;)*
        }
    };
}

qp_attr_mask! {
    STATE CUR_STATE EN_SQD_ASYNC_NOTIFY ACCESS_FLAGS PKEY_INDEX PORT QKEY AV PATH_MTU TIMEOUT RETRY_CNT RNR_RETRY RQ_PSN
    MAX_QP_RD_ATOMIC ALT_PATH MIN_RNR_TIMER SQ_PSN MAX_DEST_RD_ATOMIC PATH_MIG_STATE CAP
    DEST_QPN
}

/// `enum ibv_srq_attr_mask`: the valid fields of [`SrqAttr`].
pub mod srq_mask {
    use super::c_int;

    pub const MAX_WR: c_int = 1;
    pub const LIMIT: c_int = 1 << 1;
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct SrqAttr {
    /// Receives.
    pub max_wr: u32,
    /// Elements of a receive.
    pub max_sge: u32,
    /// The limit event is raised when fewer receives than this remain.
    pub srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub struct SrqInitAttr {
    /// Pointer of the program.
    pub srq_context: *mut c_void,
    /// Sizes.
    pub attr: SrqAttr,
}

/// `struct ibv_async_event`; the element is a pointer or a port number.
#[repr(C)]
pub struct AsyncEvent {
    /// The affected object.
    pub element: *mut c_void,
    /// `ibv_event_type`.
    pub event_type: c_int,
}
