//! The replies of one connection, kept in the order of its commands though some come from other threads.

use std::collections::VecDeque;

use crate::memcached::{ServerInfo, render_stats};
use crate::store::Stats;

/// Most replies of one connection that other threads may owe at a time.
const WAITING_MAX: usize = 64;

/// Replies in order: bytes that can be sent, then parts of which the first is still awaited.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// Ready to be sent; `sent` bytes of it already are.
    pub(super) ready: Vec<u8>,
    pub(super) sent: usize,
    parts: VecDeque<Part>,
    /// Bytes of parts behind one that is awaited.
    held: Vec<u8>,
    /// The number of the first part.
    first_part: u64,
    waiting: usize,
}

#[derive(Debug)]
enum Part {
    Held { start: usize, end: usize },
    Waiting,
    Gathering { left: u32, reply: &'static [u8], stats: Option<Box<Stats>> },
}

impl Replies {
    /// Whether another command may be begun.
    pub(super) fn has_room(&self, max_bytes: usize) -> bool {
        self.waiting < WAITING_MAX && self.unsent_bytes() + self.held.len() < max_bytes
    }

    /// Bytes ready to be sent.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.ready.len() - self.sent
    }

    /// Whether nothing is left to send or to wait for.
    pub(super) fn is_done(&self) -> bool {
        self.unsent_bytes() == 0 && self.parts.is_empty()
    }

    /// Appends the reply that `write` produces on this thread.
    #[inline]
    pub(super) fn local(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.parts.is_empty() {
            return write(&mut self.ready);
        }
        let start = self.held.len();
        write(&mut self.held);
        let end = self.held.len();
        match self.parts.back_mut() {
            Some(Part::Held { end: last, .. }) if *last == start => *last = end,
            _ => self.parts.push_back(Part::Held { start, end }),
        }
    }

    /// Reserves the place of a reply that another thread will give; its number.
    pub(super) fn await_one(&mut self) -> u64 {
        self.push_waiting(Part::Waiting)
    }

    /// Reserves the place of a reply that `threads` other threads contribute to.
    pub(super) fn await_all(&mut self, threads: u32, reply: &'static [u8], stats: Option<Box<Stats>>) -> u64 {
        self.push_waiting(Part::Gathering { left: threads, reply, stats })
    }

    fn push_waiting(&mut self, part: Part) -> u64 {
        self.waiting += 1;
        self.parts.push_back(part);
        self.first_part + self.parts.len() as u64 - 1
    }

    /// Fills the place `part` with what another thread answered.
    pub(super) fn deliver(&mut self, part: u64, reply: &[u8], info: &ServerInfo, now_ms: u64) {
        let Some(place) = part.checked_sub(self.first_part).map(|place| place as usize) else { return };
        let Some(slot) = self.parts.get_mut(place) else { return };
        let start = self.held.len();
        match slot {
            Part::Held { .. } => return,
            Part::Waiting => self.held.extend_from_slice(reply),
            Part::Gathering { left, reply: whole, stats } => {
                if let Some(stats) = stats {
                    **stats += &decode_stats(reply);
                }
                *left -= 1;
                if *left > 0 {
                    return;
                }
                match stats {
                    Some(stats) => render_stats(stats, info, now_ms, &mut self.held),
                    None => self.held.extend_from_slice(whole),
                }
            }
        }
        *slot = Part::Held { start, end: self.held.len() };
        self.waiting -= 1;
        if place == 0 {
            self.release();
        }
    }

    /// Moves the parts that nothing is awaited before to the bytes that can be sent.
    fn release(&mut self) {
        while let Some(&Part::Held { start, end }) = self.parts.front() {
            self.ready.extend_from_slice(&self.held[start..end]);
            self.parts.pop_front();
            self.first_part += 1;
        }
        if self.parts.is_empty() {
            self.held.clear();
        }
    }
}

/// Statistics as they travel between threads.
pub(super) fn encode_stats(stats: &Stats, out: &mut Vec<u8>) {
    stats.to_array().iter().for_each(|value| out.extend_from_slice(&value.to_ne_bytes()));
}

fn decode_stats(bytes: &[u8]) -> Stats {
    let mut values = [0; Stats::FIELDS];
    for (value, raw) in values.iter_mut().zip(bytes.chunks_exact(8)) {
        *value = u64::from_ne_bytes(raw.try_into().expect("chunks of eight bytes"));
    }
    Stats::from_array(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(replies: &Replies) -> &str {
        std::str::from_utf8(&replies.ready[replies.sent..]).unwrap()
    }

    #[test]
    fn replies_leave_in_the_order_of_their_commands() {
        let (info, mut replies) = (ServerInfo::default(), Replies::default());
        replies.local(|out| out.extend_from_slice(b"1"));
        let second = replies.await_one();
        replies.local(|out| out.extend_from_slice(b"3"));
        replies.local(|out| out.extend_from_slice(b"4"));
        let fifth = replies.await_one();
        let sixth = replies.await_all(2, b"6", None);
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
        replies.sent = 7;
        assert!(replies.is_done());
        assert_eq!(replies.waiting, 0);
        replies.local(|out| out.extend_from_slice(b"8"));
        assert_eq!(text(&replies), "8");
    }

    #[test]
    fn room_is_bounded_in_bytes_and_in_replies_awaited() {
        let mut replies = Replies::default();
        assert!(replies.has_room(1));
        replies.local(|out| out.extend_from_slice(b"1"));
        assert!(!replies.has_room(1));
        for _ in 0..WAITING_MAX {
            assert!(replies.has_room(1000));
            replies.await_one();
        }
        assert!(!replies.has_room(1000));
    }

    #[test]
    fn statistics_are_summed_over_threads() {
        let numbered = Stats::from_array(std::array::from_fn(|field| field as u64));
        let mut bytes = Vec::new();
        encode_stats(&numbered, &mut bytes);
        assert_eq!(decode_stats(&bytes), numbered);
    }
}
