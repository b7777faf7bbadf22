//! Admission control: how much may be under way (RDMAbox, section IV-A).

/// Decides whether more may be posted. The hook for policies: it is told of everything that begins and ends, and may
/// keep a clock of its own. What it holds back stays in the queue and merges; when nothing is under way the next work
/// request is posted whatever it says, so no policy can stop a queue for ever.
pub trait Admission: Send {
    /// Whether a work request of `bytes` may be posted while `in_flight_bytes` are under way.
    fn admits(&mut self, in_flight_bytes: u64, bytes: u64) -> bool;

    /// One of `bytes` is posted.
    fn posted(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// One of `bytes` has ended, well or not.
    fn ended(&mut self, bytes: u64) {
        let _ = bytes;
    }
}

/// What is counted for work requests: whole pages, so that many short ones do not pass for few bytes.
const PAGE_BYTES: u64 = 4096;

/// The bytes that admission counts for a work request.
pub(crate) const fn counted(len_bytes: u64) -> u64 {
    len_bytes.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
}

/// A fixed window of bytes in flight, counted in pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The most that may be in flight.
    pub bytes: u64,
}

impl Window {
    /// The paper's: about 7 MB, where its NIC was fastest.
    pub const PAPER: Self = Self { bytes: 7 << 20 };
    /// No limit.
    pub const OPEN: Self = Self { bytes: u64::MAX };
}

impl Admission for Window {
    fn admits(&mut self, in_flight_bytes: u64, bytes: u64) -> bool {
        in_flight_bytes.saturating_add(bytes) <= self.bytes
    }
}
