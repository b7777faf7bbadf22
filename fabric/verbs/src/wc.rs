//! Work completions, laid out as libibverbs' `ibv_wc`.

use std::fmt;

use crate::WcFlags;

/// How a work request ended (`ibv_wc_status`); a newtype, because foreign libraries may return any number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WcStatus(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl WcStatus {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The name in the specification's words.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* _ => "UNKNOWN" }
            }

            /// What it means, for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $text,)* _ => "a status this version does not know" }
            }
        }
    };
}

statuses! {
    /// Done.
    SUCCESS = 0, "success";
    /// A receive was too small, or a request broke a length rule.
    LOC_LEN_ERR = 1, "local length error: the receive buffer was too small for the message";
    /// The queue pair was not set up for the request.
    LOC_QP_OP_ERR = 2, "local queue pair operation error";
    /// Obsolete in the specification.
    LOC_EEC_OP_ERR = 3, "local EE context operation error";
    /// A gather/scatter element failed its key, bounds or permission check.
    LOC_PROT_ERR = 4, "local protection error: an lkey, its bounds or its permission did not allow the access";
    /// The queue pair was in the error state; the request was not executed.
    WR_FLUSH_ERR = 5, "flushed: the queue pair went to the error state before the request was executed";
    /// A memory window could not be bound.
    MW_BIND_ERR = 6, "memory window bind error";
    /// An unexpected answer came.
    BAD_RESP_ERR = 7, "bad response";
    /// The connection was torn down while the buffer was touched.
    LOC_ACCESS_ERR = 8, "local access error";
    /// The target refused the request as malformed or too long.
    REM_INV_REQ_ERR = 9, "remote invalid request: the target's receive was too small or the request malformed";
    /// The target's key, bounds or permissions did not allow the access.
    REM_ACCESS_ERR = 10, "remote access error: an rkey, its bounds or its permission did not allow the access";
    /// The target could not execute the request.
    REM_OP_ERR = 11, "remote operation error";
    /// The target did not answer in time, often enough.
    RETRY_EXC_ERR = 12, "transport retries exceeded: the peer is dead, unreachable or not ready to receive";
    /// The target had no receive posted, often enough.
    RNR_RETRY_EXC_ERR = 13, "receiver-not-ready retries exceeded: the peer posted no receive";
    /// Obsolete.
    LOC_RDD_VIOL_ERR = 14, "local RDD violation";
    /// Obsolete.
    REM_INV_RD_REQ_ERR = 15, "remote invalid RD request";
    /// The request was aborted.
    REM_ABORT_ERR = 16, "remote aborted";
    /// Obsolete.
    INV_EECN_ERR = 17, "invalid EE context number";
    /// Obsolete.
    INV_EEC_STATE_ERR = 18, "invalid EE context state";
    /// The device failed.
    FATAL_ERR = 19, "fatal device error";
    /// The answer did not come in time.
    RESP_TIMEOUT_ERR = 20, "response timeout";
    /// Anything else.
    GENERAL_ERR = 21, "general error";
}

impl WcStatus {
    /// Whether the request succeeded.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.meaning(), self.name())
    }
}

/// What kind of work request a completion belongs to (`ibv_wc_opcode`). Valid only if the status is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WcOpcode(pub u32);

impl WcOpcode {
    /// SEND, at its initiator.
    pub const SEND: Self = Self(0);
    /// RDMA WRITE, at its initiator.
    pub const RDMA_WRITE: Self = Self(1);
    /// RDMA READ.
    pub const RDMA_READ: Self = Self(2);
    /// Compare and swap.
    pub const COMP_SWAP: Self = Self(3);
    /// Fetch and add.
    pub const FETCH_ADD: Self = Self(4);
    /// A receive filled by a SEND.
    pub const RECV: Self = Self(128);
    /// A receive consumed by a WRITE with immediate.
    pub const RECV_RDMA_WITH_IMM: Self = Self(129);

    /// Whether the completion is of a receive.
    #[inline]
    pub const fn is_receive(self) -> bool {
        self.0 & 128 != 0
    }
}

/// A work completion (`ibv_wc`, 48 bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Wc {
    /// That of the work request.
    pub wr_id: u64,
    /// How it ended. If not success, only `wr_id`, `status`, `qp_num` and `vendor_err` are valid.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// The provider's detail; 0 if none.
    pub vendor_err: u32,
    /// Bytes received, or transferred by a READ.
    pub byte_len: u32,
    /// Immediate data in network byte order, if `wc_flags` says so; see [`Wc::imm`].
    pub imm_data_be: u32,
    /// The local queue pair.
    pub qp_num: u32,
    /// The sender's queue pair (datagrams; software providers fill it always).
    pub src_qp: u32,
    /// What is valid.
    pub wc_flags: WcFlags,
    /// P_Key index (datagrams).
    pub pkey_index: u16,
    /// Source LID.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Destination path bits.
    pub dlid_path_bits: u8,
}

const _: () = assert!(size_of::<Wc>() == 48);

impl Wc {
    /// The immediate data in host byte order, if there is any.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.wc_flags.contains(WcFlags::WITH_IMM).then(|| u32::from_be(self.imm_data_be))
    }

    /// A completion that only says how the request ended.
    #[inline]
    pub fn ended(wr_id: u64, qp_num: u32, opcode: WcOpcode, status: WcStatus) -> Self {
        Self { wr_id, qp_num, opcode, status, ..Self::default() }
    }
}
