//! Datagrams that wait: for the way to their destination, or for the destination to take them.
//!
//! The owner of the queue pair posts and never waits. What cannot go now is copied here, and goes on by whoever comes first:
//! the owner with its next request, the poll of its send completion queue, or the service thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farcall_stats::Counter;
use farcall_verbs::Sge;

use super::counters::{Counters, Fate};
use super::{Message, Outlet};
use crate::peer::{Interest, LongMeeting};
use crate::qp::TARGET_PATIENCE;
use crate::waited::Waited;

/// Datagrams that have been sent, for their sender, though the way is not known yet: enough for a first message or a small
/// burst. Further ones keep their places in the send queue.
const KEPT: usize = 16;

/// How long datagrams beyond those wait for the way to their destination, in the send queue: its process must get a
/// processor to tell it, while a network's way is known.
const WAY_PATIENCE: Duration = TARGET_PATIENCE;

/// How long the send queue stands still for a destination that does nothing. A real link takes datagrams at its own pace,
/// and a receiver that keeps up with it loses none; here the pace is the receiver's.
pub(super) const RECEIVE_PATIENCE: Duration = Duration::from_millis(200);

/// As that, if it has receives and must only make room on the way to them, which a real link does not ask of a program.
pub(super) const ROOM_PATIENCE: Duration = Duration::from_secs(1);

/// What an owner finds when it has a datagram for a destination that others wait for.
pub(super) enum Asked {
    /// It was kept, and has been sent as far as its sender is concerned.
    Kept,
    /// It was kept, and ends when [`Pending::is_released`] says so of its number.
    Held(u64),
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

struct Kept {
    bytes: Vec<u8>,
    /// Its sender was told that it is sent: as one that has arrived, it does not wait for a receive.
    is_sent: bool,
    flags: u8,
    imm_be: u32,
    qkey: u32,
}

impl Kept {
    /// # Safety
    /// The message's elements must be readable.
    unsafe fn copy(message: &Message<'_>, is_sent: bool) -> Self {
        let mut bytes = Vec::with_capacity(message.len_bytes);
        for sge in message.sges {
            let src = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: the caller's promise; read once, now.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(src, sge.length as usize) });
        }
        let Message { flags, imm_be, qkey, .. } = *message;
        Self { bytes, is_sent, flags, imm_be, qkey }
    }

    fn offer(&self, outlet: &mut Outlet) -> Fate {
        let addr = self.bytes.as_ptr().expose_provenance() as u64;
        let sges = [Sge { addr, length: self.bytes.len() as u32, lkey: 0 }];
        let Self { flags, imm_be, qkey, .. } = *self;
        let message = Message { sges: &sges, len_bytes: self.bytes.len(), flags, imm_be, qkey };
        // SAFETY: the element is a vector that lives through the call.
        unsafe { outlet.offer(&message) }
    }
}

struct State {
    way: Way,
    kept: VecDeque<Kept>,
    /// The number of the oldest that is kept.
    first: u64,
    /// Numbers below it are on their way, dropped, or of no concern to their sender.
    released: u64,
    /// How many of them the answer that is under way is about.
    judged: Option<usize>,
    /// For the way, by those beyond what is kept.
    waited: Waited,
}

impl State {
    fn push(&mut self, kept: Kept) -> u64 {
        self.kept.push_back(kept);
        self.first + self.kept.len() as u64 - 1
    }

    /// Takes the oldest ones away.
    fn forget(&mut self, count: usize) {
        self.kept.drain(..count);
        self.first += count as u64;
        self.released = self.released.max(self.first);
    }

    /// Sends what the destination takes, drops what it will not take.
    fn advance(&mut self, mut outlet: Box<Outlet>, to: Tally<'_>) {
        while let Some(kept) = self.kept.front() {
            match kept.offer(&mut outlet) {
                Fate::Sent => to.sent.increment(),
                Fate::NoReceive if kept.is_sent => to.dropped.increment(),
                fate if outlet.is_worth_waiting(fate) => break,
                _ => to.dropped.increment(),
            }
            self.forget(1);
        }
        outlet.ring();
        self.way = if self.kept.is_empty() { Way::Found(outlet) } else { Way::Blocked(outlet) };
    }

    /// There is no way any more.
    fn lose(&mut self, to: Tally<'_>) {
        to.dropped.add(self.kept.len() as u64);
        self.forget(self.kept.len());
        self.way = Way::Lost;
    }
}

/// Where it is counted what became of them. Each counter has one writer.
#[derive(Clone, Copy)]
pub(super) struct Tally<'a> {
    pub(super) sent: &'a Counter,
    pub(super) dropped: &'a Counter,
}

pub(super) struct Pending {
    dst_qpn: u32,
    interest: Interest,
    /// With the process of the destination, as long as that has not answered.
    meeting: Mutex<Option<Arc<LongMeeting>>>,
    state: Mutex<State>,
}

impl Pending {
    fn with(dst_qpn: u32, way: Way) -> Self {
        let kept = VecDeque::new();
        let state = State { way, kept, first: 0, released: 0, judged: None, waited: Waited::default() };
        Self { dst_qpn, interest: Interest::default(), meeting: Mutex::default(), state: Mutex::new(state) }
    }

    /// For a destination whose way must be asked for.
    pub(super) fn new(dst_qpn: u32) -> Self {
        Self::with(dst_qpn, Way::Sought)
    }

    /// For a destination that does not take a datagram now, which gets number 0.
    ///
    /// # Safety
    /// The message's elements must be readable.
    pub(super) unsafe fn blocked(dst_qpn: u32, outlet: Box<Outlet>, message: &Message<'_>) -> Self {
        let pending = Self::with(dst_qpn, Way::Blocked(outlet));
        // SAFETY: the caller's promise.
        pending.lock().push(unsafe { Kept::copy(message, false) });
        pending
    }

    pub(super) fn dst_qpn(&self) -> u32 {
        self.dst_qpn
    }

    /// Wants the answer as long as it lives.
    pub(super) fn interest(&self) -> &Interest {
        &self.interest
    }

    pub(super) fn meeting(&self) -> MutexGuard<'_, Option<Arc<LongMeeting>>> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the request of a number has ended.
    pub(super) fn is_released(&self, number: u64) -> bool {
        number < self.lock().released
    }

    /// Owner: keeps a datagram, unless the way is free.
    ///
    /// # Safety
    /// The message's elements must be readable.
    pub(super) unsafe fn keep(&self, message: &Message<'_>) -> Asked {
        let mut state = self.lock();
        let is_sought = match std::mem::replace(&mut state.way, Way::Lost) {
            Way::Found(outlet) => return Asked::Found(outlet),
            Way::Lost => return Asked::Lost,
            way => {
                let is_sought = matches!(way, Way::Sought);
                state.way = way;
                is_sought
            }
        };
        let is_early = is_sought && state.kept.len() < KEPT;
        if is_sought && !is_early && state.waited.look() > WAY_PATIENCE {
            return Asked::Dropped;
        }
        // SAFETY: the caller's promise.
        let number = state.push(unsafe { Kept::copy(message, is_early) });
        if is_early { Asked::Kept } else { Asked::Held(number) }
    }

    /// Goes on, if the destination takes something, or gives up, if it has done nothing for too long.
    pub(super) fn advance(&self, to: Tally<'_>) {
        let mut state = self.lock();
        match std::mem::replace(&mut state.way, Way::Lost) {
            Way::Blocked(outlet) if outlet.is_current() => state.advance(outlet, to),
            Way::Blocked(_) => state.lose(to),
            way => state.way = way,
        }
        if matches!(state.way, Way::Sought) && state.kept.len() > KEPT && state.waited.look() > WAY_PATIENCE {
            to.dropped.add((state.kept.len() - KEPT) as u64);
            state.released = state.first + state.kept.len() as u64;
            state.kept.truncate(KEPT);
        }
    }

    /// Service thread: the way is found. What was kept goes first.
    pub(super) fn found(&self, outlet: Box<Outlet>, stats: &Counters) {
        stats.ways_found_late.increment();
        self.lock().advance(outlet, Tally { sent: &stats.sent_late, dropped: &stats.dropped_late });
    }

    /// Service thread: it asks now, if it does not already. What is kept later deserves a later answer.
    pub(super) fn begin_ask(&self) {
        let mut state = self.lock();
        if state.judged.is_none() {
            state.judged = Some(state.kept.len());
        }
    }

    /// Service thread: there was no way when it asked. Returns whether that is all; else it must ask once more.
    pub(super) fn refused(&self, stats: &Counters) -> bool {
        let mut state = self.lock();
        let judged = state.judged.take().unwrap_or(0).min(state.kept.len());
        state.forget(judged);
        stats.dropped_late.add(judged as u64);
        if !state.kept.is_empty() {
            return false;
        }
        stats.ways_lost_late.increment();
        state.way = Way::Lost;
        true
    }
}
