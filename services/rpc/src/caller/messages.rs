//! The messages in flight: a ring with one entry per slot.

use farcall_link::Ticket;

use crate::wire::{CallBase, Mode, Seq};

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// A complete request, or its last part: the response belongs to the call.
    Execute,
    /// A part that is not the last one: the response acknowledges it.
    Part,
    /// Requests a segment of the result.
    Continue,
    /// Makes the server release a result. It belongs to no call.
    Release,
    /// Requests deferred answers. It belongs to no call.
    Collect,
}

impl MessageKind {
    /// Returns whether the message belongs to a call.
    #[inline]
    pub(crate) const fn is_of_call(self) -> bool {
        !matches!(self, Self::Release | Self::Collect)
    }
}

/// State of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchState {
    /// No READ is in flight.
    None,
    /// A READ is in flight, after which this many bytes of the slot are present.
    Posted(usize),
    /// This many bytes of the slot are present.
    Landed(usize),
}

/// A message in flight.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub(crate) call: u16,
    pub(crate) method: u16,
    pub(crate) kind: MessageKind,
    /// Mode with which the request was sent.
    pub(crate) mode: Mode,
    /// `true` if the server was requested, after the message, to push its response.
    pub(crate) is_pushed: bool,
    pub(crate) fetch: FetchState,
    /// READs that found no response; over UC, corrupt responses received.
    pub(crate) failed_fetches: u32,
    /// Number of checks of the response in which the checksum did not match.
    pub(crate) corrupt_checks: u32,
    /// The WRITE that reads the request slot.
    pub(crate) sent: Ticket,
    /// The last READ into the buffer of its response. Completions of earlier READs are ignored: one may have been
    /// posted for the previous message of the slot.
    pub(crate) read: Ticket,
}

impl Message {
    pub(crate) const FREE: Self = Self {
        call: u16::MAX,
        method: 0,
        kind: MessageKind::Release,
        mode: Mode::Fetch,
        is_pushed: false,
        fetch: FetchState::None,
        failed_fetches: 0,
        corrupt_checks: 0,
        sent: Ticket::NONE,
        read: Ticket::NONE,
    };

    /// Returns whether the response is fetched by READ. A pushed response may also be fetched before it is pushed.
    #[inline]
    pub(crate) fn is_fetched(&self) -> bool {
        self.mode == Mode::Fetch
    }

    /// Returns whether the server writes the response.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.mode != Mode::Fetch || self.is_pushed
    }

    /// Discards a READ that found no response; the response will be fetched by another READ, also if a notice
    /// announced it.
    pub(crate) fn fetch_again(&mut self) {
        (self.mode, self.fetch) = (Mode::Fetch, FetchState::None);
    }

    /// Makes the response be fetched by READ, whatever mode was requested.
    pub(crate) fn switch_to_fetch(&mut self) {
        (self.mode, self.is_pushed) = (Mode::Fetch, false);
    }
}

/// Messages `head..next` have no response yet.
pub(crate) struct Messages {
    ring: Box<[Message]>,
    head: Seq,
    next: Seq,
    /// Messages `resend..next` must be sent again.
    resend: Seq,
    /// Taken from the last request of full form.
    call_base: Option<CallBase>,
}

impl Messages {
    pub fn new(window: u16) -> Self {
        let ring = vec![Message::FREE; usize::from(window)].into();
        Self { ring, head: Seq::FIRST, next: Seq::FIRST, resend: Seq::FIRST, call_base: None }
    }

    /// Returns the number of the oldest message without a response, or [`Messages::next`] if there is none.
    #[inline]
    pub const fn head(&self) -> Seq {
        self.head
    }

    /// Returns the number of the next message.
    #[inline]
    pub const fn next(&self) -> Seq {
        self.next
    }

    /// Adds the next message, which is sent now. No message must be sent again.
    #[inline]
    pub fn push(&mut self, message: Message) {
        *self.at(self.next) = message;
        self.next = self.next.next();
        self.resend = self.next;
    }

    /// Returns the oldest message that must be sent again.
    #[inline]
    pub fn next_to_resend(&self) -> Option<Seq> {
        (self.resend != self.next).then_some(self.resend)
    }

    /// Records that message `seq`, which [`Messages::next_to_resend`] returned, was sent again.
    pub fn on_resend(&mut self, seq: Seq) {
        self.resend = seq.next();
    }

    /// Makes all messages from `seq` on be sent again.
    pub const fn resend_from(&mut self, seq: Seq) {
        self.resend = seq;
    }

    /// Sets the distance between call ids and message numbers to that of the next message. Returns whether the server
    /// knows it from the last request of full form.
    #[inline]
    pub fn set_call_base(&mut self, call_id: u64) -> bool {
        let base = Some(CallBase::of(self.next, call_id));
        std::mem::replace(&mut self.call_base, base) == base
    }

    /// Returns the entry of a message.
    #[inline]
    pub fn at(&mut self, seq: Seq) -> &mut Message {
        let mask = self.ring.len() - 1;
        &mut self.ring[seq.0 as usize & mask]
    }

    /// Returns the oldest message without a response.
    pub fn oldest(&self) -> Option<&Message> {
        let mask = self.ring.len() - 1;
        (!self.is_empty()).then(|| &self.ring[self.head.0 as usize & mask])
    }

    #[inline]
    pub fn by_slot(&mut self, slot: u16) -> Option<&mut Message> {
        self.ring.get_mut(usize::from(slot))
    }

    /// Removes the oldest message, whose response has been received.
    #[inline]
    pub fn pop(&mut self) {
        self.head = self.head.next();
        if self.resend.is_before(self.head) {
            self.resend = self.head;
        }
    }

    /// Returns whether the message has no response yet.
    #[inline]
    pub const fn contains(&self, seq: Seq) -> bool {
        !seq.is_before(self.head) && seq.is_before(self.next)
    }

    /// Returns the number of messages without a response.
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

    /// Clears the tickets of the old queue pair, which has drained, so no slot is being read. The new queue pair
    /// counts its tickets from the start.
    pub fn clear_tickets(&mut self) {
        self.ring.iter_mut().for_each(|message| message.sent = Ticket::NONE);
    }

    /// Returns the numbers of the messages without a response.
    pub fn numbers(&self) -> impl Iterator<Item = Seq> + use<> {
        let head = self.head;
        (0..self.outstanding()).map(move |i| head.plus(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resends_from_a_message_on_unless_its_response_arrives() {
        let mut messages = Messages::new(4);
        let first = messages.head();
        (0..3).for_each(|_| messages.push(Message::FREE));
        assert_eq!((messages.outstanding(), messages.next_to_resend()), (3, None));
        messages.resend_from(first);
        messages.pop();
        assert_eq!(messages.next_to_resend(), Some(first.next()));
        messages.on_resend(first.next());
        messages.on_resend(first.plus(2));
        assert_eq!((messages.next_to_resend(), messages.next()), (None, first.plus(3)));
        assert!(!messages.contains(first) && messages.contains(first.plus(2)));
    }

    #[test]
    fn knows_the_distance_of_calls_that_follow_each_other() {
        let mut messages = Messages::new(4);
        assert!(!messages.set_call_base(1));
        messages.push(Message::FREE);
        assert!(messages.set_call_base(2));
        messages.push(Message::FREE);
        assert!(!messages.set_call_base(4), "a call was cancelled");
    }
}
