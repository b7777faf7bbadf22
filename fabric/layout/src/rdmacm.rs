//! librdmacm's structures (`rdma/rdma_cma.h`).

use std::ffi::{c_char, c_int, c_void};

use crate::{AhAttr, CompChannel, Context, Cq, Pd, Qp, Srq};

/// `struct rdma_event_channel`.
#[repr(C)]
pub struct EventChannel {
    pub fd: c_int,
}

/// `struct rdma_ib_addr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct IbAddr {
    pub sgid: [u8; 16],
    pub dgid: [u8; 16],
    pub pkey_be: u16,
}

/// `struct rdma_addr`.
#[repr(C)]
pub struct Addr {
    pub src_storage: libc::sockaddr_storage,
    pub dst_storage: libc::sockaddr_storage,
    pub ib: IbAddr,
}

/// `struct ibv_sa_path_rec`.
#[repr(C, align(8))]
pub struct PathRecord {
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid_be: u16,
    pub slid_be: u16,
    pub raw_traffic: c_int,
    pub flow_label_be: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey_be: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

/// `struct rdma_route`.
#[repr(C)]
pub struct Route {
    pub addr: Addr,
    pub path_rec: *mut PathRecord,
    pub num_paths: c_int,
}

/// `struct rdma_cm_id`.
#[repr(C)]
pub struct CmId {
    pub verbs: *mut Context,
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub route: Route,
    pub ps: u32,
    pub port_num: u8,
    pub event: *mut CmEvent,
    pub send_cq_channel: *mut CompChannel,
    pub send_cq: *mut Cq,
    pub recv_cq_channel: *mut CompChannel,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub pd: *mut Pd,
    pub qp_type: u32,
}

/// `struct rdma_conn_param`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// `struct rdma_ud_param`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: AhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// Parameters of an event, in addition to its type.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Param {
    pub conn: ConnParam,
    pub ud: UdParam,
}

/// `struct rdma_cm_event`.
#[repr(C)]
pub struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: u32,
    pub status: c_int,
    pub param: Param,
}

/// `struct rdma_addrinfo`.
#[derive(Default)]
#[repr(C)]
pub struct AddrInfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: libc::socklen_t,
    pub ai_dst_len: libc::socklen_t,
    pub ai_src_addr: *mut libc::sockaddr,
    pub ai_dst_addr: *mut libc::sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut AddrInfo,
}

macro_rules! events {
    ($($name:ident = $number:literal,)*) => {
        /// `enum rdma_cm_event_type`.
        pub mod event {
            use std::ffi::CStr;

            $(pub const $name: u32 = $number;)*

            /// `RDMA_CM_EVENT_*` names by number.
            pub const NAMES: [&CStr; 16] = [$(
                match CStr::from_bytes_with_nul(concat!("RDMA_CM_EVENT_", stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without a zero inside"),
                },
            )*];
        }
    };
}

events! {
    ADDR_RESOLVED = 0,
    ADDR_ERROR = 1,
    ROUTE_RESOLVED = 2,
    ROUTE_ERROR = 3,
    CONNECT_REQUEST = 4,
    CONNECT_RESPONSE = 5,
    CONNECT_ERROR = 6,
    UNREACHABLE = 7,
    REJECTED = 8,
    ESTABLISHED = 9,
    DISCONNECTED = 10,
    DEVICE_REMOVAL = 11,
    MULTICAST_JOIN = 12,
    MULTICAST_ERROR = 13,
    ADDR_CHANGE = 14,
    TIMEWAIT_EXIT = 15,
}

/// `RAI_*`.
pub mod addr_flags {
    use std::ffi::c_int;

    /// The address is for listening.
    pub const PASSIVE: c_int = 1;
    /// The node is a numeric address, not a name.
    pub const NUMERICHOST: c_int = 2;
    /// Do not resolve the route.
    pub const NOROUTE: c_int = 4;
    /// The address family of the hints is significant.
    pub const FAMILY: c_int = 8;
}

/// `RDMA_OPTION_*` of level `RDMA_OPTION_ID`.
pub mod option {
    use std::ffi::c_int;

    /// Level of the following options.
    pub const LEVEL_ID: c_int = 0;
    /// The type of service, a byte.
    pub const TOS: c_int = 0;
    /// Whether a port may be bound more than once, an int.
    pub const REUSEADDR: c_int = 1;
    /// Whether an IPv6 listener accepts IPv6 only, an int.
    pub const AFONLY: c_int = 2;
    /// Acknowledgement timeout: 4.096 µs × 2 to this power, a byte.
    pub const ACK_TIMEOUT: c_int = 3;
}

/// `RDMA_UDP_QKEY`: Q_Key of the connection managers' datagram queue pairs.
pub const UDP_QKEY: u32 = 0x0123_4567;
/// `RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`: the device's maximum.
pub const AS_MANY_AS_POSSIBLE: u8 = 0xff;
