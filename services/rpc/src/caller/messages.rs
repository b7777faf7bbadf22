//! The messages in flight: a ring, one place for each slot.

use farcall_link::Ticket;

use crate::wire::{CallBase, Mode, Seq};

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A whole request, or its last part: the response is the call's.
    Execute,
    /// A part that is not the last: the response acknowledges it.
    Part,
    /// Asks for a piece of the result.
    Continue,
    /// Makes the server forget a result. It belongs to no call.
    Release,
    /// Asks for answers that came later. It belongs to no call.
    Collect,
}

impl Purpose {
    /// Whether its message belongs to a call.
    #[inline]
    pub(crate) const fn is_of_call(self) -> bool {
        !matches!(self, Self::Release | Self::Collect)
    }
}

/// How far a fetch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchState {
    /// None is under way.
    None,
    /// A READ is under way; so many bytes of the slot will be there.
    Posted(usize),
    /// So many bytes of the slot are there.
    Landed(usize),
}

/// A message in flight.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub(crate) call: u16,
    pub(crate) method: u16,
    pub(crate) purpose: Purpose,
    /// As its request was sent.
    pub(crate) mode: Mode,
    /// Whether the server was asked, after the request, to push its response.
    pub(crate) is_pushed: bool,
    pub(crate) fetch: FetchState,
    /// READs that brought no response; over UC, corrupt responses that came.
    pub(crate) failed_fetches: u32,
    /// Looks at a response whose checksum did not match.
    pub(crate) corrupt_looks: u32,
    /// The WRITE that read the request slot.
    pub(crate) sent: Ticket,
    /// The last READ into the landing place of its response. Completions of earlier ones say nothing: one may have been
    /// posted for the message that had the slot before.
    pub(crate) read: Ticket,
}

impl Message {
    pub(crate) const FREE: Self = Self {
        call: u16::MAX,
        method: 0,
        purpose: Purpose::Release,
        mode: Mode::Fetch,
        is_pushed: false,
        fetch: FetchState::None,
        failed_fetches: 0,
        corrupt_looks: 0,
        sent: Ticket::NONE,
        read: Ticket::NONE,
    };

    /// Whether the response is to be READ. One that is pushed may be READ, too, before it is.
    #[inline]
    pub(crate) fn is_fetched(&self) -> bool {
        self.mode == Mode::Fetch
    }

    /// Whether the server writes the response.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.mode != Mode::Fetch || self.is_pushed
    }

    /// What a READ brought is no response: the next one brings it, also of what is READ once it was told of.
    pub(crate) fn fetch_again(&mut self) {
        (self.mode, self.fetch) = (Mode::Fetch, FetchState::None);
    }

    /// The response is to be READ, whatever was asked for.
    pub(crate) fn fetch_from_now_on(&mut self) {
        (self.mode, self.is_pushed) = (Mode::Fetch, false);
    }
}

/// Messages `head..next` have no response yet.
pub(crate) struct Messages {
    ring: Box<[Message]>,
    pub head: Seq,
    pub next: Seq,
    /// Messages `resend..next` are to be sent again.
    pub resend: Seq,
    /// By the last request of full form.
    pub call_base: Option<CallBase>,
}

impl Messages {
    pub fn new(window: u16) -> Self {
        let ring = vec![Message::FREE; usize::from(window)].into();
        Self { ring, head: Seq::FIRST, next: Seq::FIRST, resend: Seq::FIRST, call_base: None }
    }

    #[inline]
    pub fn at(&mut self, seq: Seq) -> &mut Message {
        let mask = self.ring.len() - 1;
        &mut self.ring[seq.0 as usize & mask]
    }

    /// The first without a response.
    pub fn oldest(&self) -> Option<&Message> {
        let mask = self.ring.len() - 1;
        (!self.is_empty()).then(|| &self.ring[self.head.0 as usize & mask])
    }

    #[inline]
    pub fn by_slot(&mut self, slot: u16) -> Option<&mut Message> {
        self.ring.get_mut(usize::from(slot))
    }

    /// The oldest message has its response.
    #[inline]
    pub fn pop(&mut self) {
        self.head = self.head.next();
        if self.resend.is_before(self.head) {
            self.resend = self.head;
        }
    }

    /// Whether a message has no response.
    #[inline]
    pub const fn contains(&self, seq: Seq) -> bool {
        !seq.is_before(self.head) && seq.is_before(self.next)
    }

    /// Messages without a response.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.next.distance_from(self.head)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.next
    }

    #[inline]
    pub fn window(&self) -> u32 {
        self.ring.len() as u32
    }

    /// Tickets are the old queue pair's, which has drained: nothing of ours is being sent. A new pair counts from the
    /// start.
    pub fn forget_tickets(&mut self) {
        self.ring.iter_mut().for_each(|message| message.sent = Ticket::NONE);
    }

    /// The numbers of the messages without a response.
    pub fn numbers(&self) -> impl Iterator<Item = Seq> + use<> {
        let head = self.head;
        (0..self.outstanding()).map(move |i| head.plus(i))
    }
}
