//! The queue pair state machine (IBA volume 1, section 10.3.1).

use std::fmt;

/// A queue pair's state, with libibverbs' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpState {
    /// Created; nothing can be posted.
    #[default]
    Reset = 0,
    /// Receives can be posted; nothing is processed.
    Init = 1,
    /// Ready to receive: incoming requests are processed.
    Rtr = 2,
    /// Ready to send: outgoing requests too.
    Rts = 3,
    /// Send queue draining.
    Sqd = 4,
    /// Send queue error (UC and UD).
    Sqe = 5,
    /// Error: everything posted is flushed.
    Err = 6,
}

impl QpState {
    /// Returns the state with libibverbs' number `number`.
    pub const fn from_raw(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
            _ => return None,
        })
    }

    /// Returns whether receives may be posted.
    #[inline]
    pub const fn accepts_receives(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Returns whether sends may be posted (in `Sqd` they wait, in `Sqe` and `Err` they are flushed).
    #[inline]
    pub const fn accepts_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Err)
    }

    /// Returns whether requests of the peer are executed.
    #[inline]
    pub const fn responds(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::QpState::*;

    #[test]
    fn posting_rules() {
        assert!(!Reset.accepts_receives() && Init.accepts_receives() && Err.accepts_receives());
        assert!(!Rtr.accepts_sends() && Rts.accepts_sends() && Err.accepts_sends());
        assert!(!Init.responds() && Rtr.responds() && !Err.responds());
    }
}
