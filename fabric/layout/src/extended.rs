//! The extended context, queue pair and completion queue, which contain function tables.

use std::ffi::{c_int, c_uint, c_void};

use farcall_verbs::Sge;

use crate::{Absent, Ah, CompChannel, Context, Cq, DeviceAttr, Pd, PortAttr, Qp, QpCap, Srq, SrqAttr};

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
pub struct CqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut CompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut Pd,
}

/// `struct ibv_cq_ex`: begins like [`Cq`].
#[repr(C)]
pub struct CqEx {
    pub base: Cq,
    pub comp_mask: u32,
    pub status: u32,
    pub wr_id: u64,
    pub start_poll: unsafe extern "C" fn(*mut CqEx, *mut c_uint) -> c_int,
    pub next_poll: unsafe extern "C" fn(*mut CqEx) -> c_int,
    pub end_poll: unsafe extern "C" fn(*mut CqEx),
    pub read_opcode: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_vendor_err: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_byte_len: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_imm_data: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_qp_num: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_src_qp: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_wc_flags: unsafe extern "C" fn(*mut CqEx) -> c_uint,
    pub read_slid: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_sl: unsafe extern "C" fn(*mut CqEx) -> u8,
    pub read_dlid_path_bits: unsafe extern "C" fn(*mut CqEx) -> u8,
    pub read_completion_ts: unsafe extern "C" fn(*mut CqEx) -> u64,
    pub read_cvlan: Absent,
    pub read_flow_tag: Absent,
    pub read_tm_info: Absent,
    pub read_completion_wallclock_ns: unsafe extern "C" fn(*mut CqEx) -> u64,
}

/// `struct ibv_data_buf`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}

/// `struct ibv_qp_ex`.
#[repr(C)]
pub struct QpEx {
    pub qp_base: Qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64),
    pub wr_atomic_fetch_add: unsafe extern "C" fn(*mut QpEx, u32, u64, u64),
    pub wr_bind_mw: Absent,
    pub wr_local_inv: Absent,
    pub wr_rdma_read: unsafe extern "C" fn(*mut QpEx, u32, u64),
    pub wr_rdma_write: unsafe extern "C" fn(*mut QpEx, u32, u64),
    pub wr_rdma_write_imm: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    pub wr_send: unsafe extern "C" fn(*mut QpEx),
    pub wr_send_imm: unsafe extern "C" fn(*mut QpEx, u32),
    pub wr_send_inv: Absent,
    pub wr_send_tso: Absent,
    pub wr_set_ud_addr: unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32),
    pub wr_set_xrc_srqn: Absent,
    pub wr_set_inline_data: unsafe extern "C" fn(*mut QpEx, *mut c_void, usize),
    pub wr_set_inline_data_list: unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf),
    pub wr_set_sge: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    pub wr_set_sge_list: unsafe extern "C" fn(*mut QpEx, usize, *const Sge),
    pub wr_start: unsafe extern "C" fn(*mut QpEx),
    pub wr_complete: unsafe extern "C" fn(*mut QpEx) -> c_int,
    pub wr_abort: unsafe extern "C" fn(*mut QpEx),
    pub wr_atomic_write: Absent,
    /// `wr_flush` of later headers.
    pub wr_flush: Absent,
}

/// `struct ibv_qp_init_attr_ex`.
#[repr(C)]
pub struct QpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut Pd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

/// `struct ibv_srq_init_attr_ex`, up to the last field that is read.
#[repr(C)]
pub struct SrqInitAttrEx {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
    pub comp_mask: u32,
    pub srq_type: u32,
    pub pd: *mut Pd,
}

/// `struct ibv_device_attr_ex`. Fields without a name are zero: paging, offloads, hashing, pacing, tag matching.
#[repr(C)]
pub struct DeviceAttrEx {
    pub orig_attr: DeviceAttr,
    pub comp_mask: u32,
    pub odp_caps: [u64; 3],
    pub completion_timestamp_mask: u64,
    pub hca_core_clock_khz: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: [u32; 2],
    pub rss_caps: [u64; 4],
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: [u32; 3],
    pub raw_packet_caps: u32,
    pub tm_caps: [u32; 5],
    pub cq_mod_caps: [u16; 2],
    pub max_dm_size: u64,
    pub pci_atomic_caps: [u16; 3],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}

/// `struct ibv_gid_entry`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct GidEntry {
    pub gid: [u8; 16],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `struct ibv_values_ex`.
#[repr(C)]
pub struct Values {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}

/// `struct verbs_context`: the extended functions, then `sz`, then the context. Later versions add fields at its
/// beginning.
#[repr(C)]
pub struct VerbsContext {
    pub query_port: unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int,
    pub before_query_rt_values: [Absent; 23],
    pub query_rt_values: unsafe extern "C" fn(*mut Context, *mut Values) -> c_int,
    pub create_cq_ex: unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx,
    /// Reserved for libibverbs.
    pub private: *mut c_void,
    pub query_device_ex: unsafe extern "C" fn(*mut Context, *const c_uint, *mut DeviceAttrEx, usize) -> c_int,
    pub flows: [Absent; 4],
    pub open_qp: Absent,
    pub create_qp_ex: unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp,
    pub get_srq_num: Absent,
    pub create_srq_ex: unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq,
    pub xrc_domains: [Absent; 2],
    pub placeholder: u64,
    /// `sizeof(struct verbs_context)`.
    pub size_bytes: usize,
    pub context: Context,
}
