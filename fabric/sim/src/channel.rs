//! Completion channels and opened devices: events for programs, with simulated descriptors.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use farcall_verbs::AsyncEvent;

use crate::packet::Node;

/// The object of a simulated descriptor. The numbers are far above those of the system, which rejects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descriptor {
    Channel(u32),
    Pipe(u32),
    Listener(u32),
    Events(u32),
}

const KIND_SHIFT: u32 = 26;
const NUMBER_MASK: u32 = (1 << KIND_SHIFT) - 1;

impl Descriptor {
    pub(crate) fn fd(self) -> RawFd {
        let (kind, number) = match self {
            Self::Channel(number) => (28, number),
            Self::Pipe(number) => (29, number),
            Self::Listener(number) => (30, number),
            Self::Events(number) => (27, number),
        };
        (kind << KIND_SHIFT | number & NUMBER_MASK) as RawFd
    }

    pub(crate) fn of(fd: RawFd) -> Option<Self> {
        let number = fd as u32 & NUMBER_MASK;
        match fd as u32 >> KIND_SHIFT {
            27 => Some(Self::Events(number)),
            28 => Some(Self::Channel(number)),
            29 => Some(Self::Pipe(number)),
            30 => Some(Self::Listener(number)),
            _ => None,
        }
    }
}

/// Events of a node that wait for its program.
pub(crate) struct PendingEvents<T> {
    node: Node,
    events: VecDeque<T>,
}

/// The device's state of a channel: the completion queues with an event.
pub(crate) type Channel = PendingEvents<u32>;

/// An opened device.
pub(crate) type OpenDevice = PendingEvents<AsyncEvent>;

impl<T> PendingEvents<T> {
    pub(crate) fn new(node: Node) -> Self {
        Self { node, events: VecDeque::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Appends an event; returns the node.
    pub(crate) fn push(&mut self, event: T) -> Node {
        self.events.push_back(event);
        self.node
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.events.pop_front()
    }

    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&T) -> bool) {
        self.events.retain(is_kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_name_their_object_and_are_none_of_the_systems() {
        for descriptor in [Descriptor::Channel(0), Descriptor::Pipe(77), Descriptor::Listener(NUMBER_MASK)] {
            assert_eq!(Descriptor::of(descriptor.fd()), Some(descriptor));
            assert!(descriptor.fd() > 1 << 30);
        }
        assert_eq!(Descriptor::of(3), None);
        assert_eq!(Descriptor::of(-1), None);
    }
}
