//! The 32 bits of immediate data that wake a sleeper (KICK).

use super::Seq;

/// What a wake-up says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imm {
    /// Client to server: look at my mailbox.
    Kick,
    /// Client to server: look at my mailbox, and push to me the responses of the `count` messages from the one whose
    /// number ends in `oldest_low`: I am going to sleep.
    Push {
        /// Low 16 bits of the number of the oldest message without a response.
        oldest_low: u16,
        /// How many messages have no response.
        count: u16,
    },
    /// Server to client: responses were placed.
    Placed,
    /// Something a later version says; look at everything.
    Unknown,
}

const KIND_SHIFT: u32 = 28;
const COUNT_SHIFT: u32 = 16;
const COUNT_MASK: u32 = 0xfff;

impl Imm {
    /// As it travels.
    pub const fn encode(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::Kick => 1 << KIND_SHIFT,
            Self::Push { oldest_low, count } => {
                2 << KIND_SHIFT | (count as u32 & COUNT_MASK) << COUNT_SHIFT | oldest_low as u32
            }
            Self::Placed => 3 << KIND_SHIFT,
        }
    }

    /// As it came.
    pub const fn decode(imm: u32) -> Self {
        match imm >> KIND_SHIFT {
            1 => Self::Kick,
            2 => Self::Push { oldest_low: imm as u16, count: (imm >> COUNT_SHIFT & COUNT_MASK) as u16 },
            3 => Self::Placed,
            _ => Self::Unknown,
        }
    }

    /// The numbers `[from, end)` that a push names, seen from a server that executes `next` next; `None` if they are
    /// impossible.
    pub const fn push_range(oldest_low: u16, count: u16, next: Seq, window: u16) -> Option<(Seq, Seq)> {
        // The oldest message without a response lies at most a window before `next`, or is `next` itself or, if its
        // request is still on the way, not after it.
        let behind = (next.0 as u16).wrapping_sub(oldest_low);
        if behind > window || count > window {
            return None;
        }
        let from = Seq(next.0.wrapping_sub(behind as u32));
        Some((from, from.plus(count as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_travel() {
        for imm in [Imm::Kick, Imm::Push { oldest_low: 0xfffe, count: 256 }, Imm::Placed, Imm::Unknown] {
            assert_eq!(Imm::decode(imm.encode()), imm);
        }
        assert_eq!(Imm::decode(u32::MAX), Imm::Unknown);
    }

    #[test]
    fn a_push_names_numbers_across_the_wrap_of_16_bits() {
        let next = Seq(0x1_0002);
        assert_eq!(Imm::push_range(0xfffe, 6, next, 16), Some((Seq(0xfffe), Seq(0x1_0004))));
        assert_eq!(Imm::push_range(2, 1, next, 16), Some((next, next.next())));
        assert_eq!(Imm::push_range(3, 1, next, 16), None, "not sent yet");
        assert_eq!(Imm::push_range(0xff00, 1, next, 16), None, "long answered");
    }
}
