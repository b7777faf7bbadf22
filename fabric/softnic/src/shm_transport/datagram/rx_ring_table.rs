//! Rings of the senders: granted on request, and revoked when the sender exits or other senders need the space.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use farcall_shm::ring::{ACCEPT, Consumer, Layout, RQ_POSTED};
use farcall_shm::{Segment, SharedMem};
use farcall_verbs::Wc;

use super::{Asker, DatagramCore, Inlet, MAX_RECORD_BYTES};
use crate::process::Client;
use crate::process::rendezvous::{Refusal, ReplyBody};
use crate::shm_transport::cq::Source;
use crate::shm_transport::flight::Event;

/// Maximum number of senders that have a ring. Beyond it the least recently used ring is revoked; its sender must
/// request a new one.
const MAX_INLETS: usize = 1024;

/// Identity of a sender: process instance and queue pair number.
type Sender = (u64, u32);

struct Entry {
    sender: Sender,
    mem: SharedMem,
    /// Readiness bit at the receive completion queue.
    bit: u32,
    /// Client to which the ring was granted.
    client: u64,
}

impl Entry {
    /// Returns the number of records that this process has consumed.
    fn taken(&self) -> u64 {
        self.mem.load(RQ_POSTED, Acquire)
    }
}

/// Table of a queue pair's rings; an index here is also one in its `Receiver`. Its lock admits one thread at a time to
/// `BiasedLock::revoke`.
#[derive(Default)]
pub(super) struct Inlets(Vec<Option<Entry>>);

impl Inlets {
    fn free(&mut self) -> usize {
        if let Some(at) = self.0.iter().position(Option::is_none) {
            return at;
        }
        self.0.push(None);
        self.0.len() - 1
    }

    fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    fn find(&self, is_it: impl Fn(&Entry) -> bool) -> Option<(usize, &Entry)> {
        let entries = self.0.iter().enumerate();
        entries.filter_map(|(at, entry)| Some((at, entry.as_ref()?))).find(|(_, entry)| is_it(entry))
    }

    /// Returns the indices of the rings of the selected senders.
    fn of(&self, sender: impl Fn(Sender) -> bool) -> Vec<usize> {
        let chosen = |(at, entry): (usize, &Option<Entry>)| sender(entry.as_ref()?.sender).then_some(at);
        self.0.iter().enumerate().filter_map(chosen).collect()
    }
}

/// A ring as a source of completions.
struct InletSource {
    core: Arc<DatagramCore>,
    at: usize,
}

impl Source for InletSource {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        // SAFETY: `Source::poll` is called only by the thread that polls the receive completion queue, so `owner` has
        // one caller.
        unsafe { self.core.receiver.owner(|receiver| receiver.poll(&self.core, self.at, wc)) }.unwrap_or(0)
    }

    fn has_something(&self) -> bool {
        // SAFETY: `has_something` is called only by the thread that polls the receive completion queue, so `owner` has
        // one caller.
        unsafe { self.core.receiver.owner(|receiver| receiver.has_record(self.at)) }.unwrap_or(true)
    }
}

impl DatagramCore {
    /// Grants a sender a ring of its own.
    ///
    /// # Errors
    /// Returns the reason of refusal.
    pub(crate) fn open_inlet<R>(
        &self,
        sender: Sender,
        client: u64,
        send: impl FnOnce(ReplyBody, &[BorrowedFd<'_>]) -> R,
    ) -> Result<R, Refusal> {
        let mut inlets = self.inlets.lock();
        // Checked under the lock: a thread that closes the queue pair first changes its state and then revokes all
        // rings.
        if !self.state().responds() {
            return Err(Refusal::NotReady);
        }
        // Datagrams in an earlier ring of the same sender are still delivered.
        self.end_inlets(&mut inlets, |known| known == sender);
        if inlets.count() >= MAX_INLETS {
            self.evict(&mut inlets);
        }
        let cq = &self.recv_slot.cq;
        let bit = cq.reserve_bit().or_else(|error| {
            let evicted = self.evict(&mut inlets);
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
        let at = inlets.free();
        let inlet = Inlet::new(Consumer::new(mem.clone(), &layout), sender.1);
        // SAFETY: the lock of the inlets is held, so `revoke` has one caller at a time, and this thread is not inside a
        // poll.
        unsafe { self.receiver.revoke(|receiver| receiver.insert(at, inlet)) };
        cq.attach_source(bit, Arc::new(InletSource { core: this, at }));
        inlets.0[at] = Some(Entry { sender, mem, bit, client });
        self.stats.record(Event::Opened as u64, sender.1.into());
        let (recv, queue) = cq.place(bit);
        let fds = [&[segment.fd(), self.board.fd()], &queue[..]].concat();
        Ok(send(ReplyBody::OpenDatagrams { recv }, &fds))
    }

    /// Registers a sender for a notification when more of its datagrams are consumed or, if `posted` is given, more
    /// receives are posted. Returns `false` if the sender has no ring here.
    pub(crate) fn add_asker(
        &self,
        client: &Arc<Client>,
        request: u32,
        bit: u32,
        taken: u64,
        posted: Option<u64>,
    ) -> bool {
        let inlets = self.inlets.lock();
        let Some((at, entry)) = inlets.find(|entry| entry.client == client.id && entry.bit == bit) else {
            return false;
        };
        let (wants_receives, client) = (posted.is_some(), Arc::downgrade(client));
        self.askers.add(Asker { at, wants_receives, client, request });
        // Checked after the registration: a thread that posts or consumes receives concurrently checks for registered
        // senders afterwards.
        if entry.taken() != taken || posted.is_some_and(|posted| posted != self.board.posted()) {
            self.askers.tell(|asker| asker.at == at);
        }
        true
    }

    /// Called when a process has exited: its rings are revoked once they are empty.
    pub(crate) fn on_process_exit(&self, instance: u64) {
        self.end_inlets(&mut self.inlets.lock(), |sender| sender.0 == instance);
    }

    /// Revokes all rings.
    pub(super) fn close_inlets(&self, inlets: &mut Inlets) {
        for at in inlets.of(|_| true) {
            self.remove_inlet(inlets, at);
        }
    }

    /// Marks the selected senders' rings as ended, and revokes all rings that are finished.
    fn end_inlets(&self, inlets: &mut Inlets, ended: impl Fn(Sender) -> bool) {
        let (ended, all) = (inlets.of(ended), inlets.of(|_| true));
        // SAFETY: the lock of the inlets is held, so `revoke` has one caller at a time, and this thread is not inside a
        // poll.
        let finished: Vec<usize> = unsafe {
            self.receiver.revoke(|receiver| {
                ended.into_iter().for_each(|at| {
                    if let Some(inlet) = receiver.get_mut(at) {
                        inlet.end();
                    }
                });
                let finished = |at: &usize| receiver.get_mut(*at).is_none_or(|inlet| inlet.is_finished());
                all.into_iter().filter(finished).collect()
            })
        };
        for at in finished {
            self.remove_inlet(inlets, at);
        }
    }

    /// Revokes the least useful ring. Returns `false` if there is none.
    fn evict(&self, inlets: &mut Inlets) -> bool {
        // SAFETY: the lock of the inlets is held, so `revoke` has one caller at a time, and this thread is not inside a
        // poll.
        let Some(at) = (unsafe { self.receiver.revoke(|receiver| receiver.least_used()) }) else {
            return false;
        };
        if let Some(entry) = &inlets.0[at] {
            self.stats.record(Event::Evicted as u64, entry.sender.1.into());
        }
        self.remove_inlet(inlets, at);
        true
    }

    fn remove_inlet(&self, inlets: &mut Inlets, at: usize) {
        let Some(entry) = inlets.0[at].take() else { return };
        entry.mem.store(ACCEPT, 0, Release);
        self.askers.tell(|asker| asker.at == at);
        // SAFETY: the lock of the inlets is held, so `revoke` has one caller at a time, and this thread is not inside a
        // poll.
        unsafe { self.receiver.revoke(|receiver| receiver.remove(at)) };
        self.recv_slot.cq.detach(entry.bit);
    }
}
