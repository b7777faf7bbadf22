//! The send side of a queue pair. The initiator executes everything itself, in `post_send`, as far as it can; requests
//! that must wait (no receive posted, ring full, peer not ready) stay in order in a queue and are continued by the next
//! post or poll.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use farcall_verbs::{Access, QpState, SendFlags, SendWr, Sge, WcOpcode, WcStatus, WrOpcode};

use super::counters::Event;
use super::grants::Grants;
use super::remote::Remote;
use super::transfer::{gather, gather_to_pieces, gather_to_ring, scatter};
use super::{MAX_SGE, QpCore};
use crate::fence as process_fence;
use crate::handoff::LeavesWork;
use crate::hazard;
use crate::peer::Asked;
use crate::ring::{self, Kind, RQ_POSTED, WANT};
use crate::sync::atomic::Ordering::{Acquire, Relaxed};

/// Messages up to this size travel inside the ring: two small copies cost less than finding the receive's region.
const EAGER_BYTES: u64 = 1024;

/// Everything that posting needs.
pub(super) struct SendSide {
    pub(super) dest_qpn: u32,
    pub(super) remote: Option<Remote>,
    pub(super) timers: Timers,
    /// What the last WRITE and the last READ were granted: a protocol's two directions are two regions.
    write_grants: Option<Grants>,
    read_grants: Option<Grants>,
    waiting: WaitQueue,
    /// When the oldest waiting request gives up, and what it waits for.
    gives_up: Option<(Instant, Wait)>,
    /// A WRITE since the last full fence: a READ must not overtake it (IBA 9.5: RC ordering).
    wrote: bool,
    /// Messages published since the target was last told, and whether one asked for a solicited event.
    unannounced: bool,
    solicited: bool,
}

/// How long to keep trying.
#[derive(Clone, Copy)]
pub(super) struct Timers {
    /// Transport timeout times retries; `None` is for ever.
    pub(super) transport: Option<Duration>,
    /// RNR timer times retries; `None` is for ever.
    pub(super) rnr: Option<Duration>,
}

/// A request as it is executed, now or later.
#[derive(Clone, Copy)]
struct Request<'a> {
    opcode: WrOpcode,
    flags: SendFlags,
    imm_be: u32,
    remote_addr: u64,
    rkey: u32,
    sges: &'a [Sge],
    len_bytes: u64,
}

/// What came of executing a request.
enum Step {
    Done,
    Wait(Wait),
    Failed(WcStatus),
}

/// What a request waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Receiver,
    Peer,
}

impl Wait {
    /// How a request ends that has waited too long.
    const fn ends_in(self) -> WcStatus {
        match self {
            Self::Receiver => WcStatus::RNR_RETRY_EXC_ERR,
            Self::Peer => WcStatus::RETRY_EXC_ERR,
        }
    }
}

/// A request set aside; its buffers are reused.
#[derive(Default)]
struct Parked {
    wr_id: u64,
    opcode: u32,
    flags: SendFlags,
    imm_be: u32,
    remote_addr: u64,
    rkey: u32,
    sges: Vec<Sge>,
    inline_data: Vec<u8>,
}

#[derive(Default)]
struct WaitQueue {
    slots: Vec<Parked>,
    head: usize,
    len: usize,
}

impl WaitQueue {
    /// # Safety
    /// Inline elements of `wr` must be readable.
    unsafe fn push(&mut self, wr: &SendWr<'_>, capacity: usize) {
        if self.slots.is_empty() {
            self.slots.resize_with(capacity, Parked::default);
        }
        let at = (self.head + self.len) % self.slots.len();
        self.len += 1;
        let slot = &mut self.slots[at];
        let target = wr.rdma();
        (slot.wr_id, slot.opcode, slot.flags, slot.imm_be) =
            (wr.wr_id, wr.opcode.0, wr.send_flags, wr.imm_data_be);
        (slot.remote_addr, slot.rkey) = (target.remote_addr, target.rkey);
        slot.sges.clear();
        if !wr.send_flags.contains(SendFlags::INLINE) {
            slot.sges.extend_from_slice(wr.sges());
            return;
        }
        slot.inline_data.clear();
        for sge in wr.sges() {
            let src = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: the caller's promise; inline data is small and read once, now.
            slot.inline_data
                .extend_from_slice(unsafe { std::slice::from_raw_parts(src, sge.length as usize) });
        }
        let addr = slot.inline_data.as_ptr().expose_provenance() as u64;
        slot.sges.push(Sge { addr, length: slot.inline_data.len() as u32, lkey: 0 });
    }

    fn front(&self) -> Option<&Parked> {
        (self.len > 0).then(|| &self.slots[self.head])
    }

    fn pop(&mut self) -> Option<(u64, WrOpcode, SendFlags)> {
        let front = self.front()?;
        let popped = (front.wr_id, WrOpcode(front.opcode), front.flags);
        self.head = (self.head + 1) % self.slots.len();
        self.len -= 1;
        Some(popped)
    }
}

impl LeavesWork for SendSide {
    fn has_work(&self) -> bool {
        self.waiting.len > 0
    }
}

pub(super) const fn completion_opcode(opcode: WrOpcode) -> WcOpcode {
    match opcode {
        WrOpcode::SEND | WrOpcode::SEND_WITH_IMM => WcOpcode::SEND,
        WrOpcode::READ => WcOpcode::RDMA_READ,
        _ => WcOpcode::RDMA_WRITE,
    }
}

impl SendSide {
    pub(super) fn new() -> Self {
        Self {
            dest_qpn: 0,
            remote: None,
            timers: Timers { transport: None, rnr: None },
            write_grants: None,
            read_grants: None,
            waiting: WaitQueue::default(),
            gives_up: None,
            wrote: false,
            unannounced: false,
            solicited: false,
        }
    }

    /// Requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len
    }

    /// Posts one checked request.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[inline]
    pub(super) unsafe fn post(&mut self, core: &QpCore, wr: &SendWr<'_>, len_bytes: u64) {
        if self.waiting.len == 0 {
            let target = wr.rdma();
            let request = Request {
                opcode: wr.opcode,
                flags: wr.send_flags,
                imm_be: wr.imm_data_be,
                remote_addr: target.remote_addr,
                rkey: target.rkey,
                sges: wr.sges(),
                len_bytes,
            };
            // SAFETY: the caller's promise.
            match unsafe { self.execute(core, &request) } {
                Step::Done => {
                    return core.complete_send(wr.wr_id, wr.opcode, wr.send_flags, WcStatus::SUCCESS);
                }
                Step::Failed(status) => return self.fail(core, wr.wr_id, wr.opcode, status),
                Step::Wait(wait) => self.begin_wait(core, wait),
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.waiting.push(wr, core.cap().max_send_wr as usize) };
    }

    /// Executes a one-sided request that repeats an earlier one's grants; false, and nothing done, if it does not.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[inline]
    pub(super) unsafe fn repeat(&mut self, wr: &SendWr<'_>, inline_bytes_max: u32) -> bool {
        let [sge] = wr.sges() else { return false };
        if wr.send_flags.contains(SendFlags::INLINE) && sge.length > inline_bytes_max {
            return false;
        }
        match (wr.opcode, &self.write_grants, &self.read_grants) {
            (WrOpcode::WRITE, Some(grants), _) => {
                self.wrote = true;
                // SAFETY: the caller's promise.
                unsafe { grants.write(wr, sge) }
            }
            (WrOpcode::READ, _, Some(grants)) => {
                if std::mem::take(&mut self.wrote) {
                    fence(Ordering::SeqCst);
                }
                // SAFETY: the caller's promise.
                unsafe { grants.read(wr, sge) }
            }
            _ => false,
        }
    }

    /// Continues requests that wait.
    pub(super) fn resume(&mut self, core: &QpCore) {
        while let Some(parked) = self.waiting.front() {
            if core.state() != QpState::Rts {
                self.flush(core);
                break;
            }
            // The slot outlives the call: `execute` touches everything but `waiting`, so it is lent out meanwhile.
            let at = self.waiting.head;
            let request = Request {
                opcode: WrOpcode(parked.opcode),
                flags: parked.flags,
                imm_be: parked.imm_be,
                remote_addr: parked.remote_addr,
                rkey: parked.rkey,
                sges: &[],
                len_bytes: parked.sges.iter().map(|sge| u64::from(sge.length)).sum(),
            };
            let sges = std::mem::take(&mut self.waiting.slots[at].sges);
            // SAFETY: the poster's promise holds until the request's completion.
            let step = unsafe { self.execute(core, &Request { sges: &sges, ..request }) };
            self.waiting.slots[at].sges = sges;
            let status = match step {
                Step::Done => WcStatus::SUCCESS,
                Step::Failed(status) => status,
                Step::Wait(wait) => match self.gives_up {
                    Some((at, of)) if of == wait && Instant::now() >= at => wait.ends_in(),
                    Some((_, of)) if of == wait => break,
                    // A peer that becomes ready but has no receive (or the reverse) begins a wait of its own.
                    _ => {
                        self.begin_wait(core, wait);
                        break;
                    }
                },
            };
            self.gives_up = None;
            let Some((wr_id, opcode, flags)) = self.waiting.pop() else { break };
            if status.is_success() {
                core.complete_send(wr_id, opcode, flags, status);
            } else {
                self.fail(core, wr_id, opcode, status);
            }
        }
        self.ring();
        if self.waiting.len == 0 {
            core.set_send_waits(false);
            if let Some(remote) = &self.remote
                && remote.inbound().load(WANT, Relaxed) != 0
            {
                remote.inbound().store(WANT, 0, Relaxed);
            }
        }
    }

    /// Tells the target what was published since the last time: one announcement for a whole batch.
    #[inline]
    pub(super) fn ring(&mut self) {
        if self.unannounced {
            self.unannounced = false;
            let solicited = std::mem::take(&mut self.solicited);
            if let Some(remote) = &self.remote {
                remote.doorbells.announce(solicited);
            }
        }
    }

    #[cold]
    fn begin_wait(&mut self, core: &QpCore, wait: Wait) {
        let after = match wait {
            Wait::Receiver => self.timers.rnr,
            Wait::Peer => self.timers.transport,
        };
        // A deadline far away stands for "for ever": the slot also says that waiting has begun.
        let after = after.unwrap_or(Duration::from_secs(u32::MAX.into()));
        self.gives_up = Some((Instant::now() + after, wait));
        core.stats.waits.increment();
        core.stats.record(Event::Wait as u64, u64::from(wait == Wait::Peer));
        core.set_send_waits(true);
        core.retry_later();
    }

    #[cold]
    fn fail(&mut self, core: &QpCore, wr_id: u64, opcode: WrOpcode, status: WcStatus) {
        self.ring();
        core.complete_send(wr_id, opcode, SendFlags::SIGNALED, status);
        core.enter_error();
        self.flush(core);
    }

    /// Ends everything that waits.
    #[cold]
    pub(super) fn flush(&mut self, core: &QpCore) {
        self.gives_up = None;
        while let Some((wr_id, opcode, _)) = self.waiting.pop() {
            core.complete_send(wr_id, opcode, SendFlags::SIGNALED, WcStatus::WR_FLUSH_ERR);
        }
        core.set_send_waits(false);
    }

    /// Drops everything that waits, without completions (RESET, destroy).
    pub(super) fn discard(&mut self, core: &QpCore) {
        self.gives_up = None;
        while self.waiting.pop().is_some() {}
        core.set_send_waits(false);
    }

    /// # Safety
    /// The request's memory is the poster's promise.
    #[inline]
    unsafe fn execute(&mut self, core: &QpCore, request: &Request<'_>) -> Step {
        if self.remote.is_none()
            && let Some(step) = self.connect(core)
        {
            return step;
        }
        if self.remote.as_ref().is_some_and(|remote| remote.peer.is_dead()) {
            return Step::Failed(WcStatus::RETRY_EXC_ERR);
        }
        let needs_local =
            if request.opcode == WrOpcode::READ { Access::LOCAL_WRITE } else { Access::empty() };
        if !request.flags.contains(SendFlags::INLINE) && !core.allows(request.sges, needs_local) {
            return Step::Failed(WcStatus::LOC_PROT_ERR);
        }
        // SAFETY: the poster's promise, passed on.
        let step = unsafe {
            match request.opcode {
                WrOpcode::WRITE => self.write(request),
                WrOpcode::READ => self.read(request),
                _ => self.message(request),
            }
        };
        if let Step::Done = step {
            core.stats.executed(request.opcode, request.len_bytes);
        }
        match step {
            Step::Failed(WcStatus::REM_ACCESS_ERR) => self.nak_access(),
            Step::Done if matches!(request.opcode, WrOpcode::WRITE | WrOpcode::READ) => {
                self.remember(core, request)
            }
            _ => {}
        }
        step
    }

    /// Keeps what a one-sided request was granted, for the next like it.
    fn remember(&mut self, core: &QpCore, request: &Request<'_>) {
        let inline = request.flags.contains(SendFlags::INLINE);
        if let (Some(remote), [sge]) = (&mut self.remote, request.sges)
            && request.len_bytes > 0
            && let Asked::Granted(at) = remote.find_region(request.rkey, false)
        {
            let lkey = (!inline).then_some(sge.lkey);
            let local = lkey.and_then(|lkey| core.process.regions.local(lkey, core.pd()));
            let grants =
                if request.opcode == WrOpcode::READ { &mut self.read_grants } else { &mut self.write_grants };
            if !grants.as_ref().is_some_and(|grants| grants.covers(request.rkey, lkey)) {
                *grants = Grants::of(remote, at, lkey.zip(local));
            }
        }
    }

    /// Tries to reach a peer that was not ready when we became ready to receive; `None` if it is reached now.
    #[cold]
    fn connect(&mut self, core: &QpCore) -> Option<Step> {
        match core.connect(self) {
            Ok(true) => None,
            Ok(false) => Some(Step::Wait(Wait::Peer)),
            Err(_) => Some(Step::Failed(WcStatus::RETRY_EXC_ERR)),
        }
    }

    /// One-sided access to `len_bytes` of the target, checked and fenced; `access` is given the bytes' address here.
    #[inline]
    fn one_sided(&mut self, request: &Request<'_>, need: Access, access: impl FnOnce(*mut u8)) -> Step {
        let Some(remote) = &mut self.remote else { return Step::Wait(Wait::Peer) };
        if request.len_bytes == 0 {
            // No key is looked at (IBA 9.7.4.2.3), but the target must be there.
            return if remote.accepts().is_some() { Step::Done } else { Step::Wait(Wait::Peer) };
        }
        for _ in 0..2 {
            let at = match remote.find_region(request.rkey, false) {
                Asked::Granted(at) => at,
                Asked::Refused(_) => return Step::Failed(WcStatus::REM_ACCESS_ERR),
                Asked::NotYet => return Step::Wait(Wait::Peer),
            };
            hazard::enter(remote.inbound(), hazard::of_region(request.rkey));
            let region = remote.cached(at);
            let (accepts, current) = (remote.accepts(), region.is_current(&remote.peer));
            let place = region.locate(request.remote_addr, request.len_bytes);
            let step = match (accepts, place) {
                (None, _) => Step::Wait(Wait::Peer),
                (Some(accept), Some(place))
                    if current && (region.access & accept.access()).contains(need) =>
                {
                    access(place);
                    hazard::leave(remote.inbound());
                    return Step::Done;
                }
                _ => Step::Failed(WcStatus::REM_ACCESS_ERR),
            };
            hazard::leave(remote.inbound());
            if current || matches!(step, Step::Wait(_)) {
                return step;
            }
            // The key may have been given to a new region since: look once more.
            remote.forget(at);
        }
        Step::Failed(WcStatus::REM_ACCESS_ERR)
    }

    /// # Safety
    /// See `execute`.
    #[inline]
    unsafe fn write(&mut self, request: &Request<'_>) -> Step {
        self.wrote = true;
        // SAFETY: `one_sided` gives an address with room for the whole request; the elements are the poster's promise.
        self.one_sided(request, Access::REMOTE_WRITE, |place| unsafe { gather(place, request.sges) })
    }

    /// # Safety
    /// See `execute`.
    #[inline]
    unsafe fn read(&mut self, request: &Request<'_>) -> Step {
        if std::mem::take(&mut self.wrote) {
            fence(Ordering::SeqCst);
        }
        // SAFETY: as in `write`.
        self.one_sided(request, Access::REMOTE_READ, |place| unsafe { scatter(place, request.sges) })
    }

    /// SEND and WRITE with immediate: what consumes a receive.
    ///
    /// # Safety
    /// See `execute`.
    unsafe fn message(&mut self, request: &Request<'_>) -> Step {
        // SAFETY: the poster's promise, passed on.
        let mut step = unsafe { self.try_message(request) };
        if matches!(step, Step::Wait(_)) && self.want() {
            // What the target gave before it saw that we want it is not announced: look once more.
            // SAFETY: as above; the first attempt did nothing.
            step = unsafe { self.try_message(request) };
        }
        if let Step::Done | Step::Failed(WcStatus::REM_INV_REQ_ERR) = step {
            self.unannounced = true;
            self.solicited |= request.flags.contains(SendFlags::SOLICITED);
        }
        step
    }

    /// # Safety
    /// See `execute`.
    unsafe fn try_message(&mut self, request: &Request<'_>) -> Step {
        if !self.receive_is_posted() {
            // A target that is not ready to receive does not answer at all, whatever it has posted.
            let responds = self.remote.as_ref().is_some_and(|remote| remote.accepts().is_some());
            return Step::Wait(if responds { Wait::Receiver } else { Wait::Peer });
        }
        // SAFETY: the poster's promise, passed on.
        unsafe {
            match request.opcode {
                WrOpcode::WRITE_WITH_IMM => self.write_with_imm(request),
                _ => self.send(request),
            }
        }
    }

    fn record_flags(request: &Request<'_>) -> u8 {
        let imm = matches!(request.opcode, WrOpcode::SEND_WITH_IMM | WrOpcode::WRITE_WITH_IMM);
        let solicited = request.flags.contains(SendFlags::SOLICITED);
        (u8::from(imm) * ring::WITH_IMM) | (u8::from(solicited) * ring::SOLICITED)
    }

    /// Whether the target has a receive for our next message.
    #[inline]
    fn receive_is_posted(&mut self) -> bool {
        let Some(remote) = &mut self.remote else { return false };
        if remote.sent < remote.posted_seen {
            return true;
        }
        remote.posted_seen = remote.inbound().load(RQ_POSTED, Acquire);
        remote.sent < remote.posted_seen
    }

    /// Asks the target to tell us when it posts receives or consumes records. Returns whether that is new, so that the
    /// caller must look once more.
    fn want(&mut self) -> bool {
        let Some(remote) = &self.remote else { return false };
        if remote.inbound().load(WANT, Relaxed) != 0 {
            return false;
        }
        remote.inbound().store(WANT, 1, Relaxed);
        process_fence::heavy();
        true
    }

    /// # Safety
    /// See `execute`.
    unsafe fn write_with_imm(&mut self, request: &Request<'_>) -> Step {
        let Some(remote) = &mut self.remote else { return Step::Wait(Wait::Peer) };
        if !remote.producer.has_room(0, 0) {
            return Step::Wait(Wait::Receiver);
        }
        self.wrote = true;
        // SAFETY: as in `write`.
        let step =
            self.one_sided(request, Access::REMOTE_WRITE, |place| unsafe { gather(place, request.sges) });
        if let (Step::Done, Some(remote)) = (&step, &mut self.remote) {
            remote.producer.payload_at(0);
            let len = request.len_bytes as u32;
            remote.producer.publish(Kind::WriteImm, Self::record_flags(request), len, request.imm_be, 0);
            remote.sent += 1;
        }
        step
    }

    /// # Safety
    /// See `execute`.
    unsafe fn send(&mut self, request: &Request<'_>) -> Step {
        let Some(remote) = &mut self.remote else { return Step::Wait(Wait::Peer) };
        let (flags, len) = (Self::record_flags(request), request.len_bytes as u32);
        hazard::enter(remote.inbound(), hazard::RECEIVES);
        let step = if remote.accepts().is_none() {
            Step::Wait(Wait::Peer)
        } else if request.len_bytes > advertised_bytes(remote, request.len_bytes) {
            if remote.producer.has_room(0, 0) {
                remote.producer.payload_at(0);
                remote.producer.publish(Kind::TooLong, flags, len, request.imm_be, 0);
                remote.sent += 1;
                Step::Failed(WcStatus::REM_INV_REQ_ERR)
            } else {
                Step::Wait(Wait::Receiver)
            }
        // A slot stays free for every receive that the target may post before it polls.
        } else if request.len_bytes <= EAGER_BYTES
            && remote.producer.has_room(len as usize, remote.layout.rq_depth)
        {
            let at = remote.producer.payload_at(len as usize);
            // SAFETY: the elements are the poster's promise.
            unsafe { gather_to_ring(remote.inbound(), at, request.sges) };
            remote.producer.publish(Kind::Send, flags, len, request.imm_be, len as usize);
            remote.sent += 1;
            Step::Done
        } else if remote.producer.has_room(0, 0) {
            // SAFETY: the poster's promise, passed on.
            unsafe { place(remote, request, flags) }
        } else {
            Step::Wait(Wait::Receiver)
        };
        hazard::leave(remote.inbound());
        step
    }

    /// Tells the target that we broke its rules, so that its end fails too, as a real responder's would.
    #[cold]
    fn nak_access(&mut self) {
        if let Some(remote) = &mut self.remote
            && remote.producer.has_room(0, 0)
        {
            remote.producer.payload_at(0);
            remote.producer.publish(Kind::AccessNak, 0, 0, 0, 0);
            self.unannounced = true;
        }
    }
}

/// One advertised scatter element: address, length, key.
fn advert(remote: &Remote, sge: u64) -> (u64, u32, u32) {
    let at = remote.layout.advert_at(remote.sent, sge);
    let addr = remote.inbound().load(at, Relaxed);
    let word = remote.inbound().load(at + 8, Relaxed);
    (addr, word as u32, (word >> 32) as u32)
}

/// Bytes that the next receive has room for; stops counting at `enough`.
#[inline]
fn advertised_bytes(remote: &Remote, enough: u64) -> u64 {
    let mut sum = 0;
    for sge in 0..remote.layout.recv_sge {
        if sum >= enough {
            break;
        }
        sum += u64::from(advert(remote, sge).1);
    }
    sum
}

/// Places a message into the advertised receive (a rendezvous that the receiver has begun by posting).
///
/// # Safety
/// The request's memory is the poster's promise. Call inside a hazard, with room for a record.
unsafe fn place(remote: &mut Remote, request: &Request<'_>, flags: u8) -> Step {
    let mut pieces = [(std::ptr::null_mut(), 0_usize); MAX_SGE];
    // Keeps the mappings while we copy: the cache may give one up for the next.
    let mut held = [const { None }; MAX_SGE];
    let (mut count, mut left) = (0, request.len_bytes);
    for sge in 0..remote.layout.recv_sge.min(MAX_SGE as u64) {
        let (addr, room, key) = advert(remote, sge);
        let len = left.min(room.into());
        if len == 0 {
            continue;
        }
        let at = match remote.find_region(key, true) {
            Asked::Granted(at) => at,
            Asked::Refused(_) => return Step::Failed(WcStatus::REM_OP_ERR),
            Asked::NotYet => return Step::Wait(Wait::Peer),
        };
        let region = remote.cached(at).clone();
        let Some(place) = region.locate(addr, len).filter(|_| region.is_current(&remote.peer)) else {
            remote.forget(at);
            return Step::Wait(Wait::Peer);
        };
        pieces[count] = (place, len as usize);
        held[count] = Some(region);
        count += 1;
        left -= len;
    }
    if left > 0 {
        return Step::Failed(WcStatus::REM_INV_REQ_ERR);
    }
    // SAFETY: the pieces are located in mapped regions, which `held` keeps mapped.
    unsafe { gather_to_pieces(request.sges, &pieces[..count]) };
    remote.producer.payload_at(0);
    remote.producer.publish(Kind::SendPlaced, flags, request.len_bytes as u32, request.imm_be, 0);
    remote.sent += 1;
    Step::Done
}
