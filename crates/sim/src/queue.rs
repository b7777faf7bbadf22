//! The event queue: one order for everything.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::packet::Packet;

/// What happens at a time. Numbers name objects that may be gone by then; a `life` tells whether the object is still in
/// the state that the event was meant for.
#[derive(Debug)]
pub(crate) enum Event {
    /// A packet reaches its node.
    Arrive(Box<Packet>),
    /// A queue pair sends its next packet.
    Pump { qp: u32 },
    /// A queue pair has waited for an acknowledgement long enough.
    AckTimeout { qp: u32, life: u64 },
    /// A queue pair has waited for a receive of its peer long enough.
    RnrOver { qp: u32, life: u64 },
    /// A responder goes on with what it accepted.
    Respond { qp: u32, life: u64 },
    /// A piece of payload lands.
    Place { piece: u64 },
    /// A completion queue has overrun.
    Overrun { cq: u32 },
    /// A pipe's end gets what was sent or said.
    Pipe { end: u32 },
    /// A connection request reaches its node.
    Dial { end: u32, attempt: u32 },
    /// An endpoint has its turn.
    Step { task: u32, life: u64 },
}

struct Entry {
    at_ns: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Entry {
    fn key(&self) -> (u64, u64) {
        (self.at_ns, self.order)
    }
}

/// Events in the order of their times; of one time, in the order in which they were put in.
#[derive(Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<Entry>>,
    order: u64,
}

impl EventQueue {
    pub(crate) fn push(&mut self, at_ns: u64, event: Event) {
        self.order += 1;
        self.heap.push(Reverse(Entry { at_ns, order: self.order, event }));
    }

    pub(crate) fn next_at_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.at_ns)
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at_ns, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_order_of_insertion() {
        let mut queue = EventQueue::default();
        for (at_ns, cq) in [(5, 1), (3, 2), (5, 3), (3, 4), (1, 5)] {
            queue.push(at_ns, Event::Overrun { cq });
        }
        assert_eq!(queue.next_at_ns(), Some(1));
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop())
            .map(|(_, event)| match event {
                Event::Overrun { cq } => cq,
                _ => unreachable!("only these were put in"),
            })
            .collect();
        assert_eq!(order, [5, 2, 4, 1, 3]);
    }
}
