//! Messages to a target whose receives are shared with other queue pairs, so that only the target knows whether there
//! is one (the other half is `qp::shared_receive`).
//!
//! Small messages go into the ring at once, several in flight; for a large one the target is asked for a place. All
//! stay in the wait queue until the target has accepted them, in order: later requests of other kinds must not
//! overtake them.

use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use farcall_shm::hazard;
use farcall_shm::ring::{Kind, NAK, OFFERED, RNR, SOLICITED, TAKEN, TAKEN_COUNT, WITHDRAWN};
use farcall_verbs::{WcStatus, WrOpcode};

use super::QpCore;
use super::initiator::Initiator;
use super::message::{EAGER_BYTES, place};
use super::request::{Request, Step};
use super::wait_queue::{Wait, WaitQueue};
use crate::life::is_service_thread;
use crate::life::rendezvous::RequestBody;

/// What is under way to a target with shared receives.
#[derive(Default)]
pub(crate) struct InFlight {
    /// Messages at the front of the wait queue that the target has not accepted yet.
    pub(crate) count: usize,
    /// Messages that it has accepted.
    accepted: u64,
    /// The request at the front has asked for a place.
    offer_asked: bool,
    /// How often it was looked in vain whether the target has accepted the oldest.
    looks: u32,
    /// The target is a queue pair of this process, and its receives are to be matched by this thread.
    must_match: bool,
    /// This thread was to match since a message was accepted last.
    has_matched: bool,
    /// How many of the last messages were accepted after that, up to [`IMPATIENCE_MAX`].
    impatience: u32,
}

impl InFlight {
    /// The target has accepted the oldest message.
    fn accept(&mut self) {
        self.accepted += 1;
        self.count -= 1;
        let (looks, has_matched) = (std::mem::take(&mut self.looks), std::mem::take(&mut self.has_matched));
        if has_matched {
            self.impatience = (self.impatience + 1).min(IMPATIENCE_MAX);
        } else if looks > 0 {
            // Another thread polls there.
            self.impatience = 0;
        }
    }

    /// Returns whether this thread is to match after another look without success.
    fn is_match_due(&self) -> bool {
        let first = LOOKS_BEFORE_MATCHING >> self.impatience;
        self.looks == first || self.looks.is_multiple_of(LOOKS_BEFORE_MATCHING)
    }
}

/// After so many looks in vain, and each time after as many more, a sender matches the receives of a target in its own
/// process: longer than another thread that polls there takes, and not as long as a wake-up.
const LOOKS_BEFORE_MATCHING: u32 = 64;

/// How often the number of looks is halved, once for each message that no other thread has matched: a thread that owns
/// both ends would otherwise look 64 times for each message.
const IMPATIENCE_MAX: u32 = 5;

/// After so many looks in vain the target's owner is taken for one who does something else than poll. They take some
/// tens of microseconds: as long as the wake-up of a thread, which is what asking costs.
const LOOKS_BEFORE_ASKING: u32 = 256;

/// Or after so long, if looks take longer here, or whoever looks does something else in between.
const WAIT_BEFORE_ASKING: Duration = Duration::from_micros(50);

impl Initiator {
    /// Publishes the oldest message, as far as it can be.
    ///
    /// # Safety
    /// See `execute`.
    #[cold]
    pub(crate) unsafe fn shared_message(&mut self, request: &Request<'_>) -> Step {
        let flags = request.record_flags();
        let len = request.len_bytes as u32;
        if self.in_flight.offer_asked
            && let Some(refused @ Step::Failed(_)) = self.verdict()
        {
            return refused;
        }
        if self.accepts().is_none() {
            return Step::Wait(Wait::Peer);
        }
        if !self.producer.has_room(if request.len_bytes <= EAGER_BYTES { len as usize } else { 0 }, 0) {
            return Step::Wait(Wait::Target);
        }
        if request.opcode == WrOpcode::WRITE_WITH_IMM {
            // SAFETY: the poster's promise, passed on.
            return match unsafe { self.write_and_publish(request) } {
                Step::Done => Step::Published,
                step => step,
            };
        }
        if request.len_bytes <= EAGER_BYTES {
            // SAFETY: the elements are the poster's promise; the ring has room.
            unsafe { self.publish_eager(request, flags) };
            return Step::Published;
        }
        if !std::mem::replace(&mut self.in_flight.offer_asked, true) {
            self.producer.publish_empty(Kind::Offer, 0, len, 0);
            self.unannounced = true;
        }
        if self.inbound().load(OFFERED, Acquire) <= self.sent {
            return self.verdict().unwrap_or(Step::Wait(Wait::Target));
        }
        hazard::enter(self.inbound(), hazard::RECEIVES);
        let placed = if self.accepts().is_some() {
            // SAFETY: the poster's promise, passed on; inside a hazard, with room for a record.
            unsafe { place(self, request, flags) }
        } else {
            Some(Step::Wait(Wait::Peer))
        };
        hazard::leave(self.inbound());
        let step = match placed {
            Some(step) => step,
            // SAFETY: as above.
            None => unsafe { self.place_private(request, flags) },
        };
        if let Step::Done = step {
            self.in_flight.offer_asked = false;
            return Step::Published;
        }
        step
    }

    /// What the target says of the oldest message that it has not accepted, if anything.
    fn verdict(&self) -> Option<Step> {
        let (nak, next) = (self.inbound().load(NAK, Acquire), self.in_flight.accepted + 1);
        if nak >> 8 == next {
            let status = if nak as u8 == WcStatus::REM_INV_REQ_ERR.0 as u8 {
                WcStatus::REM_INV_REQ_ERR
            } else {
                WcStatus::REM_OP_ERR
            };
            return Some(Step::Failed(status));
        }
        if self.accepts().is_none() {
            return Some(Step::Wait(Wait::Peer));
        }
        (self.inbound().load(RNR, Acquire) == next).then_some(Step::Wait(Wait::Receiver))
    }

    /// Whether the target has accepted the oldest message in flight.
    pub(crate) fn confirm(&mut self, core: &QpCore, waiting: &WaitQueue) -> Step {
        let accepted = self.inbound().load(TAKEN, Acquire) & TAKEN_COUNT;
        if accepted > self.in_flight.accepted {
            self.in_flight.accept();
            if let Some(parked) = waiting.front() {
                core.stats.executed(WrOpcode(parked.opcode), parked.len_bytes());
            }
            return Step::Done;
        }
        if self.peer.life.is_known_to_have_ended() {
            return Step::Failed(WcStatus::RETRY_EXC_ERR);
        }
        self.verdict().unwrap_or(Step::Wait(Wait::Target))
    }

    /// Takes back what is in flight and was not accepted, for ever; false if the target has accepted more meanwhile.
    pub(crate) fn withdraw(&mut self) -> bool {
        let accepted = self.in_flight.accepted;
        if !self.layout.shared {
            return true;
        }
        // It may have given a place that nobody uses now.
        self.unannounced = true;
        self.inbound().compare_exchange(TAKEN, accepted, accepted | WITHDRAWN)
            || self.inbound().load(TAKEN, Acquire) & TAKEN_COUNT <= accepted
    }

    /// Whether all that the oldest message lacks is that somebody looks at the target's shared receives.
    fn is_unmatched(&self) -> bool {
        (self.in_flight.count > 0 || self.in_flight.offer_asked) && self.verdict().is_none()
    }

    /// After a look at what has waited for so long: a target whose owner does something else has its service thread
    /// match.
    pub(crate) fn look_ended(&mut self, core: &QpCore, waited: Duration) {
        if !self.is_unmatched() {
            self.in_flight.looks = 0;
            return;
        }
        let (looks, is_timer) = (self.in_flight.looks, is_service_thread());
        self.in_flight.looks = looks.saturating_add(1);
        if self.is_own(core) {
            self.in_flight.must_match =
                is_timer || waited >= WAIT_BEFORE_ASKING || self.in_flight.is_match_due();
            return;
        }
        if waited >= WAIT_BEFORE_ASKING && !is_timer {
            self.in_flight.looks = self.in_flight.looks.max(LOOKS_BEFORE_ASKING);
        }
        if looks < LOOKS_BEFORE_ASKING && self.in_flight.looks >= LOOKS_BEFORE_ASKING {
            core.stats.matches_asked.increment();
        } else if !is_timer {
            return;
        }
        self.peer.tell(RequestBody::Match { dst_qpn: self.qpn });
    }

    /// Whether the target is a queue pair of this process.
    fn is_own(&self, core: &QpCore) -> bool {
        self.peer.instance == core.host.process.instance
    }

    /// The target in this process whose receives are to be matched, once the send side is left.
    pub(crate) fn take_match(&mut self) -> Option<u32> {
        let is_due = std::mem::take(&mut self.in_flight.must_match);
        self.in_flight.has_matched |= is_due;
        is_due.then_some(self.qpn)
    }

    /// As [`Initiator::look_ended`], for an owner who will not look again before he is woken.
    pub(crate) fn sleep_begins(&mut self, core: &QpCore) {
        if self.is_unmatched() && self.in_flight.looks < LOOKS_BEFORE_ASKING {
            self.in_flight.looks = LOOKS_BEFORE_ASKING;
            core.stats.matches_asked.increment();
            self.peer.tell(RequestBody::Match { dst_qpn: self.qpn });
        }
    }

    /// Publishes small messages behind the one in flight, as many as fit, but no more than `limit` in all.
    pub(crate) fn publish_more(&mut self, core: &QpCore, waiting: &WaitQueue, limit: usize) {
        while self.in_flight.count > 0
            && self.in_flight.count < limit
            && let Some(parked) = waiting.get(self.in_flight.count)
        {
            let request = parked.request(&parked.target, &parked.sges);
            let is_small_send = matches!(request.opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM)
                && request.len_bytes <= EAGER_BYTES;
            // What is not allowed fails when it is its turn.
            if !is_small_send || !request.is_allowed(core) {
                break;
            }
            if !self.producer.has_room(request.len_bytes as usize, 0) {
                break;
            }
            let flags = request.record_flags();
            // SAFETY: the poster's promise holds until the request's completion; the ring has room.
            unsafe { self.publish_eager(&request, flags) };
            self.in_flight.count += 1;
            self.unannounced = true;
            self.solicited |= flags & SOLICITED != 0;
        }
    }
}
