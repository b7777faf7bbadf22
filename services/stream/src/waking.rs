//! Who wakes whom: state machines of both sides, without memory or queue pairs.
//!
//! A plain WRITE wakes nobody. An end that may sleep asks its peer to send every word with a wake-up (a [`Wish`]); the
//! peer answers with the byte from which on it does (a [`Promise`]), and that answer wakes, too. The end sleeps only
//! when it has seen everything up to that byte: whatever comes after it wakes. An end that polls asks for the opposite,
//! which needs no answer. Streams begin with wake-ups, promised from byte 0.

use crate::words::{Promise, Wish};

/// Whether the peer wakes us.
#[derive(Debug)]
pub(crate) struct Woken {
    wish: Wish,
    /// From which byte on, once that is promised.
    from: Option<u64>,
    is_due: bool,
    /// Wake-ups taken since the owner last wanted to sleep.
    in_vain: u32,
    may_poll: bool,
}

/// So many wake-ups in a row while the owner polls, and they are not asked for any more.
const IN_VAIN_MAX: u32 = 64;

impl Woken {
    pub fn new(may_poll: bool) -> Self {
        Self { wish: Wish::FIRST, from: Some(0), is_due: false, in_vain: 0, may_poll }
    }

    /// Whether wake-ups are asked for.
    #[inline]
    pub const fn is_asked_for(&self) -> bool {
        self.wish.is_woken
    }

    /// Whether nothing can come unnoticed to an end that has seen all bytes up to `seen`.
    #[inline]
    pub fn may_sleep(&self, seen: u64) -> bool {
        self.wish.is_woken && self.from.is_some_and(|from| seen >= from)
    }

    /// The owner wants to sleep.
    pub fn wants_sleep(&mut self) {
        self.in_vain = 0;
        if !self.wish.is_woken {
            self.ask(true);
        }
    }

    /// The owner sleeps, and somebody else looks: wake-ups are for nothing.
    pub fn is_covered(&mut self) {
        if self.wish.is_woken && self.from.is_some() {
            self.ask(false);
        }
    }

    /// A wake-up came that nobody slept for.
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

    /// The wish, if it is to be said.
    pub fn due(&self) -> Option<Wish> {
        self.is_due.then_some(self.wish)
    }

    /// The wish was said.
    pub fn said(&mut self) {
        self.is_due = false;
    }

    /// The peer promises.
    pub fn promised(&mut self, promise: Promise) {
        if self.wish.is_woken && promise.number == self.wish.number && self.from.is_none() {
            self.from = Some(promise.from);
        }
    }
}

/// Whether we wake the peer.
#[derive(Debug)]
pub(crate) struct Waker {
    heard: Wish,
    is_due: bool,
    /// Wake-ups sent, and how many of them the peer is known to have taken.
    pub sent: u64,
    pub taken: u64,
    /// The peer believes nothing else: WRITEs land in its memory in any order.
    always: bool,
}

/// Receives that each end posts for wake-ups.
pub(crate) const RECEIVES: u32 = 64;
/// Wake-ups under way for bytes; the other receives are for words that are not sent again before the peer has acted.
const FOR_BYTES: u64 = RECEIVES as u64 / 2;
/// So many wake-ups are taken before the peer is told.
pub(crate) const TOLD_AT_ONCE: u64 = RECEIVES as u64 / 4;

impl Waker {
    pub fn new(always: bool) -> Self {
        Self { heard: Wish::FIRST, is_due: false, sent: 0, taken: 0, always }
    }

    /// Whether words are to be sent with a wake-up.
    #[inline]
    pub const fn wakes(&self) -> bool {
        self.heard.is_woken || self.always
    }

    /// Whether bytes may be sent: not if they wake and the peer has not taken enough wake-ups yet.
    #[inline]
    pub const fn may_send(&self) -> bool {
        !self.wakes() || self.sent - self.taken < FOR_BYTES
    }

    /// The peer wishes. From here on it is obeyed.
    #[inline]
    pub fn hear(&mut self, wish: Wish) {
        if wish != self.heard {
            self.heard = wish;
            self.is_due = wish.is_woken;
        }
    }

    /// The promise, if one is to be given by an end that has written so much.
    #[inline]
    pub const fn due(&self, written: u64) -> Option<Promise> {
        if self.is_due { Some(Promise { number: self.heard.number, from: written }) } else { None }
    }

    /// The promise was given.
    pub fn said(&mut self) {
        self.is_due = false;
    }
}

#[cfg(test)]
impl Woken {
    /// One that asked for no wake-ups, and was heard.
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
    /// One that has heard a wish.
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
    fn nobody_sleeps_before_the_promised_byte_was_seen() {
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
