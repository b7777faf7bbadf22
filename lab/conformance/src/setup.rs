//! Parameters of the two queue pairs of a case.

use farcall_verbs::{Access, QpCap, QpType};

/// All accesses that a region or queue pair can allow.
pub(crate) const ALL_ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Q_Key of datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1111_2222;

/// Parameters of a case; the default is an RC pair with long timeouts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) qp_type: QpType,
    pub(crate) cap: QpCap,
    pub(crate) qp_access: Access,
    pub(crate) mr_access: Access,
    pub(crate) mr_len: u64,
    pub(crate) cqe: u32,
    pub(crate) signal_all: bool,
    /// `true` if transport retries end soon (see `Pace::quick_retry`).
    pub(crate) is_impatient: bool,
    /// Code of the ACK timeout, if it is not the default.
    pub(crate) timeout: Option<u8>,
    /// Number of receiver-not-ready retries; 7 retries forever.
    pub(crate) rnr_retry: u8,
    /// Code of the receiver-not-ready timer.
    pub(crate) min_rnr_timer: u8,
    pub(crate) rd_atomic: u8,
    /// Number of receives of the shared receive queue, if there is one.
    pub(crate) srq: Option<u32>,
}

impl Setup {
    pub(crate) fn new(qp_type: QpType) -> Self {
        Self {
            qp_type,
            cap: QpCap {
                max_send_wr: 32,
                max_recv_wr: 32,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 64,
            },
            qp_access: ALL_ACCESS,
            mr_access: ALL_ACCESS,
            mr_len: 64 << 10,
            cqe: 128,
            signal_all: false,
            is_impatient: false,
            timeout: None,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 4,
            srq: None,
        }
    }

    pub(crate) fn rc() -> Self {
        Self::new(QpType::Rc)
    }

    /// Returns the setup with transport retries that end soon.
    pub(crate) fn impatient(mut self) -> Self {
        self.is_impatient = true;
        self
    }
}
