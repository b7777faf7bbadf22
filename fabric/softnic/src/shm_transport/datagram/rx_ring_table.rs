//! Rings of the senders: granted on request, and revoked when the sender exits or other senders need the space.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use farcall_shm::ring::{ACCEPT, Consumer, Layout, RQ_POSTED};
use farcall_shm::{Segment, SharedMem};
use farcall_verbs::Wc;

use super::{BlockedSender, DatagramCore, MAX_RECORD_BYTES, RxRing};
use crate::process::Client;
use crate::process::rendezvous::{Refusal, ReplyBody};
use crate::shm_transport::cq::Source;
use crate::shm_transport::flight::Event;

/// Maximum number of senders that have a ring. Beyond it the least recently used ring is revoked; its sender must
/// request a new one.
const MAX_RX_RINGS: usize = 1024;

/// Identity of a sender: process instance and queue pair number.
type SenderId = (u64, u32);

struct RxRingEntry {
    sender: SenderId,
    mem: SharedMem,
    /// Readiness bit at the receive completion queue.
    bit: u32,
    /// Client to which the ring was granted.
    client: u64,
}

impl RxRingEntry {
    /// Returns the number of records that this process has consumed.
    fn consumed(&self) -> u64 {
        self.mem.load(RQ_POSTED, Acquire)
    }
}

/// Table of a queue pair's rings; an index here is also one in its `Receiver`. Its lock admits one thread at a time to
/// `BiasedLock::revoke`.
#[derive(Default)]
pub(super) struct RxRingTable(Vec<Option<RxRingEntry>>);

impl RxRingTable {
    fn free_index(&mut self) -> usize {
        if let Some(at) = self.0.iter().position(Option::is_none) {
            return at;
        }
        self.0.push(None);
        self.0.len() - 1
    }

    fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    fn find(&self, is_match: impl Fn(&RxRingEntry) -> bool) -> Option<(usize, &RxRingEntry)> {
        let entries = self.0.iter().enumerate();
        entries.filter_map(|(at, entry)| Some((at, entry.as_ref()?))).find(|(_, entry)| is_match(entry))
    }

    /// Returns the indices of the rings of the selected senders.
    fn indices_of(&self, sender: impl Fn(SenderId) -> bool) -> Vec<usize> {
        let selected =
            |(at, entry): (usize, &Option<RxRingEntry>)| sender(entry.as_ref()?.sender).then_some(at);
        self.0.iter().enumerate().filter_map(selected).collect()
    }
}

/// A ring as a source of completions.
struct RxRingSource {
    core: Arc<DatagramCore>,
    at: usize,
}

impl Source for RxRingSource {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        // SAFETY: `Source::poll` is called only by the thread that polls the receive completion queue, so `owner` has
        // one caller.
        unsafe { self.core.receiver.owner(|receiver| receiver.poll(&self.core, self.at, wc)) }.unwrap_or(0)
    }

    fn may_have_completions(&self) -> bool {
        // SAFETY: `may_have_completions` is called only by the thread that polls the receive completion queue, so
        // `owner` has one caller.
        unsafe { self.core.receiver.owner(|receiver| receiver.has_record(self.at)) }.unwrap_or(true)
    }
}

impl DatagramCore {
    /// Grants a sender a ring of its own.
    ///
    /// # Errors
    /// Returns the reason of refusal.
    pub(crate) fn open_rx_ring<R>(
        &self,
        sender: SenderId,
        client: u64,
        send: impl FnOnce(ReplyBody, &[BorrowedFd<'_>]) -> R,
    ) -> Result<R, Refusal> {
        let mut rx_rings = self.rx_rings.lock();
        // Checked under the lock: a thread that closes the queue pair first changes its state and then revokes all
        // rings.
        if !self.state().responds() {
            return Err(Refusal::NotReady);
        }
        // Datagrams in an earlier ring of the same sender are still delivered.
        self.end_rx_rings(&mut rx_rings, |known| known == sender);
        if rx_rings.count() >= MAX_RX_RINGS {
            self.evict(&mut rx_rings);
        }
        let cq = &self.recv_slot.cq;
        let bit = cq.reserve_bit().or_else(|error| {
            let evicted = self.evict(&mut rx_rings);
            if evicted { cq.reserve_bit() } else { Err(error) }
        });
        let bit = bit.map_err(|_| Refusal::NoRoom)?;
        let layout = Layout::for_datagrams(self.cap.max_recv_wr, MAX_RECORD_BYTES);
        let (Ok(segment), Some(this)) = (Segment::create("farcall-ud", layout.len_bytes()), self.this())
        else {
            cq.detach(bit);
            return Err(Refusal::NoRoom);
        };
        let mem = segment.memory();
        layout.write_header(&mem);
        mem.store(ACCEPT, 1, Release);
        let at = rx_rings.free_index();
        let rx_ring = RxRing::new(Consumer::new(mem.clone(), &layout), sender.1);
        // SAFETY: the lock of `rx_rings` is held, so `revoke` has one caller at a time, and this thread is not inside a
        // poll.
        unsafe { self.receiver.revoke(|receiver| receiver.insert(at, rx_ring)) };
        cq.attach_source(bit, Arc::new(RxRingSource { core: this, at }));
        rx_rings.0[at] = Some(RxRingEntry { sender, mem, bit, client });
        self.stats.record(Event::Opened as u64, sender.1.into());
        let (recv, queue) = cq.location(bit);
        let fds = [&[segment.fd(), self.status.fd()], &queue[..]].concat();
        Ok(send(ReplyBody::OpenDatagrams { recv }, &fds))
    }

    /// Registers a sender for a notification when more of its datagrams are consumed or, if `posted` is given, more
    /// receives are posted. Returns `false` if the sender has no ring here.
    pub(crate) fn add_blocked_sender(
        &self,
        client: &Arc<Client>,
        request: u32,
        bit: u32,
        consumed: u64,
        posted: Option<u64>,
    ) -> bool {
        let rx_rings = self.rx_rings.lock();
        let Some((at, entry)) = rx_rings.find(|entry| entry.client == client.id && entry.bit == bit) else {
            return false;
        };
        let (wants_receives, client) = (posted.is_some(), Arc::downgrade(client));
        self.blocked_senders.add(BlockedSender { at, wants_receives, client, request });
        // Checked after the registration: a thread that posts or consumes receives concurrently checks for registered
        // senders afterwards.
        if entry.consumed() != consumed || posted.is_some_and(|posted| posted != self.status.posted()) {
            self.blocked_senders.notify(|blocked| blocked.at == at);
        }
        true
    }

    /// Called when a process has exited: its rings are revoked once they are empty.
    pub(crate) fn on_process_exit(&self, instance: u64) {
        self.end_rx_rings(&mut self.rx_rings.lock(), |sender| sender.0 == instance);
    }

    /// Revokes all rings.
    pub(super) fn close_rx_rings(&self, rx_rings: &mut RxRingTable) {
        for at in rx_rings.indices_of(|_| true) {
            self.remove_rx_ring(rx_rings, at);
        }
    }

    /// Marks the selected senders' rings as ended, and revokes all rings that are finished.
    fn end_rx_rings(&self, rx_rings: &mut RxRingTable, ended: impl Fn(SenderId) -> bool) {
        let (ended, all) = (rx_rings.indices_of(ended), rx_rings.indices_of(|_| true));
        // SAFETY: the lock of `rx_rings` is held, so `revoke` has one caller at a time, and this thread is not inside a
        // poll.
        let finished: Vec<usize> = unsafe {
            self.receiver.revoke(|receiver| {
                ended.into_iter().for_each(|at| {
                    if let Some(rx_ring) = receiver.get_mut(at) {
                        rx_ring.end();
                    }
                });
                let finished = |at: &usize| receiver.get_mut(*at).is_none_or(|rx_ring| rx_ring.is_finished());
                all.into_iter().filter(finished).collect()
            })
        };
        for at in finished {
            self.remove_rx_ring(rx_rings, at);
        }
    }

    /// Revokes the least useful ring. Returns `false` if there is none.
    fn evict(&self, rx_rings: &mut RxRingTable) -> bool {
        // SAFETY: the lock of `rx_rings` is held, so `revoke` has one caller at a time, and this thread is not inside a
        // poll.
        let Some(at) = (unsafe { self.receiver.revoke(|receiver| receiver.least_used()) }) else {
            return false;
        };
        if let Some(entry) = &rx_rings.0[at] {
            self.stats.record(Event::Evicted as u64, entry.sender.1.into());
        }
        self.remove_rx_ring(rx_rings, at);
        true
    }

    fn remove_rx_ring(&self, rx_rings: &mut RxRingTable, at: usize) {
        let Some(entry) = rx_rings.0[at].take() else { return };
        entry.mem.store(ACCEPT, 0, Release);
        self.blocked_senders.notify(|blocked| blocked.at == at);
        // SAFETY: the lock of `rx_rings` is held, so `revoke` has one caller at a time, and this thread is not inside a
        // poll.
        unsafe { self.receiver.revoke(|receiver| receiver.remove(at)) };
        self.recv_slot.cq.detach(entry.bit);
    }
}
