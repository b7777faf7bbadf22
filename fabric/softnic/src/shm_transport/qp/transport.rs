//! Transports of connected queue pairs.

use farcall_verbs::QpType;

/// Transport of a connected queue pair. Connect requests carry the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Connected {
    /// RC: a request that cannot be executed waits or fails.
    Reliable = 0,
    /// UC: a request that the target cannot accept is dropped.
    Unreliable = 1,
}

impl Connected {
    pub(crate) const fn of(qp_type: QpType) -> Option<Self> {
        match qp_type {
            QpType::Rc => Some(Self::Reliable),
            QpType::Uc => Some(Self::Unreliable),
            _ => None,
        }
    }

    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Reliable),
            1 => Some(Self::Unreliable),
            _ => None,
        }
    }

    #[inline]
    pub(crate) const fn qp_type(self) -> QpType {
        match self {
            Self::Reliable => QpType::Rc,
            Self::Unreliable => QpType::Uc,
        }
    }
}
