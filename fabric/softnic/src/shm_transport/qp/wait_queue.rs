//! Queue of send requests that must wait for the peer or for a receive, and their timeouts.

use std::time::Duration;

use farcall_shm::WaitTime;
use farcall_verbs::{SendFlags, SendWr, Sge, WrOpcode, WrTarget};

use super::USUAL_INLINE_BYTES;
use super::request::{Request, WaitReason};
use super::transfer::gather_to_vec;

/// Minimum timeout for a target to match a message with its shared receives, and for its process to reply to a request,
/// regardless of the timers. A device responds immediately, while these must be scheduled first. Over UC it is also the
/// time after such a timeout for which no request waits for a reply.
pub(crate) const TARGET_WAIT_MIN: Duration = Duration::from_secs(5);

/// Timeouts of requests.
#[derive(Clone, Copy)]
pub(crate) struct Timers {
    /// Transport timeout times retries; `None` means no limit.
    pub(crate) transport: Option<Duration>,
    /// Number of RNR timer expirations allowed; `None` means no limit.
    pub(crate) rnr_retries: Option<u8>,
}

/// Timeout of the oldest request.
pub(crate) struct WaitLimit {
    pub(crate) of: WaitReason,
    /// `None` means no limit.
    limit: Option<Duration>,
    /// Time since the first poll. A short wait reads no clock.
    waited: WaitTime,
    /// Wait reason at the last poll.
    last: WaitReason,
    /// Part of `waited` during which the target's process had work to do.
    scheduling_time: Duration,
}

impl WaitLimit {
    pub(crate) fn new(of: WaitReason, limit: Option<Duration>) -> Self {
        Self { of, limit, waited: WaitTime::default(), last: of, scheduling_time: Duration::ZERO }
    }

    /// Returns whether `wait` continues this wait. A peer that is not ready replies so to each request, so waits for
    /// the peer and for its replies are one.
    pub(crate) fn is_for(&self, wait: WaitReason) -> bool {
        let of_peer = |wait| matches!(wait, WaitReason::Peer | WaitReason::PeerReply);
        self.of == wait || (of_peer(self.of) && of_peer(wait))
    }

    /// Returns whether the wait has timed out, given its current reason. Time that a process took to reply that it is
    /// not ready does not count towards the transport timeout.
    pub(crate) fn has_expired(&mut self, wait: WaitReason) -> bool {
        let before = self.waited.sum();
        let waited = self.waited.sample();
        if std::mem::replace(&mut self.last, wait).is_for_scheduling() {
            self.scheduling_time += waited - before;
        }
        let Some(limit) = self.limit else { return false };
        if wait.is_for_scheduling() {
            waited >= limit.max(TARGET_WAIT_MIN)
        } else {
            waited - self.scheduling_time >= limit
        }
    }

    /// Returns the time waited at the last poll.
    pub(crate) const fn waited(&self) -> Duration {
        self.waited.sum()
    }
}

/// A queued request. Its buffers are reused.
#[derive(Default)]
pub(crate) struct QueuedRequest {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: SendFlags,
    pub(crate) imm_be: u32,
    pub(crate) target: WrTarget,
    pub(crate) sges: Vec<Sge>,
    pub(crate) inline_data: Vec<u8>,
}

impl QueuedRequest {
    /// Returns the payload length in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }

    /// Returns the request in the form in which it is executed, with its elements.
    pub(crate) fn request<'a>(&self, target: &'a WrTarget, sges: &'a [Sge]) -> Request<'a> {
        let rdma = target.rdma();
        Request {
            opcode: WrOpcode(self.opcode),
            flags: self.flags,
            imm_be: self.imm_be,
            remote_addr: rdma.remote_addr,
            rkey: rdma.rkey,
            target,
            sges,
            len_bytes: sges.iter().map(|sge| u64::from(sge.length)).sum(),
        }
    }
}

#[derive(Default)]
pub(crate) struct WaitQueue {
    slots: Box<[QueuedRequest]>,
    head: u32,
    len: u32,
}

impl WaitQueue {
    /// # Safety
    /// Inline elements of `wr` must be readable.
    pub(crate) unsafe fn push(&mut self, wr: &SendWr<'_>, capacity: usize) {
        if self.slots.is_empty() {
            self.slots = (0..capacity).map(|_| QueuedRequest::default()).collect();
        }
        let at = self.at(self.len());
        self.len += 1;
        let slot = &mut self.slots[at];
        (slot.wr_id, slot.opcode, slot.flags, slot.imm_be) =
            (wr.wr_id, wr.opcode.0, wr.send_flags, wr.imm_data_be);
        slot.target = *wr.target();
        slot.sges.clear();
        if !wr.send_flags.contains(SendFlags::INLINE) {
            slot.sges.extend_from_slice(wr.sges());
            return;
        }
        slot.inline_data.clear();
        // SAFETY: by the contract of this function the inline elements are readable.
        unsafe { gather_to_vec(&mut slot.inline_data, wr.sges()) };
        let addr = slot.inline_data.as_ptr().expose_provenance() as u64;
        slot.sges.push(Sge { addr, length: slot.inline_data.len() as u32, lkey: 0 });
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the slot of the request that is preceded by `ahead` others.
    fn at(&self, ahead: usize) -> usize {
        (self.head as usize + ahead) % self.slots.len()
    }

    /// Takes out the oldest request's elements, to be returned by `put_sges`.
    pub(crate) fn take_sges(&mut self) -> Vec<Sge> {
        std::mem::take(&mut self.slots[self.head as usize].sges)
    }

    pub(crate) fn put_sges(&mut self, sges: Vec<Sge>) {
        self.slots[self.head as usize].sges = sges;
    }

    /// Returns the request that is preceded by `ahead` others.
    pub(crate) fn get(&self, ahead: usize) -> Option<&QueuedRequest> {
        (ahead < self.len()).then(|| &self.slots[self.at(ahead)])
    }

    pub(crate) fn front(&self) -> Option<&QueuedRequest> {
        self.get(0)
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, WrOpcode, SendFlags)> {
        let front = self.front()?;
        let popped = (front.wr_id, WrOpcode(front.opcode), front.flags);
        let data = &mut self.slots[self.head as usize].inline_data;
        if data.capacity() > USUAL_INLINE_BYTES as usize {
            *data = Vec::new();
        }
        self.len -= 1;
        // Restarting at slot 0 reuses buffers that have grown already, instead of allocating some for each slot.
        self.head = if self.len == 0 { 0 } else { self.at(1) as u32 };
        Some(popped)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farcall_verbs::{SendFlags, SendWr, Sge};

    use super::{WaitLimit, WaitQueue, WaitReason};
    use crate::shm_transport::flight::{Event, FlightEvent};

    #[test]
    fn reuses_the_buffers_of_the_previous_waiting_request() {
        let byte = 7_u8;
        let sges = [Sge { addr: (&raw const byte).expose_provenance() as u64, length: 1, lkey: 0 }];
        let wr = SendWr::send(1, &sges).with_flags(SendFlags::INLINE);
        let mut queue = WaitQueue::default();
        let mut push_and_pop = || {
            // SAFETY: the element is a local variable of this test.
            unsafe { queue.push(&wr, 4) };
            let waiting = queue.front().unwrap();
            let buffers = (waiting.sges.as_ptr(), waiting.inline_data.as_ptr());
            assert_eq!(waiting.inline_data, [byte]);
            assert!(queue.pop().is_some());
            buffers
        };
        let first = push_and_pop();
        assert_eq!(push_and_pop(), first);
    }

    #[test]
    fn time_for_an_answer_does_not_count_as_silence_of_a_peer() {
        const LIMIT: Duration = Duration::from_millis(1);
        let pause = || std::thread::sleep(4 * LIMIT);
        let mut limit = WaitLimit::new(WaitReason::PeerReply, Some(LIMIT));
        assert!(!limit.has_expired(WaitReason::PeerReply));
        pause();
        assert!(!limit.has_expired(WaitReason::PeerReply) && !limit.has_expired(WaitReason::Peer));
        pause();
        assert!(limit.has_expired(WaitReason::Peer));
    }

    #[test]
    fn flight_recorders_tell_what_is_waited_for() {
        let told = [WaitReason::Receiver, WaitReason::Peer, WaitReason::Target, WaitReason::PeerReply]
            .map(|wait| FlightEvent::of(Event::Wait as u64, wait as u64).unwrap().about);
        assert_eq!(told, ["receiver", "peer", "target", "answer"]);
    }
}
