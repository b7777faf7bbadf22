//! Work completions, laid out as libibverbs' `ibv_wc`.

use std::fmt;

use crate::WcFlags;

/// Status of a completed work request (`ibv_wc_status`). A newtype, because a C library may return any number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WcStatus(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl WcStatus {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Returns the name in the specification's spelling.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* _ => "UNKNOWN" }
            }

            /// Returns a description for users.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $text,)* _ => "a status this version does not know" }
            }
        }
    };
}

statuses! {
    /// The request succeeded.
    SUCCESS = 0, "success";
    /// A receive was too small, or a request broke a length rule.
    LOC_LEN_ERR = 1, "local length error: the receive buffer was too small for the message";
    /// The queue pair was not configured for the request.
    LOC_QP_OP_ERR = 2, "local queue pair operation error";
    /// Obsolete in the specification.
    LOC_EEC_OP_ERR = 3, "local EE context operation error";
    /// A gather/scatter element failed its key, bounds or permission check.
    LOC_PROT_ERR = 4, "local protection error: an lkey, its bounds or its permission did not allow the access";
    /// The queue pair was in the error state; the request was not executed.
    WR_FLUSH_ERR = 5, "flushed: the queue pair went to the error state before the request was executed";
    /// A memory window could not be bound.
    MW_BIND_ERR = 6, "memory window bind error";
    /// An unexpected response arrived.
    BAD_RESP_ERR = 7, "bad response";
    /// The connection was torn down during an access to the buffer.
    LOC_ACCESS_ERR = 8, "local access error";
    /// The target refused the request as malformed or too long.
    REM_INV_REQ_ERR = 9, "remote invalid request: the target's receive was too small or the request malformed";
    /// The target's key, bounds or permissions did not allow the access.
    REM_ACCESS_ERR = 10, "remote access error: an rkey, its bounds or its permission did not allow the access";
    /// The target could not execute the request.
    REM_OP_ERR = 11, "remote operation error";
    /// The target did not respond in time, and the transport retries are exhausted.
    RETRY_EXC_ERR = 12, "transport retries exceeded: the peer has exited, is unreachable or is not ready to receive";
    /// The target had no receive posted, and the RNR retries are exhausted.
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
    /// The response did not arrive in time.
    RESP_TIMEOUT_ERR = 20, "response timeout";
    /// Anything else.
    GENERAL_ERR = 21, "general error";
}

impl WcStatus {
    /// Returns whether the request succeeded.
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

/// Kind of the completed work request (`ibv_wc_opcode`). Valid only if the status is success.
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

    /// Returns whether the completion belongs to a receive.
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
    /// `wr_id` of the work request.
    pub wr_id: u64,
    /// Status of the request. If it is not success, only `wr_id`, `status`, `qp_num` and `vendor_err` are valid.
    pub status: WcStatus,
    /// Kind of the request.
    pub opcode: WcOpcode,
    /// Provider-specific error detail; 0 if none.
    pub vendor_err: u32,
    /// Bytes received, or transferred by a READ.
    pub byte_len: u32,
    /// Immediate data in network byte order, valid if `wc_flags` contains `WITH_IMM`; see [`Wc::imm`].
    pub imm_data_be: u32,
    /// Number of the local queue pair.
    pub qp_num: u32,
    /// Number of the sender's queue pair (datagrams; software providers always set it).
    pub src_qp: u32,
    /// Flags of valid fields.
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
    /// Returns the immediate data in host byte order, if there is any.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.wc_flags.contains(WcFlags::WITH_IMM).then(|| u32::from_be(self.imm_data_be))
    }

    /// Returns a completion that carries only the status of the request.
    #[inline]
    pub fn ended(wr_id: u64, qp_num: u32, opcode: WcOpcode, status: WcStatus) -> Self {
        Self { wr_id, qp_num, opcode, status, ..Self::default() }
    }
}
