//! State that a channel shares with its completion queues: the due events and the time of the next one.

use crate::event_queue::EventQueue;
use crate::timer::Timer;

/// A channel's timer and events, as its queues see them.
pub(crate) struct DueEvents {
    /// Set to the time at which the next completion of an armed queue is ready.
    pub(crate) timer: Timer,
    /// Ids of the queues that have an event.
    pub(crate) events: EventQueue<u32>,
}
