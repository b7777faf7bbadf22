//! What a case asks of one end, and what the end answers: plain data, so that the end may live in another process.
//!
//! Both ends of a line speak the same version ([`VERSION`]); it counts up with every change of these types.

use serde::{Deserialize, Serialize};

use farcall_verbs::{
    Access, AhAttr, AsyncEvent, AtomicTarget, DeviceAttr, Gid, PortAttr, QpAttr, QpCap, QpState, QpType,
    RdmaTarget, SendFlags, Sge, Wc, WrOpcode,
};

/// The version of [`Call`], [`Answer`] and [`Refusal`].
pub const VERSION: u32 = 3;

/// An object of an end. Numbers are not used again before the end is reset.
pub type Handle = u32;

/// The part of a send request that depends on its operation.
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
        /// Address handle of the end that sends.
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
    /// Returned in the completion.
    pub wr_id: u64,
    /// Any number can be tried.
    pub opcode: WrOpcode,
    /// Any bits can be tried.
    pub flags: SendFlags,
    /// Immediate data in host byte order.
    pub imm: u32,
    /// Gather list.
    pub sges: Vec<Sge>,
    /// Where it goes.
    pub target: Target,
}

/// A receive request (`ibv_recv_wr`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecvRequest {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Scatter list.
    pub sges: Vec<Sge>,
}

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInit {
    /// Its domain.
    pub pd: Handle,
    /// Where completions of sends go.
    pub send_cq: Handle,
    /// Where completions of receives go.
    pub recv_cq: Handle,
    /// A shared receive queue.
    pub srq: Option<Handle>,
    /// Transport.
    pub qp_type: QpType,
    /// Whether every send is signalled.
    pub signal_all: bool,
    /// The sizes asked for.
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

/// What an end is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// What device is this?
    About,
    /// `ibv_alloc_pd`.
    AllocPd,
    /// Memory from the provider.
    AllocMr {
        /// Domain.
        pd: Handle,
        /// Bytes.
        len: u64,
        /// What it allows.
        access: Access,
    },
    /// `ibv_reg_mr`.
    RegMr {
        /// Domain.
        pd: Handle,
        /// What memory.
        memory: Memory,
        /// Bytes.
        len: u64,
        /// What it allows.
        access: Access,
    },
    /// `ibv_dereg_mr`; the memory stays until [`Call::Destroy`] where it is not the provider's.
    Dereg(Handle),
    /// `ibv_create_comp_channel`.
    CreateChannel,
    /// `ibv_create_cq`.
    CreateCq {
        /// Completions it holds at least.
        cqe: u32,
        /// Where its events go.
        channel: Option<Handle>,
    },
    /// `ibv_create_srq`.
    CreateSrq {
        /// Domain.
        pd: Handle,
        /// Receives it holds.
        max_wr: u32,
        /// Elements in one.
        max_sge: u32,
    },
    /// `ibv_create_qp`.
    CreateQp(QpInit),
    /// `ibv_create_ah`.
    CreateAh {
        /// Domain.
        pd: Handle,
        /// To where.
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
    /// The state of a queue pair.
    State(Handle),
    /// `ibv_post_send`.
    PostSend {
        /// Queue pair.
        qp: Handle,
        /// In this order.
        requests: Vec<SendRequest>,
    },
    /// `ibv_post_recv`, `ibv_post_srq_recv`.
    PostRecv {
        /// Queue pair or shared receive queue.
        queue: Handle,
        /// In this order.
        requests: Vec<RecvRequest>,
    },
    /// `ibv_poll_cq`.
    Poll {
        /// Completion queue.
        cq: Handle,
        /// At most so many.
        max: u32,
    },
    /// `ibv_req_notify_cq`.
    Arm {
        /// Completion queue.
        cq: Handle,
        /// Only for solicited or failed completions.
        solicited_only: bool,
    },
    /// `ibv_get_cq_event`, without blocking, and acknowledged.
    TakeCqEvent(Handle),
    /// Sleeps until the channel's descriptor is readable.
    Sleep {
        /// Completion channel.
        channel: Handle,
        /// But not longer.
        timeout_ms: u32,
    },
    /// `ibv_get_async_event`, without blocking, and acknowledged.
    TakeAsync,
    /// Writes memory of a region.
    Put {
        /// Region.
        mr: Handle,
        /// From its start.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Reads memory of a region.
    Get {
        /// Region.
        mr: Handle,
        /// From its start.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Arms a shared receive queue's limit event (`ibv_modify_srq`).
    ArmSrq {
        /// Shared receive queue.
        srq: Handle,
        /// Fewer receives than this raise the event.
        limit: u32,
    },
    /// Destroys everything and forgets all events.
    Reset,
}

impl Call {
    /// Its name, for reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::About => "query_device",
            Self::AllocPd => "alloc_pd",
            Self::AllocMr { .. } => "alloc_mr",
            Self::RegMr { .. } => "reg_mr",
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

/// What device an end has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The provider.
    pub provider: String,
    /// The device.
    pub device: DeviceAttr,
    /// Its port 1.
    pub port: PortAttr,
    /// The GID that others reach it by.
    pub gid: Gid,
    /// Its index.
    pub gid_index: u8,
}

/// A region as a case knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mr {
    /// Its number.
    pub handle: Handle,
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// A queue pair as a case knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qp {
    /// Its number at the end.
    pub handle: Handle,
    /// Its number on the wire.
    pub qpn: u32,
    /// The sizes it really has.
    pub cap: QpCap,
}

/// A completion queue as a case knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cq {
    /// Its number at the end.
    pub handle: Handle,
    /// What its events carry.
    pub id: u32,
}

/// What an end answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// [`Call::About`].
    About(About),
    /// An object was made.
    Made(Handle),
    /// A region was made.
    Mr(Mr),
    /// A queue pair was made.
    Qp(Qp),
    /// A completion queue was made.
    Cq(Cq),
    /// A shared receive queue was made: its number at the end and in events.
    Srq(Handle, u32),
    /// [`Call::State`].
    State(QpState),
    /// [`Call::Poll`].
    Completions(Vec<Wc>),
    /// [`Call::TakeCqEvent`].
    CqEvent(Option<u32>),
    /// [`Call::Sleep`]: whether the descriptor is readable.
    Readable(bool),
    /// [`Call::TakeAsync`].
    Async(Option<AsyncEvent>),
    /// [`Call::Get`].
    Bytes(Vec<u8>),
    /// [`Call::Dereg`]: whether no peer accesses the memory any more.
    Revoked(bool),
}

/// Why a call was refused, as far as cases ask: what [`farcall_verbs::Error`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// Not offered.
    Unsupported,
    /// Something is full.
    Exhausted,
    /// Something else that the provider says.
    Other,
    /// Not the provider: the case or the line to the end is wrong.
    Harness,
}

/// A call that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{call}: {text}")]
pub struct Refusal {
    /// Which call.
    pub call: String,
    /// Why.
    pub reason: Reason,
    /// In words.
    pub text: String,
    /// Posting: how many requests of the batch were posted.
    pub posted: usize,
}

impl Refusal {
    /// Something is wrong with the case or the line, not with the provider.
    pub fn harness(call: &str, text: impl Into<String>) -> Self {
        Self { call: call.into(), reason: Reason::Harness, text: text.into(), posted: 0 }
    }
}
