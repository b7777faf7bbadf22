//! The sending end of the ring to one destination.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use farcall_shm::ring::{ACCEPT, Kind, Producer, RQ_POSTED, SOLICITED, WANT};
use farcall_shm::{SharedWord, WaitTime};
use farcall_verbs::Sge;

use super::pending::{HELD_FOR_ONE, HOLD_MAX, RECEIVE_WAIT_MAX, ROOM_WAIT_MAX};
use super::route::WITH_ROUTE;
use super::{BoardView, MAX_DATAGRAM_BYTES, Route, SendOutcome};
use crate::host::qp::{RemoteCq, gather_to_ring, map_ring};
use crate::life::rendezvous::{CqPlace, RequestBody};
use crate::life::{Interest, Peer};

/// A datagram as it is sent, now or when the way is known.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) sges: &'a [Sge],
    pub(crate) len_bytes: usize,
    /// As in the ring's records, with the service level in the upper half.
    pub(crate) flags: u8,
    pub(crate) route: Route,
    pub(crate) imm_be: u32,
    pub(crate) qkey: u32,
}

pub(crate) struct Outlet {
    peer: Arc<Peer>,
    dst_qpn: u32,
    /// Where it is announced there.
    bit: u32,
    producer: Producer,
    /// 0: the receiver has taken the ring back.
    ring_accepts: SharedWord,
    /// Records that the receiver has taken out.
    ring_taken: SharedWord,
    board: BoardView,
    doorbell: RemoteCq,
    /// Records published.
    sent: u64,
    /// How many more may be published before the board is read again.
    credit: u64,
    unannounced: bool,
    solicited: bool,
    /// What the destination had done when it was last found to take nothing, and how long it has done no more.
    seen: [u64; 3],
    waited: WaitTime,
    /// How long it has held the send queue up in all, and how many records were published then.
    held: WaitTime,
    held_at: u64,
    /// What was missing when a datagram was last not taken, what the destination was asked for, and our interest in
    /// the answer. It is asked once for each: one that answers without need is looked at from time to time.
    lack: Option<RequestBody>,
    asked: Option<RequestBody>,
    interest: Option<Interest>,
}

impl Outlet {
    /// Of what the destination granted; `None` if it is no ring of this version.
    pub(crate) fn from_grant(
        peer: Arc<Peer>,
        dst_qpn: u32,
        recv: CqPlace,
        fds: Vec<OwnedFd>,
    ) -> Option<Self> {
        let mut fds = fds.into_iter();
        let ring = fds.next()?;
        let len_bytes = rustix::fs::fstat(&ring).ok()?.st_size.cast_unsigned();
        let (mem, layout) = map_ring(&ring, (0, len_bytes))?;
        let board = BoardView::open(&fds.next()?)?;
        Some(Self {
            peer,
            dst_qpn,
            bit: recv.bit,
            ring_accepts: mem.word_at(ACCEPT),
            ring_taken: mem.word_at(RQ_POSTED),
            producer: Producer::new(mem, &layout),
            board,
            doorbell: RemoteCq::from_fds(recv, &mut fds)?,
            sent: 0,
            credit: 0,
            unannounced: false,
            solicited: false,
            seen: [0; 3],
            waited: WaitTime::default(),
            held: WaitTime::default(),
            held_at: 0,
            lack: None,
            asked: None,
            interest: None,
        })
    }

    /// Whether this is still the way to the destination, though it may be closed for now.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        !self.peer.life.is_known_to_have_ended()
            && (self.ring_accepts.load(Acquire) != 0 || self.board.pauses())
    }

    /// Puts a datagram on its way, if the destination would take it now.
    ///
    /// # Safety
    /// The message's elements must be readable.
    #[inline]
    pub(crate) unsafe fn offer(&mut self, message: &Message<'_>) -> SendOutcome {
        debug_assert!(message.len_bytes <= MAX_DATAGRAM_BYTES);
        match self.board.accepts() {
            None => return SendOutcome::NotReady,
            Some(qkey) if qkey != message.qkey => return SendOutcome::WrongQkey,
            Some(_) => {}
        }
        if self.credit == 0 && !self.renew_credit() {
            return SendOutcome::NoReceive;
        }
        let route_bytes = message.route.len_bytes();
        let len = message.len_bytes + route_bytes;
        if !self.producer.has_room(len, 0) {
            return SendOutcome::NoRoom;
        }
        let at = self.producer.payload_at();
        // SAFETY: the caller's promise.
        unsafe { gather_to_ring(self.producer.memory(), at, message.sges) };
        let mut flags = message.flags;
        if route_bytes > 0 {
            let route = message.route.to_bytes();
            // SAFETY: bytes of ours.
            unsafe {
                self.producer.memory().copy_in_raw(at + message.len_bytes, route.as_ptr(), route.len())
            };
            flags |= WITH_ROUTE;
        }
        self.producer.publish(Kind::Send, flags, len as u32, message.imm_be, len);
        self.sent += 1;
        self.credit -= 1;
        self.unannounced = true;
        self.solicited |= message.flags & SOLICITED != 0;
        SendOutcome::Sent
    }

    /// For a destination that did not take a datagram now, and may later: whether it did something a short while ago, and
    /// has not held the send queue up for too long in all. What it did is its own word; how many went there is ours.
    #[cold]
    pub(crate) fn is_worth_waiting(&mut self, outcome: SendOutcome) -> bool {
        let limit = match outcome {
            SendOutcome::NoReceive => RECEIVE_WAIT_MAX,
            SendOutcome::NoRoom => ROOM_WAIT_MAX,
            _ => return false,
        };
        let [posted, taken] = self.board.progress();
        let now = [posted, taken, self.ring_taken.load(Acquire)];
        if now != self.seen {
            (self.seen, self.waited) = (now, WaitTime::default());
        }
        let gone = self.sent - std::mem::replace(&mut self.held_at, self.sent);
        if gone > 0 {
            self.held.end(HELD_FOR_ONE.saturating_mul(gone.try_into().unwrap_or(u32::MAX)));
        }
        self.waited.sample() < limit && self.held.sample() < HOLD_MAX
    }

    /// Receives posted there, and records that it has taken out.
    pub(crate) fn given(&self) -> [u64; 2] {
        [self.board.progress()[0], self.ring_taken.load(Acquire)]
    }

    /// What was given was not enough.
    pub(crate) fn await_more(&mut self, [posted, taken]: [u64; 2], outcome: SendOutcome) {
        let (dst_qpn, bit) = (self.dst_qpn, self.bit);
        // Between a taken datagram's two traces a receive that is free may not be seen: so what is taken matters, too.
        let posted = (outcome == SendOutcome::NoReceive).then_some(posted);
        self.lack = Some(RequestBody::AwaitPlace { dst_qpn, bit, taken, posted });
    }

    /// Has the destination tell when there is more; returns whether it was asked now.
    pub(crate) fn ask(&mut self) -> bool {
        let Some(lack) = self.lack.filter(|lack| self.asked != Some(*lack)) else { return false };
        let interest = self.interest.insert(Interest::default());
        self.peer.await_news(interest, lack);
        self.asked = Some(lack);
        true
    }

    /// Whether it has told since the last call.
    pub(crate) fn take_answer(&mut self) -> bool {
        self.interest.take_if(|interest| interest.is_answered()).is_some()
    }

    /// Nothing waits any more.
    pub(crate) fn end_wait(&mut self) {
        (self.lack, self.asked, self.interest) = (None, None, None);
    }

    /// Reads how many receives are left for us if nobody else sends. The ring is read first, and written last: what a
    /// record took is then either seen at the board, or the record is still counted as ours.
    fn renew_credit(&mut self) -> bool {
        let in_flight = self.sent.saturating_sub(self.ring_taken.load(Acquire));
        self.credit = self.board.receives().saturating_sub(in_flight);
        self.credit > 0
    }

    /// Tells the destination what was published since the last time.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if std::mem::take(&mut self.unannounced) {
            self.doorbell.announce(std::mem::take(&mut self.solicited));
        }
    }
}

impl Drop for Outlet {
    /// Says that nothing more comes; the receiver finds it when it looks for rings to take back.
    fn drop(&mut self) {
        self.ring();
        let mem = self.producer.memory();
        if mem.load(WANT, Relaxed) == 0 {
            mem.store(WANT, 1, Release);
        }
    }
}
