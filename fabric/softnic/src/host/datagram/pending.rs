//! Datagrams that wait: for the way to their destination, or for the destination to take them.
//!
//! The owner of the queue pair posts and never waits. What cannot go now is copied here, and goes on by whoever comes
//! first: the owner with its next request, the poll of its send completion queue, or the service thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use farcall_shm::{Mutex, WaitTime};
use farcall_stats::Counter;
use farcall_verbs::Sge;

use super::counters::{Counters, SendOutcome};
use super::{Message, Outlet, Route};
use crate::host::qp::{TARGET_WAIT_MIN, gather_to_vec};
use crate::life::{Interest, Meeting};

/// Datagrams that have been sent, for their sender, though the way is not known yet: enough for a first message or a
/// small burst. Further ones keep their places in the send queue.
const MAX_EARLY: usize = 16;

/// How long datagrams beyond those wait for the way to their destination, in the send queue: its process must get a
/// processor to tell it, while a network's way is known.
const WAY_WAIT_MAX: Duration = TARGET_WAIT_MIN;

/// How long the send queue stands still for a destination that does nothing. A real link takes datagrams at its own
/// pace, and a receiver that keeps up with it loses none; here the pace is the receiver's.
pub(crate) const RECEIVE_WAIT_MAX: Duration = Duration::from_millis(200);

/// As that, if it has receives and must only make room on the way to them, which a real link does not ask of a program.
pub(crate) const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long it stands still for one destination in all, whatever that does: else one that does a little now and then
/// would hold up all others.
pub(crate) const HOLD_MAX: Duration = Duration::from_secs(1);

/// How much of that each datagram gives back that goes there: who takes so many is slow, and no more.
pub(crate) const HELD_FOR_ONE: Duration = Duration::from_millis(1);

/// What an owner finds when it has a datagram for a destination that others wait for.
pub(crate) enum Enqueued {
    /// It was kept, and has been sent as far as its sender is concerned.
    Early,
    /// It was kept, and ends when [`Pending::is_released`] says so of its number.
    Waits(u64),
    /// It was dropped: the way has been sought for too long, and enough are kept.
    Dropped,
    /// The way, with nothing ahead.
    Found(Box<Outlet>),
    /// There is none.
    Lost,
}

enum Way {
    Sought,
    /// Known, but the destination takes nothing now.
    Blocked(Box<Outlet>),
    Found(Box<Outlet>),
    /// Refused, or already taken by the owner.
    Lost,
}

struct QueuedDatagram {
    bytes: Vec<u8>,
    /// Its sender was told that it is sent: as one that has arrived, it does not wait for a receive.
    is_sent: bool,
    flags: u8,
    route: Route,
    imm_be: u32,
    qkey: u32,
}

impl QueuedDatagram {
    /// # Safety
    /// The message's elements must be readable.
    unsafe fn copy(message: &Message<'_>, is_sent: bool) -> Self {
        let mut bytes = Vec::with_capacity(message.len_bytes);
        // SAFETY: the caller's promise.
        unsafe { gather_to_vec(&mut bytes, message.sges) };
        let Message { flags, route, imm_be, qkey, .. } = *message;
        Self { bytes, is_sent, flags, route, imm_be, qkey }
    }

    fn offer(&self, outlet: &mut Outlet) -> SendOutcome {
        let addr = self.bytes.as_ptr().expose_provenance() as u64;
        let sges = [Sge { addr, length: self.bytes.len() as u32, lkey: 0 }];
        let Self { flags, route, imm_be, qkey, .. } = *self;
        let len_bytes = self.bytes.len();
        let message = Message { sges: &sges, len_bytes, flags, route, imm_be, qkey };
        // SAFETY: the element is a vector that lives through the call.
        unsafe { outlet.offer(&message) }
    }
}

struct State {
    way: Way,
    queue: VecDeque<QueuedDatagram>,
    /// The number of the oldest that is kept.
    first: u64,
    /// Numbers below it are on their way, dropped, or of no concern to their sender.
    released: u64,
    /// How many of them the answer that is under way is about.
    judged: Option<usize>,
    /// For the way, by those beyond what is kept.
    waited: WaitTime,
}

impl State {
    fn push(&mut self, datagram: QueuedDatagram) -> u64 {
        self.queue.push_back(datagram);
        self.first + self.queue.len() as u64 - 1
    }

    /// Takes the oldest ones away.
    fn forget(&mut self, count: usize) {
        self.queue.drain(..count);
        self.first += count as u64;
        self.released = self.released.max(self.first);
    }

    /// Sends what the destination takes, drops what it will not take. Returns whether some went on because the
    /// destination told so.
    fn advance(&mut self, mut outlet: Box<Outlet>, to: Tally<'_>) -> bool {
        let (first, was_told) = (self.first, outlet.take_answer());
        while let Some(datagram) = self.queue.front() {
            // Before it is tried: what comes after that, the destination tells.
            let given = outlet.given();
            match datagram.offer(&mut outlet) {
                SendOutcome::Sent => to.sent.increment(),
                SendOutcome::NoReceive if datagram.is_sent => to.dropped.increment(),
                outcome if outlet.is_worth_waiting(outcome) => {
                    outlet.await_more(given, outcome);
                    break;
                }
                _ => to.dropped.increment(),
            }
            self.forget(1);
        }
        outlet.ring();
        if self.queue.is_empty() {
            outlet.end_wait();
            self.way = Way::Found(outlet);
        } else {
            self.way = Way::Blocked(outlet);
        }
        was_told && self.first != first
    }

    /// There is no way any more.
    fn lose(&mut self, to: Tally<'_>) {
        to.dropped.add(self.queue.len() as u64);
        self.forget(self.queue.len());
        self.way = Way::Lost;
    }
}

/// Where it is counted what became of them. Each counter has one writer.
#[derive(Clone, Copy)]
pub(crate) struct Tally<'a> {
    pub(crate) sent: &'a Counter,
    pub(crate) dropped: &'a Counter,
}

impl<'a> Tally<'a> {
    /// Service thread: of what was kept until the way was known.
    pub(crate) fn late(stats: &'a Counters) -> Self {
        Self { sent: &stats.sent_late, dropped: &stats.dropped_late }
    }

    /// For whoever holds the lock of what has not ended.
    pub(crate) fn after_wait(stats: &'a Counters) -> Self {
        Self { sent: &stats.sent_after_wait, dropped: &stats.dropped_after_wait }
    }
}

pub(crate) struct Pending {
    pub(crate) dst_qpn: u32,
    pub(crate) interest: Interest,
    /// With the process of the destination, as long as that has not answered.
    pub(super) meeting: Mutex<Option<Arc<Meeting>>>,
    state: Mutex<State>,
}

impl Pending {
    fn with(dst_qpn: u32, way: Way) -> Self {
        let queue = VecDeque::new();
        let state = State { way, queue, first: 0, released: 0, judged: None, waited: WaitTime::default() };
        Self { dst_qpn, interest: Interest::default(), meeting: Mutex::default(), state: Mutex::new(state) }
    }

    /// For a destination whose way must be asked for.
    pub(crate) fn new(dst_qpn: u32) -> Self {
        Self::with(dst_qpn, Way::Sought)
    }

    /// For a destination that does not take a datagram now, which gets number 0.
    ///
    /// # Safety
    /// The message's elements must be readable.
    pub(crate) unsafe fn blocked(dst_qpn: u32, outlet: Box<Outlet>, message: &Message<'_>) -> Self {
        let pending = Self::with(dst_qpn, Way::Blocked(outlet));
        // SAFETY: the caller's promise.
        pending.state.lock().push(unsafe { QueuedDatagram::copy(message, false) });
        pending
    }

    /// Whether the request of a number has ended.
    pub(crate) fn is_released(&self, number: u64) -> bool {
        number < self.state.lock().released
    }

    /// Owner: keeps a datagram, unless the way is free.
    ///
    /// # Safety
    /// The message's elements must be readable.
    pub(crate) unsafe fn keep(&self, message: &Message<'_>) -> Enqueued {
        let mut state = self.state.lock();
        let is_sought = match std::mem::replace(&mut state.way, Way::Lost) {
            Way::Found(outlet) => return Enqueued::Found(outlet),
            Way::Lost => return Enqueued::Lost,
            way => {
                let is_sought = matches!(way, Way::Sought);
                state.way = way;
                is_sought
            }
        };
        let is_early = is_sought && state.queue.len() < MAX_EARLY;
        if is_sought && !is_early && state.waited.sample() > WAY_WAIT_MAX {
            return Enqueued::Dropped;
        }
        // SAFETY: the caller's promise.
        let number = state.push(unsafe { QueuedDatagram::copy(message, is_early) });
        if is_early { Enqueued::Early } else { Enqueued::Waits(number) }
    }

    /// Goes on, if the destination takes something, or gives up, if it has done nothing for too long. Returns whether
    /// some went on because the destination told so.
    pub(crate) fn advance(&self, to: Tally<'_>) -> bool {
        let (mut state, mut was_told) = (self.state.lock(), false);
        match std::mem::replace(&mut state.way, Way::Lost) {
            Way::Blocked(outlet) if outlet.is_current() => was_told = state.advance(outlet, to),
            Way::Blocked(mut outlet) => {
                was_told = outlet.take_answer();
                state.lose(to);
            }
            way => state.way = way,
        }
        if matches!(state.way, Way::Sought)
            && state.queue.len() > MAX_EARLY
            && state.waited.sample() > WAY_WAIT_MAX
        {
            to.dropped.add((state.queue.len() - MAX_EARLY) as u64);
            state.released = state.first + state.queue.len() as u64;
            state.queue.truncate(MAX_EARLY);
        }
        was_told
    }

    /// Has the destination tell when it takes something; returns whether it was asked now.
    pub(crate) fn ask(&self) -> bool {
        match &mut self.state.lock().way {
            Way::Blocked(outlet) => outlet.ask(),
            _ => false,
        }
    }

    /// Service thread: the way is found. What was kept goes first.
    pub(crate) fn found(&self, outlet: Box<Outlet>, stats: &Counters) {
        stats.ways_found_late.increment();
        self.state.lock().advance(outlet, Tally::late(stats));
    }

    /// Whether its way is still asked for.
    pub(crate) fn is_sought(&self) -> bool {
        matches!(self.state.lock().way, Way::Sought)
    }

    /// Whether a way was found, and leads nowhere any more. What waits for a way, or on one, is seen to by others.
    pub(crate) fn leads_nowhere(&self) -> bool {
        matches!(&self.state.lock().way, Way::Found(outlet) if !outlet.is_current())
    }

    /// Whether it keeps datagrams that their sender does not wait for.
    pub(crate) fn keeps_early(&self) -> bool {
        self.state.lock().queue.front().is_some_and(|oldest| oldest.is_sent)
    }

    /// Service thread: it asks now, if it does not already. What is kept later deserves a later answer.
    pub(crate) fn begin_ask(&self) {
        let mut state = self.state.lock();
        if state.judged.is_none() {
            state.judged = Some(state.queue.len());
        }
    }

    /// Service thread: there was no way when it asked. Returns whether that is all; else it must ask once more.
    pub(crate) fn refused(&self, stats: &Counters) -> bool {
        let mut state = self.state.lock();
        let judged = state.judged.take().unwrap_or(0).min(state.queue.len());
        state.forget(judged);
        stats.dropped_late.add(judged as u64);
        if !state.queue.is_empty() {
            return false;
        }
        stats.ways_lost_late.increment();
        state.way = Way::Lost;
        true
    }
}
