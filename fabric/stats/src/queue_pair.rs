//! What a software RNIC tells of its queue pairs, besides what it counts: the numbers that `farcall explain` puts into
//! words.

/// The way that a queue pair goes: its counter `way`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum PairWay {
    /// None yet: it is not connected.
    None = 0,
    /// Shared memory, to a process of this host.
    SharedMemory = 1,
    /// RoCEv2. A block of its own, labelled `softnic roce qp NUMBER SOURCE DESTINATION`, tells the rest.
    RoceV2 = 2,
}

impl PairWay {
    /// The way behind a number; `None` for one of another version.
    pub fn of(number: u64) -> Option<Self> {
        [Self::None, Self::SharedMemory, Self::RoceV2].into_iter().find(|way| *way as u64 == number)
    }
}
