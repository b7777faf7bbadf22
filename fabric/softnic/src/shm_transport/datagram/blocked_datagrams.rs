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
use super::{Message, Route, TxRing};
use crate::process::{PeerHandshake, ReplyInterest};
use crate::shm_transport::qp::{TARGET_WAIT_MIN, gather_to_vec};

/// Maximum number of datagrams whose request has completed although there is no ring yet: enough for a first message or
/// a small burst. Later datagrams occupy the send queue.
const MAX_EARLY: usize = 16;

/// Maximum time for which datagrams beyond [`MAX_EARLY`] wait in the send queue for a ring to their destination. Unlike
/// a network path, which is known in advance, a ring needs the destination's process to be scheduled.
const RESOLVE_WAIT_MAX: Duration = TARGET_WAIT_MIN;

/// Result of enqueueing a datagram for a destination for which other datagrams may wait.
pub(crate) enum Enqueued {
    /// It was stored, and its request completes immediately.
    Early,
    /// It was stored, and its request completes when [`BlockedDatagrams::is_released`] returns `true` for this number.
    Waits(u64),
    /// It was dropped: no ring was granted within [`RESOLVE_WAIT_MAX`], and [`MAX_EARLY`] datagrams are stored.
    Dropped,
    /// The ring is available and no datagram is queued before it.
    Ready(Box<TxRing>),
    /// There is no ring.
    Failed,
}

enum DestinationState {
    Resolving,
    /// The ring exists, but the destination accepts no datagram now.
    Blocked(Box<TxRing>),
    Ready(Box<TxRing>),
    /// The ring was refused, or already passed to the application thread.
    Failed,
}

struct QueuedDatagram {
    bytes: Vec<u8>,
    /// `true` if its request has already completed. Like a datagram that has arrived, it does not wait for a receive.
    is_completed: bool,
    flags: u8,
    route: Route,
    imm_be: u32,
    qkey: u32,
}

impl QueuedDatagram {
    /// # Safety
    /// The message's elements must be readable.
    unsafe fn copy(message: &Message<'_>, is_completed: bool) -> Self {
        let mut bytes = Vec::with_capacity(message.len_bytes);
        // SAFETY: by the contract of this function the elements are readable.
        unsafe { gather_to_vec(&mut bytes, message.sges) };
        let Message { flags, route, imm_be, qkey, .. } = *message;
        Self { bytes, is_completed, flags, route, imm_be, qkey }
    }

    fn offer(&self, tx_ring: &mut TxRing) -> SendOutcome {
        let addr = self.bytes.as_ptr().expose_provenance() as u64;
        let sges = [Sge { addr, length: self.bytes.len() as u32, lkey: 0 }];
        let Self { flags, route, imm_be, qkey, .. } = *self;
        let len_bytes = self.bytes.len();
        let message = Message { sges: &sges, len_bytes, flags, route, imm_be, qkey };
        // SAFETY: the only element is `self.bytes`, which outlives the call.
        unsafe { tx_ring.offer(&message) }
    }
}

struct State {
    destination: DestinationState,
    queue: VecDeque<QueuedDatagram>,
    /// Number of the oldest datagram in `queue`.
    first: u64,
    /// Requests with lower numbers have completed: their datagram was sent or dropped, or did not occupy the send
    /// queue.
    released: u64,
    /// Number of datagrams to which the outstanding request for a ring applies.
    request_applies_to: Option<usize>,
    /// Time for which datagrams beyond [`MAX_EARLY`] have waited for a ring.
    resolving_time: WaitTime,
}

impl State {
    fn push(&mut self, datagram: QueuedDatagram) -> u64 {
        self.queue.push_back(datagram);
        self.first + self.queue.len() as u64 - 1
    }

    /// Removes the `count` oldest datagrams.
    fn remove_oldest(&mut self, count: usize) {
        self.queue.drain(..count);
        self.first += count as u64;
        self.released = self.released.max(self.first);
    }

    /// Sends the datagrams that the destination accepts, and drops those that it will not accept. Returns whether a
    /// notification of the destination made some of them complete.
    fn advance(&mut self, mut tx_ring: Box<TxRing>, counters: SendCounters<'_>) -> bool {
        let (first, was_notified) = (self.first, tx_ring.take_notification());
        while let Some(datagram) = self.queue.front() {
            // Read before the attempt: the destination notifies of all progress after this point.
            let progress = tx_ring.progress();
            match datagram.offer(&mut tx_ring) {
                SendOutcome::Sent => counters.sent.increment(),
                SendOutcome::NoReceive if datagram.is_completed => counters.dropped.increment(),
                outcome if tx_ring.is_worth_waiting(outcome) => {
                    tx_ring.await_progress(progress, outcome);
                    break;
                }
                _ => counters.dropped.increment(),
            }
            self.remove_oldest(1);
        }
        tx_ring.announce();
        if self.queue.is_empty() {
            tx_ring.end_wait();
            self.destination = DestinationState::Ready(tx_ring);
        } else {
            self.destination = DestinationState::Blocked(tx_ring);
        }
        was_notified && self.first != first
    }

    /// Drops all datagrams: there is no ring any more.
    fn drop_all(&mut self, counters: SendCounters<'_>) {
        counters.dropped.add(self.queue.len() as u64);
        self.remove_oldest(self.queue.len());
        self.destination = DestinationState::Failed;
    }
}

/// Counters of sent and dropped datagrams. Each counter has one writer.
#[derive(Clone, Copy)]
pub(crate) struct SendCounters<'a> {
    pub(crate) sent: &'a Counter,
    pub(crate) dropped: &'a Counter,
}

impl<'a> SendCounters<'a> {
    /// Service thread: counters of datagrams stored until the ring was available.
    pub(crate) fn late(stats: &'a Counters) -> Self {
        Self { sent: &stats.sent_late, dropped: &stats.dropped_late }
    }

    /// Counters for the holder of the lock of the outstanding sends.
    pub(crate) fn after_wait(stats: &'a Counters) -> Self {
        Self { sent: &stats.sent_after_wait, dropped: &stats.dropped_after_wait }
    }
}

pub(crate) struct BlockedDatagrams {
    pub(crate) dst_qpn: u32,
    pub(crate) interest: ReplyInterest,
    /// Handshake with the destination's process; `None` when it has completed.
    pub(super) handshake: Mutex<Option<Arc<PeerHandshake>>>,
    state: Mutex<State>,
}

impl BlockedDatagrams {
    fn in_state(dst_qpn: u32, destination: DestinationState) -> Self {
        let queue = VecDeque::new();
        let state = State {
            destination,
            queue,
            first: 0,
            released: 0,
            request_applies_to: None,
            resolving_time: WaitTime::default(),
        };
        Self {
            dst_qpn,
            interest: ReplyInterest::default(),
            handshake: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    /// Creates the state of a destination from which a ring must be requested.
    pub(crate) fn new(dst_qpn: u32) -> Self {
        Self::in_state(dst_qpn, DestinationState::Resolving)
    }

    /// Creates the state of a destination that refuses a datagram for now. The datagram gets number 0.
    ///
    /// # Safety
    /// The message's elements must be readable.
    pub(crate) unsafe fn blocked(dst_qpn: u32, tx_ring: Box<TxRing>, message: &Message<'_>) -> Self {
        let blocked = Self::in_state(dst_qpn, DestinationState::Blocked(tx_ring));
        // SAFETY: by the contract of this function the elements are readable.
        blocked.state.lock().push(unsafe { QueuedDatagram::copy(message, false) });
        blocked
    }

    /// Returns whether the request with this number has completed.
    pub(crate) fn is_released(&self, number: u64) -> bool {
        number < self.state.lock().released
    }

    /// Application thread: stores a datagram, unless the ring is available.
    ///
    /// # Safety
    /// The message's elements must be readable.
    pub(crate) unsafe fn enqueue(&self, message: &Message<'_>) -> Enqueued {
        let mut state = self.state.lock();
        let is_resolving = match std::mem::replace(&mut state.destination, DestinationState::Failed) {
            DestinationState::Ready(tx_ring) => return Enqueued::Ready(tx_ring),
            DestinationState::Failed => return Enqueued::Failed,
            destination => {
                let is_resolving = matches!(destination, DestinationState::Resolving);
                state.destination = destination;
                is_resolving
            }
        };
        let completes_early = is_resolving && state.queue.len() < MAX_EARLY;
        if is_resolving && !completes_early && state.resolving_time.sample() > RESOLVE_WAIT_MAX {
            return Enqueued::Dropped;
        }
        // SAFETY: by the contract of this function the elements are readable.
        let number = state.push(unsafe { QueuedDatagram::copy(message, completes_early) });
        if completes_early { Enqueued::Early } else { Enqueued::Waits(number) }
    }

    /// Sends what the destination accepts, or drops datagrams if it has made no progress for too long. Returns whether
    /// a notification of the destination made some of them complete.
    pub(crate) fn advance(&self, counters: SendCounters<'_>) -> bool {
        let (mut state, mut was_notified) = (self.state.lock(), false);
        match std::mem::replace(&mut state.destination, DestinationState::Failed) {
            DestinationState::Blocked(tx_ring) if tx_ring.is_current() => {
                was_notified = state.advance(tx_ring, counters)
            }
            DestinationState::Blocked(mut tx_ring) => {
                was_notified = tx_ring.take_notification();
                state.drop_all(counters);
            }
            destination => state.destination = destination,
        }
        if matches!(state.destination, DestinationState::Resolving)
            && state.queue.len() > MAX_EARLY
            && state.resolving_time.sample() > RESOLVE_WAIT_MAX
        {
            counters.dropped.add((state.queue.len() - MAX_EARLY) as u64);
            state.released = state.first + state.queue.len() as u64;
            state.queue.truncate(MAX_EARLY);
        }
        was_notified
    }

    /// Requests a notification of the destination's progress. Returns whether the request was sent now.
    pub(crate) fn request_notification(&self) -> bool {
        match &mut self.state.lock().destination {
            DestinationState::Blocked(tx_ring) => tx_ring.request_notification(),
            _ => false,
        }
    }

    /// Service thread: the ring was granted. Sends the stored datagrams first.
    pub(crate) fn on_granted(&self, tx_ring: Box<TxRing>, stats: &Counters) {
        stats.ways_found_late.increment();
        self.state.lock().advance(tx_ring, SendCounters::late(stats));
    }

    /// Returns whether the ring is still being requested.
    pub(crate) fn is_resolving(&self) -> bool {
        matches!(self.state.lock().destination, DestinationState::Resolving)
    }

    /// Returns whether a granted ring is no longer usable. A destination whose ring is being requested or blocked is
    /// handled elsewhere.
    pub(crate) fn is_unusable(&self) -> bool {
        matches!(&self.state.lock().destination, DestinationState::Ready(tx_ring) if !tx_ring.is_current())
    }

    /// Returns whether it stores datagrams whose requests have completed.
    pub(crate) fn has_completed_datagrams(&self) -> bool {
        self.state.lock().queue.front().is_some_and(|oldest| oldest.is_completed)
    }

    /// Service thread: begins a request for a ring, if none is outstanding. Datagrams stored later are subject to a
    /// later reply.
    pub(crate) fn begin_request(&self) {
        let mut state = self.state.lock();
        if state.request_applies_to.is_none() {
            state.request_applies_to = Some(state.queue.len());
        }
    }

    /// Service thread: the ring was refused. Returns whether no datagram is left; otherwise another request is needed.
    pub(crate) fn on_refused(&self, stats: &Counters) -> bool {
        let mut state = self.state.lock();
        let request_applies_to = state.request_applies_to.take().unwrap_or(0).min(state.queue.len());
        state.remove_oldest(request_applies_to);
        stats.dropped_late.add(request_applies_to as u64);
        if !state.queue.is_empty() {
            return false;
        }
        stats.ways_lost_late.increment();
        state.destination = DestinationState::Failed;
        true
    }
}
