//! Calls of a case to one end, and answers of the end: plain data, so that the end may be in another process.
//!
//! Both sides of a stream use the same version ([`VERSION`]), which is incremented with every change of these types.

use serde::{Deserialize, Serialize};

use farcall_verbs::{
    Access, AhAttr, AsyncEvent, AtomicTarget, DeviceAttr, Gid, PortAttr, QpAttr, QpCap, QpState, QpType,
    RdmaTarget, SendFlags, Sge, Wc, WrOpcode,
};

/// Version of [`Call`], [`Answer`] and [`Refusal`].
pub const VERSION: u32 = 3;

/// An object of an end. Handles are not reused before the end is reset.
pub type Handle = u32;

/// Part of a send request that depends on its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// A SEND over a connection.
    Connection,
    /// WRITE and READ.
    Memory(RdmaTarget),
    /// CAS and FAA.
    Atomic(AtomicTarget),
    /// A datagram.
    Datagram {
        /// Address handle of the sending end.
        ah: Handle,
        /// Queue pair number at the target.
        qpn: u32,
        /// Q_Key.
        qkey: u32,
    },
}

/// A send request (`ibv_send_wr`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendRequest {
    /// Identifier that the completion returns.
    pub wr_id: u64,
    /// Operation code; cases also use invalid ones.
    pub opcode: WrOpcode,
    /// Flags; cases also use invalid ones.
    pub flags: SendFlags,
    /// Immediate data in host byte order.
    pub imm: u32,
    /// Gather list.
    pub sges: Vec<Sge>,
    /// Target of the request.
    pub target: Target,
}

/// A receive request (`ibv_recv_wr`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecvRequest {
    /// Identifier that the completion returns.
    pub wr_id: u64,
    /// Scatter list.
    pub sges: Vec<Sge>,
}

/// Parameters of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInit {
    /// Protection domain.
    pub pd: Handle,
    /// Completion queue of sends.
    pub send_cq: Handle,
    /// Completion queue of receives.
    pub recv_cq: Handle,
    /// Shared receive queue, if any.
    pub srq: Option<Handle>,
    /// Transport.
    pub qp_type: QpType,
    /// `true` if every send is signalled.
    pub signal_all: bool,
    /// Requested sizes.
    pub cap: QpCap,
}

/// Memory to register that the provider did not allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Memory {
    /// The private heap, at an odd address.
    Heap,
    /// The stack of a thread.
    Stack,
    /// A file mapped shared.
    SharedFile,
    /// A file mapped private.
    PrivateFile,
    /// Anonymous pages without write permission.
    ReadOnly,
    /// Huge pages.
    HugePages,
}

/// A call to an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Queries the device.
    About,
    /// `ibv_alloc_pd`.
    AllocPd,
    /// Allocates and registers memory of the provider.
    AllocMr {
        /// Domain.
        pd: Handle,
        /// Length in bytes.
        len: u64,
        /// Allowed accesses.
        access: Access,
    },
    /// `ibv_reg_mr`.
    RegMr {
        /// Domain.
        pd: Handle,
        /// Kind of memory.
        memory: Memory,
        /// Length in bytes.
        len: u64,
        /// Allowed accesses.
        access: Access,
    },
    /// `ibv_dereg_mr`; memory that is not the provider's remains allocated until [`Call::Destroy`].
    Dereg(Handle),
    /// `ibv_create_comp_channel`.
    CreateChannel,
    /// `ibv_create_cq`.
    CreateCq {
        /// Minimum number of completions that it can hold.
        cqe: u32,
        /// Channel of its events.
        channel: Option<Handle>,
    },
    /// `ibv_create_srq`.
    CreateSrq {
        /// Domain.
        pd: Handle,
        /// Number of receives that it can hold.
        max_wr: u32,
        /// Maximum number of elements of a receive.
        max_sge: u32,
    },
    /// `ibv_create_qp`.
    CreateQp(QpInit),
    /// `ibv_create_ah`.
    CreateAh {
        /// Domain.
        pd: Handle,
        /// Destination.
        path: AhAttr,
    },
    /// Destroys an object.
    Destroy(Handle),
    /// `ibv_modify_qp`.
    Modify {
        /// Queue pair.
        qp: Handle,
        /// Changes.
        change: QpAttr,
    },
    /// Returns the state of a queue pair.
    State(Handle),
    /// `ibv_post_send`.
    PostSend {
        /// Queue pair.
        qp: Handle,
        /// Requests, in order.
        requests: Vec<SendRequest>,
    },
    /// `ibv_post_recv`, `ibv_post_srq_recv`.
    PostRecv {
        /// Queue pair or shared receive queue.
        queue: Handle,
        /// Requests, in order.
        requests: Vec<RecvRequest>,
    },
    /// `ibv_poll_cq`.
    Poll {
        /// Completion queue.
        cq: Handle,
        /// Maximum number of completions.
        max: u32,
    },
    /// `ibv_req_notify_cq`.
    Arm {
        /// Completion queue.
        cq: Handle,
        /// `true` if only solicited or failed completions raise the event.
        solicited_only: bool,
    },
    /// `ibv_get_cq_event` without blocking, followed by an acknowledgement.
    TakeCqEvent(Handle),
    /// Sleeps until the channel's descriptor is readable.
    Sleep {
        /// Completion channel.
        channel: Handle,
        /// Timeout in milliseconds.
        timeout_ms: u32,
    },
    /// `ibv_get_async_event` without blocking, followed by an acknowledgement.
    TakeAsync,
    /// Writes memory of a region.
    Put {
        /// Region.
        mr: Handle,
        /// Offset from its start in bytes.
        offset: u64,
        /// Bytes to write.
        bytes: Vec<u8>,
    },
    /// Reads memory of a region.
    Get {
        /// Region.
        mr: Handle,
        /// Offset from its start in bytes.
        offset: u64,
        /// Number of bytes.
        len: u32,
    },
    /// Arms a shared receive queue's limit event (`ibv_modify_srq`).
    ArmSrq {
        /// Shared receive queue.
        srq: Handle,
        /// The event is raised when fewer receives than this are posted.
        limit: u32,
    },
    /// Destroys all objects and drops all events.
    Reset,
    /// `ibv_reg_mr` of memory that a region of [`Call::RegMr`] covers already.
    RegPart {
        /// Domain.
        pd: Handle,
        /// Region that covers the memory.
        of: Handle,
        /// Offset from its start in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Allowed accesses.
        access: Access,
    },
}

impl Call {
    /// Returns its name, for reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::About => "query_device",
            Self::AllocPd => "alloc_pd",
            Self::AllocMr { .. } => "alloc_mr",
            Self::RegMr { .. } | Self::RegPart { .. } => "reg_mr",
            Self::Dereg(_) => "dereg_mr",
            Self::CreateChannel => "create_comp_channel",
            Self::CreateCq { .. } => "create_cq",
            Self::CreateSrq { .. } => "create_srq",
            Self::CreateQp(_) => "create_qp",
            Self::CreateAh { .. } => "create_ah",
            Self::Destroy(_) => "destroy",
            Self::Modify { .. } => "modify_qp",
            Self::State(_) => "query_qp",
            Self::PostSend { .. } => "post_send",
            Self::PostRecv { .. } => "post_recv",
            Self::Poll { .. } => "poll_cq",
            Self::Arm { .. } => "req_notify_cq",
            Self::TakeCqEvent(_) => "get_cq_event",
            Self::Sleep { .. } => "sleep on a channel",
            Self::TakeAsync => "get_async_event",
            Self::Put { .. } => "write memory",
            Self::Get { .. } => "read memory",
            Self::ArmSrq { .. } => "modify_srq",
            Self::Reset => "reset",
        }
    }
}

/// Description of the device of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Name of the provider.
    pub provider: String,
    /// Attributes of the device.
    pub device: DeviceAttr,
    /// Attributes of its port 1.
    pub port: PortAttr,
    /// GID at which others reach it.
    pub gid: Gid,
    /// Index of the GID.
    pub gid_index: u8,
}

/// A region, as a case refers to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mr {
    /// Handle.
    pub handle: Handle,
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// A queue pair, as a case refers to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qp {
    /// Handle at the end.
    pub handle: Handle,
    /// Queue pair number.
    pub qpn: u32,
    /// Actual sizes.
    pub cap: QpCap,
}

/// A completion queue, as a case refers to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cq {
    /// Handle at the end.
    pub handle: Handle,
    /// Identifier in its events.
    pub id: u32,
}

/// Answer of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The call succeeded without a result.
    Done,
    /// [`Call::About`].
    About(About),
    /// An object was created.
    Made(Handle),
    /// A region was created.
    Mr(Mr),
    /// A queue pair was created.
    Qp(Qp),
    /// A completion queue was created.
    Cq(Cq),
    /// A shared receive queue was created: its handle, and its number in events.
    Srq(Handle, u32),
    /// [`Call::State`].
    State(QpState),
    /// [`Call::Poll`].
    Completions(Vec<Wc>),
    /// [`Call::TakeCqEvent`].
    CqEvent(Option<u32>),
    /// [`Call::Sleep`]: `true` if the descriptor is readable.
    Readable(bool),
    /// [`Call::TakeAsync`].
    Async(Option<AsyncEvent>),
    /// [`Call::Get`].
    Bytes(Vec<u8>),
    /// [`Call::Dereg`]: `true` if no peer can access the memory any more.
    Revoked(bool),
}

/// Reason why a call was refused, as far as cases distinguish it; derived from [`farcall_verbs::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The provider does not support it.
    Unsupported,
    /// A resource is exhausted.
    Exhausted,
    /// Another error of the provider.
    Other,
    /// Not an error of the provider: the case or the stream to the end is faulty.
    Harness,
}

/// A refused call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{call}: {text}")]
pub struct Refusal {
    /// Name of the call.
    pub call: String,
    /// Reason.
    pub reason: Reason,
    /// Reason as text.
    pub text: String,
    /// Posting: number of requests of the batch that were posted.
    pub posted: usize,
}

impl Refusal {
    /// Creates the refusal for a fault of the case or of the stream, not of the provider.
    pub fn harness(call: &str, text: impl Into<String>) -> Self {
        Self { call: call.into(), reason: Reason::Harness, text: text.into(), posted: 0 }
    }
}
