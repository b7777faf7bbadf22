//! Objects that the library allocates and programs look into.

use std::ffi::{c_int, c_void};

use farcall_verbs::{RecvWr, SendWr, Wc};

/// `IBV_TRANSPORT_IWARP`.
pub const TRANSPORT_IWARP: c_int = 1;

/// `struct ibv_device`, as far as it is read.
#[repr(C)]
pub struct Device {
    ops: [*mut c_void; 2],
    /// Kind of node.
    pub node_type: c_int,
    /// Kind of network.
    pub transport_type: c_int,
}

/// `poll_cq` of a device: how many completions, or negative.
pub type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
/// `req_notify_cq` of a device: 0 or an error number.
pub type ReqNotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
/// `post_send` of a device: 0 or an error number, and then the request that was refused.
pub type PostSend =
    unsafe extern "C" fn(*mut Qp, *const SendWr<'static>, *mut *const SendWr<'static>) -> c_int;
/// `post_recv` of a device, as [`PostSend`].
pub type PostRecv =
    unsafe extern "C" fn(*mut Qp, *const RecvWr<'static>, *mut *const RecvWr<'static>) -> c_int;
/// `post_srq_recv` of a device, as [`PostSend`].
pub type PostSrqRecv =
    unsafe extern "C" fn(*mut Srq, *const RecvWr<'static>, *mut *const RecvWr<'static>) -> c_int;

/// `struct ibv_context_ops`: what the header's inline functions call. The other entries are of no use to programs.
#[repr(C)]
pub struct ContextOps {
    before_poll_cq: [*mut c_void; 11],
    /// Takes completions.
    pub poll_cq: PollCq,
    /// Asks for an event.
    pub req_notify_cq: ReqNotifyCq,
    before_post_srq_recv: [*mut c_void; 7],
    /// Posts receives to a shared queue; absent where there are none.
    pub post_srq_recv: Option<PostSrqRecv>,
    before_post_send: [*mut c_void; 4],
    /// Posts sends.
    pub post_send: PostSend,
    /// Posts receives.
    pub post_recv: PostRecv,
    after_post_recv: [*mut c_void; 5],
}

/// `struct ibv_context`, as far as it is read.
#[repr(C)]
pub struct Context {
    /// The device it was opened from.
    pub device: *mut Device,
    /// Its functions.
    pub ops: ContextOps,
    /// The descriptor of the device node.
    pub cmd_fd: c_int,
    /// The descriptor of asynchronous events.
    pub async_fd: c_int,
}

/// `struct ibv_pd`: a name only.
#[repr(C)]
pub struct Pd {
    context: *mut Context,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    /// First byte.
    pub addr: *mut c_void,
    /// Length in bytes.
    pub length: usize,
    handle: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// `struct ibv_comp_channel`, as far as it is read.
#[repr(C)]
pub struct CompChannel {
    context: *mut Context,
    /// The descriptor that polls readable.
    pub fd: c_int,
}

/// `struct ibv_cq`, as far as it is read.
#[repr(C)]
pub struct Cq {
    /// The device it is of.
    pub context: *mut Context,
    channel: *mut CompChannel,
    /// What its owner gave.
    pub cq_context: *mut c_void,
    handle: u32,
    /// Completions it holds.
    pub cqe: c_int,
}

/// `struct ibv_srq`, as far as it is read.
#[repr(C)]
pub struct Srq {
    /// The device it is of.
    pub context: *mut Context,
    /// What its owner gave.
    pub srq_context: *mut c_void,
}

/// `struct ibv_qp`, as far as it is read.
#[repr(C)]
pub struct Qp {
    /// The device it is of.
    pub context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut Srq,
    handle: u32,
    /// Its number.
    pub qp_num: u32,
}

/// `struct ibv_ah`: a name only.
#[repr(C)]
pub struct Ah {
    context: *mut Context,
}
