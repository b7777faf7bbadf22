//! The messages in flight: a ring, one place for each slot.

use farcall_link::Ticket;

use crate::wire::{Mode, Seq};

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A whole request, or its last part: the response is the call's.
    Execute,
    /// A part that is not the last: the response acknowledges it.
    Part,
    /// Asks for a piece of the result.
    Continue,
    /// Makes the server forget a result. It belongs to no call.
    Release,
}

/// How far a fetch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    /// None is under way.
    None,
    /// A READ is under way; so many bytes of the slot will be there.
    Posted(usize),
    /// So many bytes of the slot are there.
    Landed(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub call: u16,
    pub method: u16,
    pub purpose: Purpose,
    pub mode: Mode,
    pub fetch: Fetch,
    pub failed_fetches: u32,
    /// Looks at a response whose checksum did not match.
    pub corrupt_looks: u32,
    /// The WRITE that read the request slot.
    pub sent: Ticket,
    /// The last READ into the landing place of its response. Completions of earlier ones say nothing: one may have been
    /// posted for the message that had the slot before.
    pub read: Ticket,
}

impl Frame {
    pub const FREE: Self = Self {
        call: u16::MAX,
        method: 0,
        purpose: Purpose::Release,
        mode: Mode::Fetch,
        fetch: Fetch::None,
        failed_fetches: 0,
        corrupt_looks: 0,
        sent: Ticket::NONE,
        read: Ticket::NONE,
    };
}

/// Messages `head..next` have no response yet.
pub(super) struct Frames {
    ring: Box<[Frame]>,
    pub head: Seq,
    pub next: Seq,
    /// Messages `resend..next` are to be sent again.
    pub resend: Seq,
}

impl Frames {
    pub fn new(window: u16) -> Self {
        let ring = vec![Frame::FREE; usize::from(window)].into();
        Self { ring, head: Seq::FIRST, next: Seq::FIRST, resend: Seq::FIRST }
    }

    #[inline]
    pub fn at(&mut self, seq: Seq) -> &mut Frame {
        let mask = self.ring.len() - 1;
        &mut self.ring[seq.0 as usize & mask]
    }

    #[inline]
    pub fn by_slot(&mut self, slot: u16) -> Option<&mut Frame> {
        self.ring.get_mut(usize::from(slot))
    }

    /// Messages without a response.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.next.distance_from(self.head)
    }

    pub fn is_empty(&self) -> bool {
        self.head == self.next
    }

    pub fn window(&self) -> u32 {
        self.ring.len() as u32
    }

    /// Tickets are the old queue pair's, which has drained: nothing of ours is being sent. A new pair counts from the start.
    pub fn forget_tickets(&mut self) {
        self.ring.iter_mut().for_each(|frame| frame.sent = Ticket::NONE);
    }

    /// The numbers of the messages without a response.
    pub fn numbers(&self) -> impl Iterator<Item = Seq> + use<> {
        let head = self.head;
        (0..self.outstanding()).map(move |i| head.plus(i))
    }
}
