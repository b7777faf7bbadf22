//! Queues of the events that programs have not received yet: one for each channel, counted by its eventfd.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use farcall_wire::cm::Event;

use crate::errno::Errno;
use crate::listener::Slot;
use crate::token::Token;

/// An event that the program has not received yet.
pub enum QueuedEvent {
    AddressResolved,
    AddressError(Errno),
    RouteResolved,
    /// A peer's request arrived; `end` is the new endpoint that will reply to it.
    Request {
        end: Token,
        _slot: Slot,
    },
    Connection(Event),
}

/// Queued events of one channel, whose eventfd counts them.
struct Queue {
    count: OwnedFd,
    waiting: VecDeque<(Token, QueuedEvent)>,
}

/// The queues of all channels. Each event belongs to an endpoint.
#[derive(Default)]
pub struct EventQueues(HashMap<Token, Queue>);

impl EventQueues {
    /// Adds a queue, counted by an eventfd.
    pub fn add(&mut self, queue: Token, count: OwnedFd) {
        self.0.insert(queue, Queue { count, waiting: VecDeque::new() });
    }

    pub fn remove(&mut self, queue: Token) {
        self.0.remove(&queue);
    }

    pub fn push(&mut self, queue: Token, of: Token, notice: QueuedEvent) {
        if let Some(queue) = self.0.get_mut(&queue) {
            queue.waiting.push_back((of, notice));
            // Never blocks: the count is far below the maximum of an eventfd.
            let _ = rustix::io::write(&queue.count, &1_u64.to_ne_bytes());
        }
    }

    /// Removes and returns the next event of a queue.
    pub fn pop(&mut self, queue: Token) -> Option<(Token, QueuedEvent)> {
        let queue = self.0.get_mut(&queue)?;
        let next = queue.waiting.pop_front()?;
        decrement(&queue.count);
        Some(next)
    }

    /// Removes and returns the events of a queue for which `is_wanted` returns true.
    pub fn take_matching(
        &mut self,
        queue: Token,
        is_wanted: impl Fn(Token, &QueuedEvent) -> bool,
    ) -> Vec<(Token, QueuedEvent)> {
        let Some(queue) = self.0.get_mut(&queue) else { return Vec::new() };
        let waiting = std::mem::take(&mut queue.waiting);
        let (taken, left): (Vec<_>, _) = waiting.into_iter().partition(|(of, notice)| is_wanted(*of, notice));
        queue.waiting = VecDeque::from(left);
        for _ in &taken {
            decrement(&queue.count);
        }
        taken
    }

    /// Returns the endpoints of the requests that wait for the listener `of`.
    pub fn requests_of(&self, queue: Token, of: Token) -> Vec<Token> {
        let waiting = self.0.get(&queue).into_iter().flat_map(|queue| &queue.waiting);
        let requests = waiting.filter_map(|(listener, notice)| match notice {
            QueuedEvent::Request { end, .. } if *listener == of => Some(*end),
            _ => None,
        });
        requests.collect()
    }

    /// Returns whether a queue contains an event of an endpoint.
    pub fn contains(&self, queue: Token, of: Token) -> bool {
        self.0.get(&queue).is_some_and(|queue| queue.waiting.iter().any(|(token, _)| *token == of))
    }
}

/// Decrements a semaphore, which must not be zero.
fn decrement(count: &OwnedFd) {
    let _ = rustix::io::read(count, &mut [0_u8; 8]);
}
