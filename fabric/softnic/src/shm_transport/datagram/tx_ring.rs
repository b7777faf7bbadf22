//! Sending end of the ring to one destination.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use farcall_shm::ring::{ACCEPT, Kind, Producer, RQ_POSTED, SOLICITED, WANT};
use farcall_shm::{SharedWord, WaitTime};
use farcall_verbs::Sge;

use super::route::WITH_ROUTE;
use super::{MAX_DATAGRAM_BYTES, ReceiverStatusView, Route, SendOutcome};
use crate::process::rendezvous::{CqLocation, RequestBody};
use crate::process::{Peer, ReplyInterest};
use crate::shm_transport::qp::{RemoteCq, gather_to_ring, map_ring};

/// Maximum time for which a destination that makes no progress blocks the send queue. A real link transmits datagrams
/// at its own rate, and a receiver that keeps up loses none; here the receiver sets the rate.
const RECEIVE_WAIT_MAX: Duration = Duration::from_millis(200);

/// The same maximum for a destination that has receives but no free space in its ring. A program on a real link need
/// not provide such space.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Maximum total time for which one destination blocks the send queue, regardless of its progress. Otherwise a
/// destination with slow but steady progress would block all others.
const HOLD_MAX: Duration = Duration::from_secs(1);

/// Reduction of that total per datagram sent to the destination: a destination that accepts datagrams at this rate is
/// merely slow.
const HOLD_PER_DATAGRAM: Duration = Duration::from_millis(1);

/// A datagram to send, either now or when the ring to its destination is available.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) sges: &'a [Sge],
    pub(crate) len_bytes: usize,
    /// Flags of the ring's record, with the service level in the upper half.
    pub(crate) flags: u8,
    pub(crate) route: Route,
    pub(crate) imm_be: u32,
    pub(crate) qkey: u32,
}

pub(crate) struct TxRing {
    peer: Arc<Peer>,
    dst_qpn: u32,
    /// Readiness bit at the destination.
    bit: u32,
    producer: Producer,
    /// 0 if the receiver has revoked the ring.
    ring_accepts: SharedWord,
    /// Number of records that the receiver has consumed.
    ring_consumed: SharedWord,
    status: ReceiverStatusView,
    doorbell: RemoteCq,
    /// Number of records published.
    sent: u64,
    /// Number of records that may be published before the receiver status is read again.
    credit: u64,
    unannounced: bool,
    solicited: bool,
    /// Progress of the destination when it last refused a datagram, and the time since then without progress.
    last_progress: [u64; 3],
    waited: WaitTime,
    /// Total time for which the destination has blocked the send queue, and the number of records published by then.
    hold_time: WaitTime,
    sent_at_hold: u64,
    /// Request for what was missing when a datagram was last refused, the request that was last sent, and the interest
    /// in its reply. Each request is sent once. If the destination replies without having made progress, the sender
    /// polls at intervals.
    missing: Option<RequestBody>,
    requested: Option<RequestBody>,
    interest: Option<ReplyInterest>,
}

impl TxRing {
    /// Creates the sending end from a grant; `None` if the grant is no ring of this version.
    pub(crate) fn from_grant(
        peer: Arc<Peer>,
        dst_qpn: u32,
        recv: CqLocation,
        fds: Vec<OwnedFd>,
    ) -> Option<Self> {
        let mut fds = fds.into_iter();
        let ring = fds.next()?;
        let len_bytes = rustix::fs::fstat(&ring).ok()?.st_size.cast_unsigned();
        let (mem, layout) = map_ring(&ring, (0, len_bytes))?;
        let status = ReceiverStatusView::open(&fds.next()?)?;
        Some(Self {
            peer,
            dst_qpn,
            bit: recv.bit,
            ring_accepts: mem.word_at(ACCEPT),
            ring_consumed: mem.word_at(RQ_POSTED),
            producer: Producer::new(mem, &layout),
            status,
            doorbell: RemoteCq::from_fds(recv, &mut fds)?,
            sent: 0,
            credit: 0,
            unannounced: false,
            solicited: false,
            last_progress: [0; 3],
            waited: WaitTime::default(),
            hold_time: WaitTime::default(),
            sent_at_hold: 0,
            missing: None,
            requested: None,
            interest: None,
        })
    }

    /// Returns whether the ring still leads to the destination. The destination may be closed temporarily.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        !self.peer.liveness.is_known_exited()
            && (self.ring_accepts.load(Acquire) != 0 || self.status.is_paused())
    }

    /// Publishes a datagram if the destination accepts it now.
    ///
    /// # Safety
    /// The message's elements must be readable.
    #[inline]
    pub(crate) unsafe fn offer(&mut self, message: &Message<'_>) -> SendOutcome {
        debug_assert!(message.len_bytes <= MAX_DATAGRAM_BYTES);
        match self.status.accepts() {
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
        // SAFETY: by the contract of this function the elements are readable.
        unsafe { gather_to_ring(self.producer.memory(), at, message.sges) };
        let mut flags = message.flags;
        if route_bytes > 0 {
            let route = message.route.to_bytes();
            // SAFETY: `route` is a local array of `route.len()` bytes.
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

    /// Called when a destination refused a datagram that it may accept later. Returns whether the destination has made
    /// progress recently and has not blocked the send queue for too long in total. The destination reports its progress
    /// itself; the number of datagrams sent to it is counted locally.
    #[cold]
    pub(crate) fn is_worth_waiting(&mut self, outcome: SendOutcome) -> bool {
        let limit = match outcome {
            SendOutcome::NoReceive => RECEIVE_WAIT_MAX,
            SendOutcome::NoRoom => SPACE_WAIT_MAX,
            _ => return false,
        };
        let [posted, consumed] = self.status.progress();
        let now = [posted, consumed, self.ring_consumed.load(Acquire)];
        if now != self.last_progress {
            (self.last_progress, self.waited) = (now, WaitTime::default());
        }
        let sent_since = self.sent - std::mem::replace(&mut self.sent_at_hold, self.sent);
        if sent_since > 0 {
            self.hold_time.end(HOLD_PER_DATAGRAM.saturating_mul(sent_since.try_into().unwrap_or(u32::MAX)));
        }
        self.waited.sample() < limit && self.hold_time.sample() < HOLD_MAX
    }

    /// Returns the number of receives posted at the destination and of records that it has consumed.
    pub(crate) fn progress(&self) -> [u64; 2] {
        [self.status.progress()[0], self.ring_consumed.load(Acquire)]
    }

    /// Records that these numbers were not sufficient for a datagram.
    pub(crate) fn await_progress(&mut self, [posted, consumed]: [u64; 2], outcome: SendOutcome) {
        let (dst_qpn, bit) = (self.dst_qpn, self.bit);
        // The receiver updates its status before the ring. Between the two updates the record counts as in flight and
        // its receive as consumed, so a free receive may be missed. The request therefore includes the number of
        // consumed records.
        let posted = (outcome == SendOutcome::NoReceive).then_some(posted);
        self.missing = Some(RequestBody::AwaitReceiverProgress { dst_qpn, bit, consumed, posted });
    }

    /// Requests a notification of more progress. Returns whether the request was sent now.
    pub(crate) fn request_notification(&mut self) -> bool {
        let Some(missing) = self.missing.filter(|missing| self.requested != Some(*missing)) else {
            return false;
        };
        let interest = self.interest.insert(ReplyInterest::default());
        self.peer.request_notification(interest, missing);
        self.requested = Some(missing);
        true
    }

    /// Returns whether a notification has arrived since the last call.
    pub(crate) fn take_notification(&mut self) -> bool {
        self.interest.take_if(|interest| interest.has_reply()).is_some()
    }

    /// Ends the wait: no datagram waits any more.
    pub(crate) fn end_wait(&mut self) {
        (self.missing, self.requested, self.interest) = (None, None, None);
    }

    /// Reads the number of receives that are free if no other sender uses them. The ring is read first and written
    /// last, so a consumed record is either counted in the receiver status or still counted as in flight.
    fn renew_credit(&mut self) -> bool {
        let in_flight = self.sent.saturating_sub(self.ring_consumed.load(Acquire));
        self.credit = self.status.receives().saturating_sub(in_flight);
        self.credit > 0
    }

    /// Announces the records published since the last call to the destination.
    #[inline]
    pub(crate) fn announce(&mut self) {
        if std::mem::take(&mut self.unannounced) {
            self.doorbell.announce(std::mem::take(&mut self.solicited));
        }
    }
}

impl Drop for TxRing {
    /// Marks the ring as ended. The receiver reads the mark when it searches for rings to revoke.
    fn drop(&mut self) {
        self.announce();
        let mem = self.producer.memory();
        if mem.load(WANT, Relaxed) == 0 {
            mem.store(WANT, 1, Release);
        }
    }
}
