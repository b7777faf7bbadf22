//! State machines of both sides of the wake-up protocol, without memory or queue pairs.
//!
//! A plain WRITE does not wake a sleeping reader. An end that may sleep requests that its peer send every control word
//! as a wake-up (a [`WakeRequest`]). The peer acknowledges with the position from which on it does so (a [`WakeAck`]);
//! the acknowledgement is a wake-up itself. Invariant: the end sleeps only when it has seen all bytes up to that
//! position, because all later ones arrive with wake-ups. An end that polls requests the opposite, which needs no
//! acknowledgement. Streams begin with wake-ups enabled and acknowledged from position 0.

use crate::words::{WakeAck, WakeRequest};

/// Receiving side: whether the peer sends wake-ups to this end.
#[derive(Debug)]
pub(crate) struct WakeReceiver {
    wake_request: WakeRequest,
    /// Position from which on the peer sends wake-ups; `None` until it is acknowledged.
    from: Option<u64>,
    is_due: bool,
    /// Number of wake-ups that arrived while the application was polling, since it last wanted to sleep.
    spurious_wakes: u32,
    may_poll: bool,
}

/// Number of consecutive wake-ups received while the application polls, after which the end requests that they stop.
const SPURIOUS_WAKES_MAX: u32 = 64;

impl WakeReceiver {
    pub fn new(may_poll: bool) -> Self {
        Self { wake_request: WakeRequest::FIRST, from: Some(0), is_due: false, spurious_wakes: 0, may_poll }
    }

    /// Returns whether the current request is for wake-ups.
    #[inline]
    pub const fn requests_wakes(&self) -> bool {
        self.wake_request.is_woken
    }

    /// Returns whether every byte after `seen` is certain to arrive with a wake-up.
    #[inline]
    pub fn may_sleep(&self, seen: u64) -> bool {
        self.wake_request.is_woken && self.from.is_some_and(|from| seen >= from)
    }

    /// Called when the application wants to sleep: requests wake-ups if they are off.
    pub fn on_wants_sleep(&mut self) {
        self.spurious_wakes = 0;
        if !self.wake_request.is_woken {
            self.request(true);
        }
    }

    /// Called when the application sleeps and a poller polls for it: requests that the unneeded wake-ups stop.
    pub fn on_delegated(&mut self) {
        if self.wake_request.is_woken && self.from.is_some() {
            self.request(false);
        }
    }

    /// Records a wake-up that arrived while the application was polling.
    pub fn on_spurious_wake(&mut self) {
        self.spurious_wakes += 1;
        if self.spurious_wakes >= SPURIOUS_WAKES_MAX && self.may_poll && self.from.is_some() {
            self.spurious_wakes = 0;
            self.request(false);
        }
    }

    fn request(&mut self, is_woken: bool) {
        self.wake_request = self.wake_request.next(is_woken);
        self.from = None;
        self.is_due = true;
    }

    /// Returns the wake request, if it must be sent.
    pub fn due(&self) -> Option<WakeRequest> {
        self.is_due.then_some(self.wake_request)
    }

    /// Records that the request was sent.
    pub fn on_sent(&mut self) {
        self.is_due = false;
    }

    /// Handles an acknowledgement. One for an earlier request is ignored.
    pub fn on_ack(&mut self, ack: WakeAck) {
        if self.wake_request.is_woken && ack.number == self.wake_request.number && self.from.is_none() {
            self.from = Some(ack.from);
        }
    }
}

/// Sending side: whether this end sends wake-ups to the peer.
#[derive(Debug)]
pub(crate) struct WakeSender {
    peer_request: WakeRequest,
    is_due: bool,
    /// Number of wake-ups sent, and the part of it that the peer is known to have consumed.
    pub sent: u64,
    pub taken: u64,
    /// `true` if the peer relies on wake-ups alone, because WRITEs are placed in its memory in any order.
    always: bool,
}

/// Number of receives that each end posts for wake-ups.
pub(crate) const RECEIVES: u32 = 64;
/// Maximum number of outstanding wake-ups for bytes. The other receives are for control words that are not sent again
/// before the peer has reacted.
const FOR_BYTES: u64 = RECEIVES as u64 / 2;
/// Number of wake-ups consumed before their count is sent to the peer.
pub(crate) const WAKES_PER_CREDIT: u64 = RECEIVES as u64 / 4;

impl WakeSender {
    pub fn new(always: bool) -> Self {
        Self { peer_request: WakeRequest::FIRST, is_due: false, sent: 0, taken: 0, always }
    }

    /// Returns whether control words must be sent as wake-ups.
    #[inline]
    pub const fn wakes(&self) -> bool {
        self.peer_request.is_woken || self.always
    }

    /// Returns whether bytes may be sent: not if they are wake-ups and the peer has not consumed enough of the earlier
    /// ones.
    #[inline]
    pub const fn may_send(&self) -> bool {
        !self.wakes() || self.sent - self.taken < FOR_BYTES
    }

    /// Handles the peer's wake request. It takes effect with the next control word.
    #[inline]
    pub fn on_request(&mut self, request: WakeRequest) {
        if request != self.peer_request {
            self.peer_request = request;
            self.is_due = request.is_woken;
        }
    }

    /// Returns the acknowledgement, if one is due, of an end that has written up to `written`.
    #[inline]
    pub const fn due(&self, written: u64) -> Option<WakeAck> {
        if self.is_due { Some(WakeAck { number: self.peer_request.number, from: written }) } else { None }
    }

    /// Records that the acknowledgement was sent.
    pub fn on_sent(&mut self) {
        self.is_due = false;
    }
}

#[cfg(test)]
impl WakeReceiver {
    /// Creates the state of an end that polls: its request for no wake-ups has been sent.
    pub fn polling() -> Self {
        let mut receiver = Self::new(true);
        receiver.request(false);
        receiver.on_sent();
        receiver
    }

    pub fn wake_request(&self) -> WakeRequest {
        self.wake_request
    }
}

#[cfg(test)]
impl WakeSender {
    /// Creates the state after receiving `request`.
    pub fn after_request(request: WakeRequest) -> Self {
        let mut sender = Self::new(false);
        sender.on_request(request);
        sender
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prevents_sleep_before_the_announced_byte_is_seen() {
        let (mut receiver, mut sender) = (WakeReceiver::new(true), WakeSender::new(false));
        assert!(receiver.may_sleep(0) && sender.wakes());
        for _ in 0..SPURIOUS_WAKES_MAX {
            receiver.on_spurious_wake();
        }
        sender.on_request(receiver.due().unwrap());
        receiver.on_sent();
        assert!(!sender.wakes() && sender.due(5).is_none() && !receiver.may_sleep(u64::MAX));
        receiver.on_wants_sleep();
        assert!(!receiver.may_sleep(u64::MAX), "not acknowledged");
        sender.on_request(receiver.due().unwrap());
        receiver.on_ack(WakeAck { number: 1, from: 0 });
        assert!(!receiver.may_sleep(u64::MAX), "an old ack");
        let ack = sender.due(500).unwrap();
        receiver.on_ack(ack);
        assert!(sender.wakes() && !receiver.may_sleep(499) && receiver.may_sleep(500));
    }

    #[test]
    fn never_stops_wake_ups_while_waiting_on_a_descriptor() {
        let mut receiver = WakeReceiver::new(false);
        (0..1_000).for_each(|_| receiver.on_spurious_wake());
        assert!(receiver.due().is_none() && receiver.may_sleep(0));
    }

    #[test]
    fn bytes_leave_receives_for_words() {
        let mut sender = WakeSender::new(true);
        sender.sent = FOR_BYTES - 1;
        assert!(sender.may_send());
        sender.sent += 1;
        assert!(!sender.may_send());
        sender.taken = 1;
        assert!(sender.may_send());
        sender.on_request(WakeRequest::FIRST.next(false));
        assert!(sender.wakes(), "where words are believed by their wake-ups alone, requests change nothing");
    }
}
