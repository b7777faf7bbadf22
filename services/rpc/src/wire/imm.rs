//! The 32 bits of immediate data of a wake-up (KICK).

use super::Seq;

/// Contents of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imm {
    /// Client to server: poll this client's mailbox.
    Kick,
    /// Client to server: poll this client's mailbox, and write to it the responses of `count` messages, beginning with
    /// the one whose number ends in `oldest_low`. The client sends it before it sleeps.
    Push {
        /// Low 16 bits of the number of the oldest message without a response.
        oldest_low: u16,
        /// How many messages have no response.
        count: u16,
    },
    /// Server to client: responses were placed.
    Placed,
    /// Server to client: a deferred call has been answered, and the answer can be collected.
    Answered,
    /// A value that this version does not know; the receiver checks all of its state.
    Unknown,
}

const KIND_SHIFT: u32 = 28;
const COUNT_SHIFT: u32 = 16;
const COUNT_MASK: u32 = 0xfff;

impl Imm {
    /// Encodes the immediate data.
    pub const fn encode(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::Kick => 1 << KIND_SHIFT,
            Self::Push { oldest_low, count } => {
                2 << KIND_SHIFT | (count as u32 & COUNT_MASK) << COUNT_SHIFT | oldest_low as u32
            }
            Self::Placed => 3 << KIND_SHIFT,
            Self::Answered => 4 << KIND_SHIFT,
        }
    }

    /// Decodes the immediate data.
    pub const fn decode(imm: u32) -> Self {
        match imm >> KIND_SHIFT {
            1 => Self::Kick,
            2 => Self::Push { oldest_low: imm as u16, count: (imm >> COUNT_SHIFT & COUNT_MASK) as u16 },
            3 => Self::Placed,
            4 => Self::Answered,
            _ => Self::Unknown,
        }
    }

    /// Returns the numbers `[from, end)` of the messages that a push names and whose responses the client may lack,
    /// for a server whose next message is `next`. `None` if there are none, or the numbers are invalid.
    pub const fn push_range(oldest_low: u16, count: u16, next: Seq, window: u16) -> Option<(Seq, Seq)> {
        // The oldest message without a response is not newer than `next`. It may be more than a window older: messages
        // that the client sent after the push may be executed before the server consumes the completion of the push.
        let behind = (next.0 as u16).wrapping_sub(oldest_low);
        if behind > u16::MAX / 2 || count > window {
            return None;
        }
        let oldest = Seq(next.0.wrapping_sub(behind as u32));
        let end = oldest.plus(count as u32);
        // The client has received the responses before the last window, because it has reused their slots.
        let from = if behind > window { Seq(next.0.wrapping_sub(window as u32)) } else { oldest };
        if from.is_before(end) { Some((from, end)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_travel() {
        let push = Imm::Push { oldest_low: 0xfffe, count: 256 };
        for imm in [Imm::Kick, push, Imm::Placed, Imm::Answered, Imm::Unknown] {
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
        assert_eq!(Imm::push_range(2, 17, next, 16), None, "more than the window");
    }

    #[test]
    fn reports_the_missing_range_of_an_overtaken_push() {
        // The client requested 34 to 48. It then received 34 and sent 49 and 50, which were executed before the push.
        assert_eq!(Imm::push_range(34, 15, Seq(51), 16), Some((Seq(35), Seq(49))));
        assert_eq!(Imm::push_range(34, 15, Seq(66), 16), None);
    }
}
