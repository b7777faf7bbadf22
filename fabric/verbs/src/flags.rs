//! Bit sets with libibverbs' values.

use bitflags::bitflags;

use crate::{Error, Result};

bitflags! {
    /// Permitted accesses to a memory region or over a queue pair (`ibv_access_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[repr(transparent)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct Access: u32 {
        /// The local NIC may write: receive buffers, READ and atomic results.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE. Requires `LOCAL_WRITE` (IBA 10.6.3.1).
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may execute atomics. Requires `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

impl Access {
    /// Checks, for providers, whether a region of `len_bytes` may be registered with these rights on a device whose
    /// regions have at most `max_mr_size` bytes.
    ///
    /// # Errors
    /// Returns an error if the region is too long, or if peers may write where the device itself may not (IBA
    /// 10.6.3.1).
    pub fn check_registration(
        self,
        operation: &'static str,
        len_bytes: usize,
        max_mr_size: u64,
    ) -> Result<()> {
        if self.intersects(Self::REMOTE_WRITE | Self::REMOTE_ATOMIC) && !self.contains(Self::LOCAL_WRITE) {
            let what = "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE (IBA 10.6.3.1)";
            return Err(Error::invalid(operation, what));
        }
        if len_bytes as u64 > max_mr_size {
            let (what, remedy) = ("bytes of one region", "register less at once");
            return Err(Error::Exhausted { operation, what, limit: max_mr_size, remedy });
        }
        Ok(())
    }
}

bitflags! {
    /// Execution flags of a send work request (`ibv_send_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[repr(transparent)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct SendFlags: u32 {
        /// Starts after all earlier READs and atomics of this queue pair are complete.
        const FENCE = 1;
        /// Produces a completion on success; failures always do.
        const SIGNALED = 1 << 1;
        /// Requests a solicited completion event at the target (SEND and WRITE with immediate).
        const SOLICITED = 1 << 2;
        /// The payload is copied while posting; its `lkey` is ignored and the buffer can be reused at once.
        const INLINE = 1 << 3;
    }
}

bitflags! {
    /// Valid fields and headers of a completion (`ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[repr(transparent)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the receive buffer hold a GRH (datagrams).
        const GRH = 1;
        /// `imm_data` is valid.
        const WITH_IMM = 1 << 1;
    }
}
