//! The event queue: one order for all events.

use std::collections::BTreeMap;

use farcall_wire::{Timer, Token};

use crate::packet::Frame;

/// An event. Its numbers identify objects that may have been removed before it occurs; an `incarnation` identifies the
/// incarnation of the object for which it was scheduled.
#[derive(Debug)]
pub(crate) enum Event {
    /// A packet arrives at its node.
    Arrive(Box<Frame>),
    /// A queue pair sends its next packet.
    Pump { qp: u32 },
    /// A timer of a queue pair expires.
    Timer { qp: u32, timer: Timer, generation: u64 },
    /// A memory access of a queue pair has ended.
    Accessed { qp: u32, token: Token },
    /// The next data packet of a READ is due.
    Respond { qp: u32, incarnation: u64 },
    /// A chunk of payload is placed.
    Place { chunk: u64 },
    /// A completion queue has overrun.
    Overrun { cq: u32 },
    /// An item arrives at a pipe's end.
    Pipe { end: u32 },
    /// A connection request arrives at its node.
    Dial { end: u32, attempt: u32 },
    /// An endpoint runs a step.
    Step { task: u32, incarnation: u64 },
}

/// Events ordered by time; those of equal time in the order in which they were scheduled.
#[derive(Default)]
pub(crate) struct EventQueue {
    events: BTreeMap<(u64, u64), Event>,
    order: u64,
}

impl EventQueue {
    pub(crate) fn push(&mut self, at_ns: u64, event: Event) {
        self.order += 1;
        self.events.insert((at_ns, self.order), event);
    }

    pub(crate) fn next_at_ns(&self) -> Option<u64> {
        self.events.first_key_value().map(|((at_ns, _), _)| *at_ns)
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        self.events.pop_first().map(|((at_ns, _), event)| (at_ns, event))
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
