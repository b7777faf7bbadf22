//! The replies of one connection in the order of its commands, although some are produced by other threads.

use std::collections::VecDeque;

use crate::memcached::{Report, ServerInfo, list_prefixes};
use crate::store::{Prefixes, Stats};
use crate::wire::decode_stats;

/// Assumed length of a reply of another thread until it is received.
const AWAITED_BYTES: usize = 16 << 10;

/// Maximum number of sent bytes kept before the unsent ones; never more than the number of unsent bytes.
const SENT_KEEP_BYTES: usize = 64 << 10;

/// Replies in order: bytes that can be sent, then parts of which the first is not complete yet.
#[derive(Debug, Default)]
pub(super) struct ReplyQueue {
    /// Replies that can be sent; the first `sent` bytes have been sent.
    pub(super) ready: Vec<u8>,
    pub(super) sent: usize,
    parts: VecDeque<Part>,
    /// Bytes of complete parts that follow an incomplete one.
    blocked: Vec<u8>,
    /// Number of the first part.
    first_part: u64,
    waiting: usize,
}

#[derive(Debug)]
enum Part {
    /// A range of `blocked`.
    Written {
        start: usize,
        end: usize,
    },
    Waiting,
    Gathering {
        left: u32,
        merged: MergedReply,
    },
}

/// A reply to which several threads contribute.
#[derive(Debug)]
pub(super) enum MergedReply {
    /// The threads only confirm completion; the reply is this text.
    Done(&'static [u8]),
    Report(Box<(Report, Stats)>),
    Prefixes(Box<Prefixes>),
}

impl MergedReply {
    /// Adds the contribution of a thread. A thread that has shut down contributes nothing.
    fn add(&mut self, contribution: &[u8]) {
        match self {
            MergedReply::Done(_) => {}
            MergedReply::Report(report) => report.1 += &decode_stats(contribution).unwrap_or_default(),
            MergedReply::Prefixes(prefixes) => prefixes.add_encoded(contribution),
        }
    }

    fn render(&self, info: &ServerInfo, now_ms: u64, out: &mut Vec<u8>) {
        match self {
            MergedReply::Done(reply) => out.extend_from_slice(reply),
            MergedReply::Report(report) => report.0.render(&report.1, info, now_ms, out),
            MergedReply::Prefixes(prefixes) => list_prefixes(prefixes, out),
        }
    }
}

impl ReplyQueue {
    /// Returns whether another command may start.
    pub(super) fn has_room(&self, max_bytes: usize) -> bool {
        self.waiting * AWAITED_BYTES + self.unsent_bytes() + self.blocked.len() < max_bytes
    }

    /// Returns the number of bytes that can be sent.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.ready.len() - self.sent
    }

    /// Returns the number of stored bytes, including sent ones.
    #[inline]
    pub(super) fn stored_bytes(&self) -> usize {
        self.ready.len() + self.blocked.len()
    }

    /// Records that `bytes` more were sent. The buffer does not grow without bound if the client never receives all
    /// replies.
    #[inline]
    pub(super) fn note_sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.ready.len() {
            self.ready.clear();
            self.sent = 0;
        } else if self.sent > SENT_KEEP_BYTES.max(self.unsent_bytes()) {
            self.ready.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Returns the memory used by the buffers.
    #[inline]
    pub(super) fn held_bytes(&self) -> usize {
        self.ready.capacity() + self.blocked.capacity()
    }

    /// Returns whether no reply is unsent or incomplete.
    pub(super) fn is_done(&self) -> bool {
        self.unsent_bytes() == 0 && self.parts.is_empty()
    }

    /// Appends the reply that `write` produces on this thread.
    #[inline]
    pub(super) fn local(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.parts.is_empty() {
            return write(&mut self.ready);
        }
        let start = self.blocked.len();
        write(&mut self.blocked);
        let end = self.blocked.len();
        match self.parts.back_mut() {
            Some(Part::Written { end: last, .. }) if *last == start => *last = end,
            _ => self.parts.push_back(Part::Written { start, end }),
        }
    }

    /// Reserves the position of a reply that another thread produces. Returns its number.
    pub(super) fn reserve_one(&mut self) -> u64 {
        self.push_waiting(Part::Waiting)
    }

    /// Reserves the position of a reply to which `threads` other threads contribute. Returns its number.
    pub(super) fn reserve_all(&mut self, threads: u32, merged: MergedReply) -> u64 {
        self.push_waiting(Part::Gathering { left: threads, merged })
    }

    fn push_waiting(&mut self, part: Part) -> u64 {
        self.waiting += 1;
        self.parts.push_back(part);
        self.first_part + self.parts.len() as u64 - 1
    }

    /// Completes the part `part` with the reply of another thread.
    pub(super) fn deliver(&mut self, part: u64, reply: &[u8], info: &ServerInfo, now_ms: u64) {
        let Some(place) = part.checked_sub(self.first_part).map(|place| place as usize) else { return };
        let Some(slot) = self.parts.get_mut(place) else { return };
        let start = self.blocked.len();
        match slot {
            Part::Written { .. } => return,
            Part::Waiting => self.blocked.extend_from_slice(reply),
            Part::Gathering { left, merged } => {
                merged.add(reply);
                *left -= 1;
                if *left > 0 {
                    return;
                }
                merged.render(info, now_ms, &mut self.blocked);
            }
        }
        *slot = Part::Written { start, end: self.blocked.len() };
        self.waiting -= 1;
        if place == 0 {
            self.release();
        }
    }

    /// Moves the leading complete parts to the bytes that can be sent.
    fn release(&mut self) {
        while let Some(&Part::Written { start, end }) = self.parts.front() {
            self.ready.extend_from_slice(&self.blocked[start..end]);
            self.parts.pop_front();
            self.first_part += 1;
        }
        if self.parts.is_empty() {
            self.blocked.clear();
            self.blocked.shrink_to(SENT_KEEP_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(replies: &ReplyQueue) -> &str {
        std::str::from_utf8(&replies.ready[replies.sent..]).unwrap()
    }

    #[test]
    fn replies_leave_in_the_order_of_their_commands() {
        let (info, mut replies) = (ServerInfo::default(), ReplyQueue::default());
        replies.local(|out| out.extend_from_slice(b"1"));
        let second = replies.reserve_one();
        replies.local(|out| out.extend_from_slice(b"3"));
        replies.local(|out| out.extend_from_slice(b"4"));
        let fifth = replies.reserve_one();
        let sixth = replies.reserve_all(2, MergedReply::Done(b"6"));
        replies.local(|out| out.extend_from_slice(b"7"));
        assert_eq!(text(&replies), "1");
        replies.deliver(fifth, b"5", &info, 0);
        replies.deliver(sixth, b"", &info, 0);
        assert_eq!(text(&replies), "1");
        replies.deliver(second, b"2", &info, 0);
        assert_eq!(text(&replies), "12345");
        assert!(!replies.is_done());
        replies.deliver(sixth, b"", &info, 0);
        assert_eq!(text(&replies), "1234567");
        replies.deliver(second, b"late", &info, 0);
        replies.deliver(99, b"never asked", &info, 0);
        replies.note_sent(7);
        assert!(replies.is_done());
        assert_eq!(replies.waiting, 0);
        replies.local(|out| out.extend_from_slice(b"8"));
        assert_eq!(text(&replies), "8");
    }

    #[test]
    fn room_is_bounded_in_bytes_and_in_replies_awaited() {
        let mut replies = ReplyQueue::default();
        assert!(replies.has_room(1));
        replies.local(|out| out.extend_from_slice(b"1"));
        assert!(!replies.has_room(1));
        for _ in 0..64 {
            assert!(replies.has_room(1 << 20));
            replies.reserve_one();
        }
        assert!(!replies.has_room(1 << 20));
    }

    #[test]
    fn bounds_the_reply_buffer_of_a_slow_client() {
        let mut replies = ReplyQueue::default();
        let (mut made, mut sent) = (0u64, 0u64);
        for _ in 0..1_000 {
            while replies.has_room(1 << 20) {
                replies.local(|out| out.extend_from_slice(&made.to_le_bytes().repeat(125)));
                made += 1;
            }
            replies.note_sent(10_000);
            sent += 10;
            let next = &replies.ready[replies.sent..][..8];
            assert_eq!(next, sent.to_le_bytes(), "each byte is sent once, in its order");
        }
        assert!(replies.held_bytes() <= 4 << 20, "{} bytes", replies.held_bytes());
    }
}
