//! What a case asks of one end, and what the end answers: plain data, so that the end may live in another process.
//!
//! Both ends of a line speak the same version ([`VERSION`]); it counts up with every change of these types.

use serde::{Deserialize, Serialize};

use farcall_verbs::{
    Access, AhAttr, AsyncEventKind, Gid, Mtu, QpAttr, QpCap, QpState, QpType, RnrTimer, Wc, WcFlags,
    WcOpcode, WcStatus,
};

/// The version of [`Call`], [`Answer`] and [`Refusal`].
pub const VERSION: u32 = 1;

/// An object of an end. Numbers are not used again before the end is reset.
pub type Handle = u32;

/// A gather or scatter element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Address in the end's process.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key.
    pub lkey: u32,
}

/// The part of a send request that depends on its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// A SEND over a connection.
    Peer,
    /// WRITE and READ.
    Memory {
        /// Address at the target.
        addr: u64,
        /// Remote key.
        rkey: u32,
    },
    /// CAS and FAA.
    Atomic {
        /// Address at the target.
        addr: u64,
        /// Remote key.
        rkey: u32,
        /// What to compare with, or to add.
        compare_add: u64,
        /// What to store if equal.
        swap: u64,
    },
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
    /// libibverbs' number of the operation; any number can be tried.
    pub opcode: u32,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// Immediate data in host byte order.
    pub imm: u32,
    /// Gather list.
    pub pieces: Vec<Piece>,
    /// Where it goes.
    pub target: Target,
}

/// A receive request (`ibv_recv_wr`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecvRequest {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Scatter list.
    pub pieces: Vec<Piece>,
}

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpMake {
    /// Its domain.
    pub pd: Handle,
    /// Where completions of sends go.
    pub send_cq: Handle,
    /// Where completions of receives go.
    pub recv_cq: Handle,
    /// A shared receive queue.
    pub srq: Option<Handle>,
    /// libibverbs' number of the transport.
    pub qp_type: u32,
    /// Whether every send is signalled.
    pub signal_all: bool,
    /// Outstanding sends.
    pub max_send_wr: u32,
    /// Outstanding receives.
    pub max_recv_wr: u32,
    /// Elements in a send.
    pub max_send_sge: u32,
    /// Elements in a receive.
    pub max_recv_sge: u32,
    /// Bytes inline.
    pub max_inline_data: u32,
}

impl QpMake {
    /// The sizes asked for.
    pub fn cap(&self) -> QpCap {
        QpCap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline_data: self.max_inline_data,
        }
    }

    /// The transport; `None` if the number is none of ours.
    pub fn transport(&self) -> Option<QpType> {
        [QpType::Rc, QpType::Uc, QpType::Ud].into_iter().find(|qp_type| *qp_type as u32 == self.qp_type)
    }
}

/// A path (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Our own GID's index.
    pub sgid_index: u8,
    /// Destination LID.
    pub dlid: u16,
    /// Our port.
    pub port_num: u8,
}

impl From<AhAttr> for Path {
    fn from(ah: AhAttr) -> Self {
        Self { dgid: ah.dgid.0, sgid_index: ah.sgid_index, dlid: ah.dlid, port_num: ah.port_num }
    }
}

impl From<Path> for AhAttr {
    fn from(path: Path) -> Self {
        Self {
            dgid: Gid(path.dgid),
            sgid_index: path.sgid_index,
            dlid: path.dlid,
            port_num: path.port_num,
            ..Self::default()
        }
    }
}

/// Changes of a queue pair: [`QpAttr`] as plain numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    state: Option<u32>,
    port_num: Option<u8>,
    pkey_index: Option<u16>,
    access: Option<u32>,
    qkey: Option<u32>,
    path_mtu: Option<u32>,
    dest_qp_num: Option<u32>,
    rq_psn: Option<u32>,
    ah: Option<Path>,
    max_dest_rd_atomic: Option<u8>,
    min_rnr_timer: Option<u8>,
    sq_psn: Option<u32>,
    timeout: Option<u8>,
    retry_cnt: Option<u8>,
    rnr_retry: Option<u8>,
    max_rd_atomic: Option<u8>,
    en_sqd_async_notify: Option<bool>,
}

impl From<QpAttr> for Change {
    fn from(attr: QpAttr) -> Self {
        Self {
            state: attr.state.map(|state| state as u32),
            port_num: attr.port_num,
            pkey_index: attr.pkey_index,
            access: attr.access.map(|access| access.bits()),
            qkey: attr.qkey,
            path_mtu: attr.path_mtu.map(|mtu| mtu as u32),
            dest_qp_num: attr.dest_qp_num,
            rq_psn: attr.rq_psn,
            ah: attr.ah.map(Path::from),
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer.map(|timer| timer.0),
            sq_psn: attr.sq_psn,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            max_rd_atomic: attr.max_rd_atomic,
            en_sqd_async_notify: attr.en_sqd_async_notify,
        }
    }
}

impl From<Change> for QpAttr {
    fn from(change: Change) -> Self {
        Self {
            state: change.state.map(state_from),
            port_num: change.port_num,
            pkey_index: change.pkey_index,
            access: change.access.map(Access::from_bits_retain),
            qkey: change.qkey,
            path_mtu: change.path_mtu.map(mtu_from),
            dest_qp_num: change.dest_qp_num,
            rq_psn: change.rq_psn,
            ah: change.ah.map(AhAttr::from),
            max_dest_rd_atomic: change.max_dest_rd_atomic,
            min_rnr_timer: change.min_rnr_timer.map(RnrTimer),
            sq_psn: change.sq_psn,
            timeout: change.timeout,
            retry_cnt: change.retry_cnt,
            rnr_retry: change.rnr_retry,
            max_rd_atomic: change.max_rd_atomic,
            en_sqd_async_notify: change.en_sqd_async_notify,
        }
    }
}

/// The state of a number; foreign numbers are [`QpState::Err`].
pub fn state_from(number: u32) -> QpState {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    [Reset, Init, Rtr, Rts, Sqd, Sqe].into_iter().find(|state| *state as u32 == number).unwrap_or(Err)
}

/// The MTU of a number; foreign numbers are the smallest.
pub fn mtu_from(number: u32) -> Mtu {
    use Mtu::{Mtu256, Mtu512, Mtu1024, Mtu2048, Mtu4096};
    [Mtu512, Mtu1024, Mtu2048, Mtu4096].into_iter().find(|mtu| *mtu as u32 == number).unwrap_or(Mtu256)
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
        /// `ibv_access_flags`.
        access: u32,
    },
    /// `ibv_reg_mr`.
    RegMr {
        /// Domain.
        pd: Handle,
        /// What memory.
        memory: Memory,
        /// Bytes.
        len: u64,
        /// `ibv_access_flags`.
        access: u32,
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
    CreateQp(QpMake),
    /// `ibv_create_ah`.
    CreateAh {
        /// Domain.
        pd: Handle,
        /// To where.
        path: Path,
    },
    /// Destroys an object.
    Destroy(Handle),
    /// `ibv_modify_qp`.
    Modify {
        /// Queue pair.
        qp: Handle,
        /// Changes.
        change: Change,
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

/// What device an end has (`ibv_device_attr`, `ibv_port_attr`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The provider.
    pub provider: String,
    /// Operations over RC, UC, UD (`OpCaps`).
    pub ops: [u32; 3],
    /// Work requests in one queue.
    pub max_qp_wr: u32,
    /// Elements in one request.
    pub max_sge: u32,
    /// Completions in one queue.
    pub max_cqe: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Bytes inline.
    pub max_inline_data: u32,
    /// Outstanding READs and atomics.
    pub max_qp_rd_atom: u8,
    /// MTU in use.
    pub active_mtu: u32,
    /// LID of the port.
    pub lid: u16,
    /// The GID that others reach it by.
    pub gid: [u8; 16],
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
    /// Outstanding sends it really has.
    pub max_send_wr: u32,
    /// Outstanding receives it really has.
    pub max_recv_wr: u32,
    /// Elements in a send.
    pub max_send_sge: u32,
    /// Elements in a receive.
    pub max_recv_sge: u32,
    /// Bytes inline it really has.
    pub max_inline_data: u32,
}

/// A completion queue as a case knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cq {
    /// Its number at the end.
    pub handle: Handle,
    /// What its events carry.
    pub id: u32,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    wr_id: u64,
    status: u32,
    opcode: u32,
    byte_len: u32,
    imm_data_be: u32,
    qp_num: u32,
    src_qp: u32,
    flags: u32,
}

impl From<Wc> for Completion {
    fn from(wc: Wc) -> Self {
        Self {
            wr_id: wc.wr_id,
            status: wc.status.0,
            opcode: wc.opcode.0,
            byte_len: wc.byte_len,
            imm_data_be: wc.imm_data_be,
            qp_num: wc.qp_num,
            src_qp: wc.src_qp,
            flags: wc.wc_flags.bits(),
        }
    }
}

impl From<Completion> for Wc {
    fn from(completion: Completion) -> Self {
        Self {
            wr_id: completion.wr_id,
            status: WcStatus(completion.status),
            opcode: WcOpcode(completion.opcode),
            byte_len: completion.byte_len,
            imm_data_be: completion.imm_data_be,
            qp_num: completion.qp_num,
            src_qp: completion.src_qp,
            wc_flags: WcFlags::from_bits_retain(completion.flags),
            ..Self::default()
        }
    }
}

/// An asynchronous event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The name of [`AsyncEventKind`].
    pub kind: String,
    /// The number of the object.
    pub element: u32,
}

impl Event {
    /// Whether it is of this kind.
    pub fn is(&self, kind: AsyncEventKind) -> bool {
        self.kind == format!("{kind:?}")
    }
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
    State(u32),
    /// [`Call::Poll`].
    Completions(Vec<Completion>),
    /// [`Call::TakeCqEvent`].
    CqEvent(Option<u32>),
    /// [`Call::Sleep`]: whether the descriptor is readable.
    Readable(bool),
    /// [`Call::TakeAsync`].
    Async(Option<Event>),
    /// [`Call::Get`].
    Bytes(Vec<u8>),
    /// [`Call::Dereg`]: whether no peer accesses the memory any more.
    Revoked(bool),
}

/// Why a call was refused, roughly: what [`farcall_verbs::Error`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// An argument.
    Invalid,
    /// The object's state.
    State,
    /// Not offered.
    Unsupported,
    /// Something is full.
    Exhausted,
    /// The peer.
    Peer,
    /// The operating system.
    Os,
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
