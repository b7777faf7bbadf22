//! Objects to which programs hold pointers, with the function table that the header's inline functions use.

use std::ffi::{c_char, c_int, c_void};

use farcall_verbs::{RecvWr, SendWr, Wc};

/// A function that this library does not support: the header's inline functions find null and return `EOPNOTSUPP`.
pub type Absent = *const c_void;

/// Value of [`Absent`] functions.
pub const ABSENT: Absent = std::ptr::null();

/// `abi_compat` of a context that is part of a [`VerbsContext`](crate::VerbsContext).
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

/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// `struct ibv_srq`.
#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut Pd,
    pub handle: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

/// `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

/// `struct ibv_ah`.
#[repr(C)]
pub struct Ah {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub handle: u32,
}
