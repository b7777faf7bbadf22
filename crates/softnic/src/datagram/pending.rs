//! A way that was asked for, and the datagrams that wait for it.
//!
//! The owner of the queue pair posts and never waits; the service thread asks the destination's process and sends what
//! was kept meanwhile. They meet here, and only until the way is known.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_verbs::Sge;

use super::counters::{Counters, Fate};
use super::{Message, Outlet};
use crate::peer::Interest;

/// Datagrams kept for one destination: enough for a first message or a small burst.
const KEPT: usize = 16;

/// What an owner finds when it has a datagram for a way that was asked for.
pub(super) enum Asked {
    /// Not known yet: the datagram was kept, or dropped because too many are.
    Kept(bool),
    /// The way.
    Found(Outlet),
    /// There is none.
    Lost,
}

enum Way {
    Sought,
    Found(Outlet),
    /// Refused, or already taken by the owner.
    Lost,
}

struct Kept {
    bytes: Vec<u8>,
    flags: u8,
    imm_be: u32,
    qkey: u32,
}

struct State {
    way: Way,
    kept: VecDeque<Kept>,
    /// How many of them the answer that is under way is about.
    judged: Option<usize>,
}

pub(super) struct Pending {
    dst_qpn: u32,
    interest: Interest,
    state: Mutex<State>,
}

impl Pending {
    pub(super) fn new(dst_qpn: u32) -> Self {
        Self {
            dst_qpn,
            interest: Interest::default(),
            state: Mutex::new(State { way: Way::Sought, kept: VecDeque::new(), judged: None }),
        }
    }

    pub(super) fn dst_qpn(&self) -> u32 {
        self.dst_qpn
    }

    /// Wants the answer as long as it lives.
    pub(super) fn interest(&self) -> &Interest {
        &self.interest
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Owner: keeps a datagram, unless the answer is here.
    ///
    /// # Safety
    /// The message's elements must be readable.
    pub(super) unsafe fn keep(&self, message: &Message<'_>) -> Asked {
        let mut state = self.lock();
        match std::mem::replace(&mut state.way, Way::Lost) {
            Way::Found(outlet) => return Asked::Found(outlet),
            Way::Lost => return Asked::Lost,
            Way::Sought => state.way = Way::Sought,
        }
        if state.kept.len() >= KEPT {
            return Asked::Kept(false);
        }
        let mut bytes = Vec::with_capacity(message.len_bytes);
        for sge in message.sges {
            let src = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: the caller's promise; read once, now.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(src, sge.length as usize) });
        }
        let Message { flags, imm_be, qkey, .. } = *message;
        state.kept.push_back(Kept { bytes, flags, imm_be, qkey });
        Asked::Kept(true)
    }

    /// Service thread: the way is found. What was kept goes first.
    pub(super) fn found(&self, mut outlet: Outlet, stats: &Counters) {
        let mut state = self.lock();
        stats.ways_found_late.increment();
        for kept in std::mem::take(&mut state.kept) {
            let addr = kept.bytes.as_ptr().expose_provenance() as u64;
            let sges = [Sge { addr, length: kept.bytes.len() as u32, lkey: 0 }];
            let Kept { flags, imm_be, qkey, .. } = kept;
            let message = Message { sges: &sges, len_bytes: kept.bytes.len(), flags, imm_be, qkey };
            // SAFETY: the element is a vector that lives through the call.
            match unsafe { outlet.offer(&message) } {
                Fate::Sent => stats.sent_late.increment(),
                _ => stats.dropped_late.increment(),
            }
        }
        outlet.ring();
        state.way = Way::Found(outlet);
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
        let judged = state.judged.take().unwrap_or(0);
        state.kept.drain(..judged);
        stats.dropped_late.add(judged as u64);
        if !state.kept.is_empty() {
            return false;
        }
        stats.ways_lost_late.increment();
        state.way = Way::Lost;
        true
    }
}
