//! Answers that come later: asked for, in one message for all of them, while calls wait for such.
//!
//! A question whose response the server writes or sends also says: tell me of the next answer. The server then wakes
//! the client once, and the client asks again. A client that fetches asks like that after R questions in vain (RF-RPC),
//! or is told because it says that it is about to sleep. Until then, with a server of an earlier version, and over a
//! transport that may lose the wake-up, it asks after pauses. These grow with the time that they have taken together, so
//! that an answer is late by a quarter of the time that its call took, at most by the longest pause.

use std::time::Duration;

use farcall_verbs::Nanos;

use super::CallerState;
use super::receive::Source;
use crate::error::{Broken, CallError, UnknownBecause};
use crate::wire::{
    Collected, CollectedResult, RESPONSE_HEADER_BYTES, ResponseFlags, ResponseHeader, Seq, Status,
    take_collected,
};

/// The first pause.
const PAUSE_MIN: Duration = Duration::from_micros(20);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// The longest where the server tells of answers, and that may be lost.
const PAUSE_TOLD_MAX: Duration = Duration::from_millis(100);

/// When to ask.
#[derive(Debug, Default)]
pub(super) struct Collecting {
    /// When the next question is due, unless one is under way.
    next: Option<Nanos>,
    pause: Duration,
    /// Questions in vain since the last news.
    pub in_vain: u32,
    /// Whether the question under way asks to be told, over this connection.
    asks_to_be_told: bool,
    /// Whether the server tells of the next answer.
    pub is_told: bool,
    /// Whether it told since the last question was sent.
    is_woken: bool,
    pub news: News,
    /// What the last question brought; here so that its memory is used again.
    entries: Vec<u8>,
}

/// What the turn brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum News {
    /// Nothing.
    #[default]
    None,
    /// A call that is answered later.
    Deferred,
    /// A response without an answer.
    NoAnswer,
    /// Answers: there may be more.
    Answers,
    /// That there is an answer.
    Told,
    /// A connection over which nobody was asked yet.
    Connection,
}

impl Collecting {
    /// Whether a question is due.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        self.next.is_some_and(|at| now >= at)
    }

    /// When the next one is.
    #[inline]
    pub const fn next(&self) -> Option<Nanos> {
        self.next
    }

    /// A question is under way.
    pub fn asked(&mut self, asks_to_be_told: bool) {
        (self.next, self.is_woken) = (None, false);
        self.asks_to_be_told = asks_to_be_told;
    }

    /// The server woke us for an answer.
    pub fn woken(&mut self) {
        (self.is_told, self.is_woken) = (false, true);
        if self.news == News::None {
            self.news = News::Told;
        }
    }

    /// The server was told that we are about to sleep.
    pub fn told_from_now_on(&mut self, is_reliable: bool) {
        self.is_told = true;
        self.next = self.next.filter(|_| !is_reliable);
    }

    /// What was said over an earlier connection does not count.
    pub fn connected(&mut self) {
        (self.asks_to_be_told, self.is_told, self.is_woken) = (false, false, false);
        self.news = News::Connection;
    }

    /// The session, and what was under way, is gone.
    pub fn restart(&mut self) {
        *self = Self { entries: std::mem::take(&mut self.entries), ..Self::default() };
    }
}

impl CallerState {
    /// After a turn with news: when to ask next.
    #[cold]
    pub(super) fn plan_to_collect(&mut self, now: Nanos) {
        let is_reliable = self.is_reliable();
        let is_collecting = self.is_collecting();
        let collecting = &mut self.collecting;
        let news = std::mem::take(&mut collecting.news);
        if self.calls.deferred == 0 {
            collecting.next = None;
            return;
        }
        collecting.pause = match news {
            News::None | News::NoAnswer => {
                let longest = if collecting.is_told { PAUSE_TOLD_MAX } else { PAUSE_MAX };
                (collecting.pause + collecting.pause / 4).clamp(PAUSE_MIN, longest)
            }
            _ => PAUSE_MIN,
        };
        let at = match news {
            News::Answers => now,
            _ if collecting.is_woken => now,
            _ => now + collecting.pause,
        };
        collecting.next = match news {
            // Its response brings news.
            _ if is_collecting => None,
            News::None | News::NoAnswer | News::Deferred if collecting.is_told && is_reliable => None,
            _ => Nanos::earlier(collecting.next, Some(at)),
        };
    }

    /// A response came once more.
    #[cold]
    pub(crate) fn told_again(&mut self) {
        if self.calls.deferred > 0 {
            self.counters.answers_told.increment();
            self.collecting.woken();
        }
    }

    /// Takes the answers of a response. Those to calls that were given up are forgotten.
    #[cold]
    pub(super) fn deliver_collected(&mut self, seq: Seq, header: &ResponseHeader, source: Source) {
        let collecting = &mut self.collecting;
        collecting.news = News::NoAnswer;
        collecting.in_vain = collecting.in_vain.saturating_add(1);
        // If it told meanwhile, it does so no more.
        collecting.is_told |= std::mem::take(&mut collecting.asks_to_be_told) && !collecting.is_woken;
        if header.flags.contains(ResponseFlags::ERROR) || self.end.is_none() {
            return;
        }
        let mut entries = std::mem::take(&mut self.collecting.entries);
        entries.clear();
        self.copy_payload(seq, header, source, &mut entries);
        let mut rest = &entries[..];
        while !rest.is_empty() {
            match take_collected(&mut rest) {
                Ok(collected) => self.deliver_late(&collected),
                Err(why) => {
                    self.break_off_at(seq, &why.to_string());
                    break;
                }
            }
        }
        self.collecting.entries = entries;
    }

    fn deliver_late(&mut self, collected: &Collected<'_>) {
        (self.collecting.news, self.collecting.in_vain) = (News::Answers, 0);
        let Some(at) = self.calls.find_deferred(collected.call_id) else {
            if let CollectedResult::Kept(_) = collected.result {
                self.to_release.push_back(collected.call_id);
            }
            return;
        };
        self.calls.no_longer_deferred(at);
        match collected.result {
            CollectedResult::Kept(total_bytes) if total_bytes > 0 => {
                self.begin_long_result(at, total_bytes as usize);
            }
            CollectedResult::Kept(_) => self.calls.finish(at, None),
            CollectedResult::Here(bytes) if collected.status == Status::OK => {
                self.counters.result_bytes.add(bytes.len() as u64);
                self.calls.get(at).reply.extend_from_slice(bytes);
                self.calls.finish(at, None);
            }
            CollectedResult::Here(text) => {
                self.counters.errors.increment();
                self.calls.finish(at, Some(CallError::of_status(collected.status, text)));
            }
        }
    }

    /// What was collected is corrupt, however often it is fetched, and the server has forgotten it: which calls it was
    /// about, nobody knows.
    pub(crate) fn lose_collected(&mut self) {
        let why = Broken::Protocol("answers that came later stay corrupt".into());
        for at in 0..self.calls.records.len() as u16 {
            if self.calls.get(at).is_deferred {
                self.stop_sending(at);
                self.counters.outcomes_unknown.increment();
                let unknown = UnknownBecause::Disconnected(why.clone());
                self.calls.finish(at, Some(CallError::OutcomeUnknown(unknown)));
            }
        }
        self.collecting.news = News::NoAnswer;
    }

    /// Appends the payload of a response.
    #[inline]
    pub(super) fn copy_payload(&self, seq: Seq, header: &ResponseHeader, source: Source, out: &mut Vec<u8>) {
        let Some(end) = &self.end else { return };
        let slot_at = end.responses.offset(seq);
        let (region, at) = match source {
            Source::Fetched => (&end.local, end.fetch_base + slot_at),
            Source::Written => (&end.replies, slot_at),
            Source::Sent { at } => (&end.replies, at),
        };
        region.append_to(at + RESPONSE_HEADER_BYTES, header.len_bytes as usize, out);
    }
}
