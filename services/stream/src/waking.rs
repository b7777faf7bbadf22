//! State machines of both sides of the wake-up protocol, without memory or queue pairs.
//!
//! A plain WRITE does not wake a sleeping reader. An end that may sleep requests that its peer send every control word
//! as a wake-up (a [`Wish`]). The peer acknowledges with the position from which on it does so (a [`Promise`]); the
//! acknowledgement is a wake-up itself. Invariant: the end sleeps only when it has seen all bytes up to that position,
//! because all later ones arrive with wake-ups. An end that polls requests the opposite, which needs no
//! acknowledgement. Streams begin with wake-ups enabled and acknowledged from position 0.

use crate::words::{Promise, Wish};

/// Receiving side: whether the peer sends wake-ups to this end.
#[derive(Debug)]
pub(crate) struct Woken {
    wish: Wish,
    /// Position from which on the peer sends wake-ups; `None` until it is acknowledged.
    from: Option<u64>,
    is_due: bool,
    /// Number of wake-ups consumed since the application last wanted to sleep.
    in_vain: u32,
    may_poll: bool,
}

/// Number of consecutive wake-ups received while the application polls, after which the end requests that they stop.
const IN_VAIN_MAX: u32 = 64;

impl Woken {
    pub fn new(may_poll: bool) -> Self {
        Self { wish: Wish::FIRST, from: Some(0), is_due: false, in_vain: 0, may_poll }
    }

    /// Returns whether the current request is for wake-ups.
    #[inline]
    pub const fn is_asked_for(&self) -> bool {
        self.wish.is_woken
    }

    /// Returns whether every byte after `seen` is certain to arrive with a wake-up.
    #[inline]
    pub fn may_sleep(&self, seen: u64) -> bool {
        self.wish.is_woken && self.from.is_some_and(|from| seen >= from)
    }

    /// Called when the application wants to sleep: requests wake-ups if they are off.
    pub fn wants_sleep(&mut self) {
        self.in_vain = 0;
        if !self.wish.is_woken {
            self.ask(true);
        }
    }

    /// Called when the application sleeps and a poller polls for it: requests that the unneeded wake-ups stop.
    pub fn is_covered(&mut self) {
        if self.wish.is_woken && self.from.is_some() {
            self.ask(false);
        }
    }

    /// Records a wake-up that arrived while the application was polling.
    pub fn woken_in_vain(&mut self) {
        self.in_vain += 1;
        if self.in_vain >= IN_VAIN_MAX && self.may_poll && self.from.is_some() {
            self.in_vain = 0;
            self.ask(false);
        }
    }

    fn ask(&mut self, is_woken: bool) {
        self.wish = self.wish.next(is_woken);
        self.from = None;
        self.is_due = true;
    }

    /// Returns the wake request, if it must be sent.
    pub fn due(&self) -> Option<Wish> {
        self.is_due.then_some(self.wish)
    }

    /// Records that the request was sent.
    pub fn said(&mut self) {
        self.is_due = false;
    }

    /// Handles an acknowledgement. One for an earlier request is ignored.
    pub fn promised(&mut self, promise: Promise) {
        if self.wish.is_woken && promise.number == self.wish.number && self.from.is_none() {
            self.from = Some(promise.from);
        }
    }
}

/// Sending side: whether this end sends wake-ups to the peer.
#[derive(Debug)]
pub(crate) struct Waker {
    heard: Wish,
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
pub(crate) const TOLD_AT_ONCE: u64 = RECEIVES as u64 / 4;

impl Waker {
    pub fn new(always: bool) -> Self {
        Self { heard: Wish::FIRST, is_due: false, sent: 0, taken: 0, always }
    }

    /// Returns whether control words must be sent as wake-ups.
    #[inline]
    pub const fn wakes(&self) -> bool {
        self.heard.is_woken || self.always
    }

    /// Returns whether bytes may be sent: not if they are wake-ups and the peer has not consumed enough of the earlier
    /// ones.
    #[inline]
    pub const fn may_send(&self) -> bool {
        !self.wakes() || self.sent - self.taken < FOR_BYTES
    }

    /// Handles the peer's wake request. It takes effect with the next control word.
    #[inline]
    pub fn hear(&mut self, wish: Wish) {
        if wish != self.heard {
            self.heard = wish;
            self.is_due = wish.is_woken;
        }
    }

    /// Returns the acknowledgement, if one is due, of an end that has written up to `written`.
    #[inline]
    pub const fn due(&self, written: u64) -> Option<Promise> {
        if self.is_due { Some(Promise { number: self.heard.number, from: written }) } else { None }
    }

    /// Records that the acknowledgement was sent.
    pub fn said(&mut self) {
        self.is_due = false;
    }
}

#[cfg(test)]
impl Woken {
    /// Creates the state of an end that polls: its request for no wake-ups has been sent.
    pub fn that_polls() -> Self {
        let mut woken = Self::new(true);
        woken.ask(false);
        woken.said();
        woken
    }

    pub fn wish(&self) -> Wish {
        self.wish
    }
}

#[cfg(test)]
impl Waker {
    /// Creates the state after receiving `wish`.
    pub fn told(wish: Wish) -> Self {
        let mut waker = Self::new(false);
        waker.hear(wish);
        waker
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prevents_sleep_before_the_announced_byte_is_seen() {
        let (mut woken, mut waker) = (Woken::new(true), Waker::new(false));
        assert!(woken.may_sleep(0) && waker.wakes());
        for _ in 0..IN_VAIN_MAX {
            woken.woken_in_vain();
        }
        waker.hear(woken.due().unwrap());
        woken.said();
        assert!(!waker.wakes() && waker.due(5).is_none() && !woken.may_sleep(u64::MAX));
        woken.wants_sleep();
        assert!(!woken.may_sleep(u64::MAX), "not promised");
        waker.hear(woken.due().unwrap());
        woken.promised(Promise { number: 1, from: 0 });
        assert!(!woken.may_sleep(u64::MAX), "an old promise");
        let promise = waker.due(500).unwrap();
        woken.promised(promise);
        assert!(waker.wakes() && !woken.may_sleep(499) && woken.may_sleep(500));
    }

    #[test]
    fn an_end_that_waits_on_its_descriptor_never_asks_for_silence() {
        let mut woken = Woken::new(false);
        (0..1_000).for_each(|_| woken.woken_in_vain());
        assert!(woken.due().is_none() && woken.may_sleep(0));
    }

    #[test]
    fn bytes_leave_receives_for_words() {
        let mut waker = Waker::new(true);
        waker.sent = FOR_BYTES - 1;
        assert!(waker.may_send());
        waker.sent += 1;
        assert!(!waker.may_send());
        waker.taken = 1;
        assert!(waker.may_send());
        waker.hear(Wish::FIRST.next(false));
        assert!(waker.wakes(), "where words are believed by their wake-ups alone, wishes change nothing");
    }
}
