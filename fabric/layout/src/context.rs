//! Devices and contexts, with the function tables that the header's inline functions use.

use std::ffi::{c_char, c_int, c_uint, c_void};

use farcall_verbs::{RecvWr, SendWr, Wc};

use crate::{Cq, CqEx, CqInitAttrEx, DeviceAttrEx, PortAttr, Qp, QpInitAttrEx, Srq, SrqInitAttrEx, Values};

/// A function that this library does not support: the header's inline functions find null and return `EOPNOTSUPP`.
pub type Absent = *const c_void;

/// Value of [`Absent`] functions.
pub const ABSENT: Absent = std::ptr::null();

/// `abi_compat` of a context that is part of a [`VerbsContext`].
pub const EXTENDED: *mut c_void = usize::MAX as *mut c_void;

/// `IBV_TRANSPORT_IWARP`.
pub const TRANSPORT_IWARP: c_int = 1;

/// `struct ibv_device`.
#[repr(C)]
pub struct Device {
    pub ops: [Absent; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

/// Function that posts a chain of requests to a queue. Returns 0, or an error number and the refused request.
pub type Post<Queue, Wr> = unsafe extern "C" fn(*mut Queue, *mut Wr, *mut *mut Wr) -> c_int;

/// `struct ibv_context_ops`.
#[repr(C)]
pub struct ContextOps {
    pub before_poll_cq: [Absent; 11],
    /// Returns the number of completions taken, or a negative number.
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    pub before_post_srq_recv: [Absent; 7],
    /// `None` if the device has no shared receive queues.
    pub post_srq_recv: Option<Post<Srq, RecvWr<'static>>>,
    pub before_post_send: [Absent; 4],
    pub post_send: Post<Qp, SendWr<'static>>,
    pub post_recv: Post<Qp, RecvWr<'static>>,
    pub after_post_recv: [Absent; 5],
}

/// `struct ibv_context`.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: *mut c_void,
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
