//! Virtual time: the clock, the event queue, and the trace of what happened at which time.

use crate::queue::{Event, EventQueue};
use crate::trace::{RecordKind, Trace};

/// The clock and everything that is ordered by it.
pub(crate) struct Timeline {
    now_ns: u64,
    /// CPU time of the calls of the running endpoint so far; `None` between steps.
    debt_ns: Option<u64>,
    events: EventQueue,
    trace: Trace,
}

impl Timeline {
    pub(crate) fn new(keep_records: usize) -> Self {
        Self { now_ns: 0, debt_ns: None, events: EventQueue::default(), trace: Trace::new(keep_records) }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Begins a step of an endpoint, which costs `ns` of CPU time.
    pub(crate) fn begin_step(&mut self, ns: u64) {
        self.debt_ns = Some(ns);
    }

    /// Adds to the CPU time of the running endpoint.
    pub(crate) fn charge(&mut self, ns: u64) {
        if let Some(debt_ns) = &mut self.debt_ns {
            *debt_ns += ns;
        }
    }

    /// Returns the time at which an action of the running endpoint takes effect.
    pub(crate) fn effect_ns(&self) -> u64 {
        self.now_ns + self.debt_ns.unwrap_or(0)
    }

    /// Ends the step; returns the time up to which its calls take.
    pub(crate) fn end_step(&mut self) -> u64 {
        self.now_ns + self.debt_ns.take().unwrap_or(0)
    }

    pub(crate) fn note(&mut self, what: RecordKind, numbers: [u64; 4]) {
        self.trace.note(self.now_ns, what, numbers);
    }

    pub(crate) fn at(&mut self, at_ns: u64, event: Event) {
        self.events.push(at_ns.max(self.now_ns), event);
    }

    pub(crate) fn next_at_ns(&self) -> Option<u64> {
        self.events.next_at_ns()
    }

    /// Advances the time to the next event and returns it.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        let (at_ns, event) = self.events.pop()?;
        self.now_ns = at_ns;
        Some(event)
    }

    /// Advances the time, if it is earlier.
    pub(crate) fn advance_to(&mut self, at_ns: u64) {
        self.now_ns = self.now_ns.max(at_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_follow_the_calls_of_a_step() {
        let mut time = Timeline::new(0);
        time.charge(7);
        assert_eq!(time.effect_ns(), 0, "no endpoint runs");
        time.advance_to(100);
        time.begin_step(5);
        time.charge(7);
        assert_eq!((time.now_ns(), time.effect_ns()), (100, 112));
        assert_eq!(time.end_step(), 112);
        assert_eq!(time.effect_ns(), 100);
    }

    #[test]
    fn no_event_occurs_in_the_past() {
        let mut time = Timeline::new(0);
        time.advance_to(100);
        time.at(50, Event::Overrun { cq: 1 });
        assert_eq!(time.next_at_ns(), Some(100));
        assert!(matches!(time.next_event(), Some(Event::Overrun { cq: 1 })));
        time.advance_to(50);
        assert_eq!(time.now_ns(), 100);
    }
}
