//! Datagrams that wait for a ring to their destination, or for the destination to accept them.
//!
//! The application thread posts and never blocks. A datagram that cannot be sent immediately is copied here. The first
//! of these threads to run sends it: the application thread with its next request, the polling thread of the send
//! completion queue, or the service thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use farcall_shm::{Mutex, WaitTime};
use farcall_stats::Counter;
use farcall_verbs::Sge;

use super::counters::{Counters, SendOutcome};
use super::{Message, Outlet, Route};
use crate::process::{ReplyInterest, PeerHandshake};
use crate::shm_transport::qp::{TARGET_WAIT_MIN, gather_to_vec};

/// Maximum number of datagrams whose request has completed although there is no ring yet: enough for a first message or
/// a small burst. Later datagrams occupy the send queue.
const MAX_EARLY: usize = 16;

/// Maximum time for which datagrams beyond [`MAX_EARLY`] wait in the send queue for a ring to their destination. Unlike
/// a network path, which is known in advance, a ring needs the destination's process to be scheduled.
const WAY_WAIT_MAX: Duration = TARGET_WAIT_MIN;

/// Maximum time for which a destination that makes no progress blocks the send queue. A real link transmits datagrams
/// at its own rate, and a receiver that keeps up loses none; here the receiver sets the rate.
pub(crate) const RECEIVE_WAIT_MAX: Duration = Duration::from_millis(200);

/// The same maximum for a destination that has receives but no free space in its ring. A program on a real link need
/// not provide such space.
pub(crate) const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// Maximum total time for which one destination blocks the send queue, regardless of its progress. Otherwise a
/// destination with slow but steady progress would block all others.
pub(crate) const HOLD_MAX: Duration = Duration::from_secs(1);

/// Reduction of that total per datagram sent to the destination: a destination that accepts datagrams at this rate is
/// merely slow.
pub(crate) const HELD_FOR_ONE: Duration = Duration::from_millis(1);

/// Result of enqueueing a datagram for a destination for which other datagrams may wait.
pub(crate) enum Enqueued {
    /// It was stored, and its request completes immediately.
    Early,
    /// It was stored, and its request completes when [`Pending::is_released`] returns `true` for this number.
    Waits(u64),
    /// It was dropped: no ring was granted within [`WAY_WAIT_MAX`], and [`MAX_EARLY`] datagrams are stored.
    Dropped,
    /// The ring is available and no datagram is queued before it.
    Found(Box<Outlet>),
    /// There is no ring.
    Lost,
}

enum Way {
    Sought,
    /// The ring exists, but the destination accepts no datagram now.
    Blocked(Box<Outlet>),
    Found(Box<Outlet>),
    /// The ring was refused, or already passed to the application thread.
    Lost,
}

struct QueuedDatagram {
    bytes: Vec<u8>,
    /// `true` if its request has already completed. Like a datagram that has arrived, it does not wait for a receive.
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
        // SAFETY: by the contract of this function the elements are readable.
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
        // SAFETY: the only element is `self.bytes`, which outlives the call.
        unsafe { outlet.offer(&message) }
    }
}

struct State {
    way: Way,
    queue: VecDeque<QueuedDatagram>,
    /// Number of the oldest datagram in `queue`.
    first: u64,
    /// Requests with lower numbers have completed: their datagram was sent or dropped, or did not occupy the send
    /// queue.
    released: u64,
    /// Number of datagrams to which the outstanding request for a ring applies.
    judged: Option<usize>,
    /// Time for which datagrams beyond [`MAX_EARLY`] have waited for a ring.
    waited: WaitTime,
}

impl State {
    fn push(&mut self, datagram: QueuedDatagram) -> u64 {
        self.queue.push_back(datagram);
        self.first + self.queue.len() as u64 - 1
    }

    /// Removes the `count` oldest datagrams.
    fn forget(&mut self, count: usize) {
        self.queue.drain(..count);
        self.first += count as u64;
        self.released = self.released.max(self.first);
    }

    /// Sends the datagrams that the destination accepts, and drops those that it will not accept. Returns whether a
    /// notification of the destination made some of them complete.
    fn advance(&mut self, mut outlet: Box<Outlet>, to: Tally<'_>) -> bool {
        let (first, was_told) = (self.first, outlet.take_answer());
        while let Some(datagram) = self.queue.front() {
            // Read before the attempt: the destination notifies of all progress after this point.
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

    /// Drops all datagrams: there is no ring any more.
    fn lose(&mut self, to: Tally<'_>) {
        to.dropped.add(self.queue.len() as u64);
        self.forget(self.queue.len());
        self.way = Way::Lost;
    }
}

/// Counters of sent and dropped datagrams. Each counter has one writer.
#[derive(Clone, Copy)]
pub(crate) struct Tally<'a> {
    pub(crate) sent: &'a Counter,
    pub(crate) dropped: &'a Counter,
}

impl<'a> Tally<'a> {
    /// Service thread: counters of datagrams stored until the ring was available.
    pub(crate) fn late(stats: &'a Counters) -> Self {
        Self { sent: &stats.sent_late, dropped: &stats.dropped_late }
    }

    /// Counters for the holder of the lock of the outstanding sends.
    pub(crate) fn after_wait(stats: &'a Counters) -> Self {
        Self { sent: &stats.sent_after_wait, dropped: &stats.dropped_after_wait }
    }
}

pub(crate) struct Pending {
    pub(crate) dst_qpn: u32,
    pub(crate) interest: ReplyInterest,
    /// Handshake with the destination's process; `None` when it has completed.
    pub(super) handshake: Mutex<Option<Arc<PeerHandshake>>>,
    state: Mutex<State>,
}

impl Pending {
    fn with(dst_qpn: u32, way: Way) -> Self {
        let queue = VecDeque::new();
        let state = State { way, queue, first: 0, released: 0, judged: None, waited: WaitTime::default() };
        Self { dst_qpn, interest: ReplyInterest::default(), handshake: Mutex::default(), state: Mutex::new(state) }
    }

    /// Creates the state of a destination from which a ring must be requested.
    pub(crate) fn new(dst_qpn: u32) -> Self {
        Self::with(dst_qpn, Way::Sought)
    }

    /// Creates the state of a destination that refuses a datagram for now. The datagram gets number 0.
    ///
    /// # Safety
    /// The message's elements must be readable.
    pub(crate) unsafe fn blocked(dst_qpn: u32, outlet: Box<Outlet>, message: &Message<'_>) -> Self {
        let pending = Self::with(dst_qpn, Way::Blocked(outlet));
        // SAFETY: by the contract of this function the elements are readable.
        pending.state.lock().push(unsafe { QueuedDatagram::copy(message, false) });
        pending
    }

    /// Returns whether the request with this number has completed.
    pub(crate) fn is_released(&self, number: u64) -> bool {
        number < self.state.lock().released
    }

    /// Application thread: stores a datagram, unless the ring is available.
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
        // SAFETY: by the contract of this function the elements are readable.
        let number = state.push(unsafe { QueuedDatagram::copy(message, is_early) });
        if is_early { Enqueued::Early } else { Enqueued::Waits(number) }
    }

    /// Sends what the destination accepts, or drops datagrams if it has made no progress for too long. Returns whether
    /// a notification of the destination made some of them complete.
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

    /// Requests a notification of the destination's progress. Returns whether the request was sent now.
    pub(crate) fn ask(&self) -> bool {
        match &mut self.state.lock().way {
            Way::Blocked(outlet) => outlet.ask(),
            _ => false,
        }
    }

    /// Service thread: the ring was granted. Sends the stored datagrams first.
    pub(crate) fn found(&self, outlet: Box<Outlet>, stats: &Counters) {
        stats.ways_found_late.increment();
        self.state.lock().advance(outlet, Tally::late(stats));
    }

    /// Returns whether the ring is still being requested.
    pub(crate) fn is_sought(&self) -> bool {
        matches!(self.state.lock().way, Way::Sought)
    }

    /// Returns whether a granted ring is no longer usable. A destination whose ring is being requested or blocked is
    /// handled elsewhere.
    pub(crate) fn leads_nowhere(&self) -> bool {
        matches!(&self.state.lock().way, Way::Found(outlet) if !outlet.is_current())
    }

    /// Returns whether it stores datagrams whose requests have completed.
    pub(crate) fn keeps_early(&self) -> bool {
        self.state.lock().queue.front().is_some_and(|oldest| oldest.is_sent)
    }

    /// Service thread: begins a request for a ring, if none is outstanding. Datagrams stored later are subject to a
    /// later reply.
    pub(crate) fn begin_ask(&self) {
        let mut state = self.state.lock();
        if state.judged.is_none() {
            state.judged = Some(state.queue.len());
        }
    }

    /// Service thread: the ring was refused. Returns whether no datagram is left; otherwise another request is needed.
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
