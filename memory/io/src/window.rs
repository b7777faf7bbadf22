//! Admission control: limits the bytes in flight (RDMAbox, section IV-A).

/// Policy that decides whether more work requests may be posted. It is notified when each of them is posted and when it
/// ends, and may read a clock. Requests that it holds back stay in the merge queue and continue to merge. If nothing is
/// in flight, the next work request is posted regardless of the policy, so no policy can stop a queue forever.
pub trait Admission: Send {
    /// Returns whether a work request of `bytes` may be posted while `in_flight_bytes` are in flight.
    fn admits(&mut self, in_flight_bytes: u64, bytes: u64) -> bool;

    /// Called when a work request of `bytes` is posted.
    fn posted(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Called when a work request of `bytes` has ended, successfully or not, or could not be posted.
    fn ended(&mut self, bytes: u64) {
        let _ = bytes;
    }
}

/// Lengths are rounded up to this unit, so that many short work requests do not count as only a few bytes.
const PAGE_BYTES: u64 = 4096;

/// Returns the number of bytes that admission control counts for a work request of `len_bytes`.
pub(crate) const fn counted(len_bytes: u64) -> u64 {
    len_bytes.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
}

/// Fixed window of bytes in flight. The length of each work request is rounded up to a multiple of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Maximum number of bytes in flight.
    pub bytes: u64,
}

impl Window {
    /// The paper's window: about 7 MB, at which its NIC was fastest.
    pub const PAPER: Self = Self { bytes: 7 << 20 };
    /// No limit.
    pub const OPEN: Self = Self { bytes: u64::MAX };
}

impl Admission for Window {
    fn admits(&mut self, in_flight_bytes: u64, bytes: u64) -> bool {
        in_flight_bytes.saturating_add(bytes) <= self.bytes
    }
}
