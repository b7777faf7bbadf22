//! State of a software RNIC's queue pairs that is reported next to their counters: numbers that `farcall explain` shows
//! as text.

/// Transport of a queue pair: the value of its counter `way`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum QpTransport {
    /// None yet: the queue pair is not connected.
    None = 0,
    /// Shared memory, to a process of this host.
    SharedMemory = 1,
    /// RoCEv2. A block of its own, labelled `softnic roce qp NUMBER SOURCE DESTINATION`, contains the details.
    RoceV2 = 2,
}

impl QpTransport {
    /// Returns the transport with this number; `None` for a number of another version.
    pub fn of(number: u64) -> Option<Self> {
        [Self::None, Self::SharedMemory, Self::RoceV2].into_iter().find(|way| *way as u64 == number)
    }
}
