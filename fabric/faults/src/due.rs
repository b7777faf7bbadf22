//! What a channel and its completion queues share: which events are due, and when.

use crate::event_queue::EventQueue;
use crate::timer::Timer;

/// What a channel's queues know of it.
pub(crate) struct Due {
    /// When the next completion is ready that an armed queue waits for.
    pub(crate) timer: Timer,
    /// The queues with an event.
    pub(crate) events: EventQueue<u32>,
}
