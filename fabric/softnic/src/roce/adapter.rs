//! Adapter of the protocol to its environment: memory, queues, timers and the link.

use farcall_shm::{AtomicChange, update_word};
use farcall_stats::Counter;
use farcall_verbs::{Access, AsyncEvent, QpState, Wc, WcOpcode, WcStatus};
use farcall_wire::{
    AccessDenied, AccessOutcome, Adapter, AtomicEth, AtomicOp, Event, Packet, Payload, PlacementTarget, Reth,
    Timer, Token,
};

use super::counters::PortCounters;
use super::memory;
use super::qp_context::{Posted, QpContext};
use super::send_batch::{Route, SendBatch};
use super::send_sockets::SendSockets;
use super::timers::Timers;
use crate::process::regions::RegionTable;
use crate::shm_transport::flight::Event as Flight;
use crate::shm_transport::srq::Receive;

/// The port as seen by the protocol of one queue pair during one call.
pub(super) struct PortAdapter<'a> {
    pub(super) context: &'a mut QpContext,
    pub(super) send_batch: &'a mut SendBatch,
    pub(super) timers: &'a mut Timers,
    pub(super) send_sockets: &'a SendSockets,
    pub(super) regions: &'a RegionTable,
    pub(super) counters: &'a PortCounters,
    pub(super) now_ns: u64,
}

impl PortAdapter<'_> {
    fn region(&mut self, packet: &Packet, from: &Reth) -> Result<(), AccessDenied> {
        let len_bytes = from.len_bytes as usize;
        let addr = match memory::locate(self.regions, self.context.pd, from, Access::REMOTE_READ) {
            Some(addr) => addr,
            None if len_bytes == 0 => 0,
            None => return Err(AccessDenied),
        };
        let route = self.route();
        self.send_batch.add(route, packet, len_bytes, |bytes| {
            // SAFETY: `locate` found the range inside a registered region, which by the contract of `reg_mr` stays
            // mapped until it is deregistered. Deregistration waits for the port's lock.
            unsafe { memory::read(bytes, addr, len_bytes) };
            Ok(())
        })
    }

    fn elements(&mut self, packet: &Packet, send: &Posted, range: (u64, u64)) -> Result<(), AccessDenied> {
        let (offset, len_bytes) = range;
        let (regions, pd) = (self.regions, self.context.pd);
        let route = self.route();
        self.send_batch.add(route, packet, len_bytes as usize, |bytes| {
            if let Some(inline) = &send.inline {
                let segment = inline.get(offset as usize..(offset + len_bytes) as usize);
                bytes.extend_from_slice(segment.ok_or(AccessDenied)?);
            } else if memory::allows(regions, pd, send.sges(), range, Access::empty()) {
                // SAFETY: `allows` found the elements inside registered regions, and by the contract of
                // `RawQp::post_send` they are valid until the request completes.
                unsafe { memory::gather(bytes, send.sges(), offset, len_bytes) };
            } else {
                return Err(AccessDenied);
            }
            Ok(())
        })
    }

    /// Returns the route of the next packet.
    fn route(&mut self) -> Route {
        let QpContext { path, src_port, .. } = *self.context;
        Route { path, src_port, gso_mode: self.context.gso_fallback.next_mode(path) }
    }

    /// Schedules the next timer expiry of the queue pair.
    fn schedule(&mut self, at_ns: u64) {
        self.timers.schedule(self.context.qpn, &mut self.context.scheduled, at_ns);
    }
}

impl Adapter<Posted, Receive> for PortAdapter<'_> {
    fn transmit(&mut self, packet: Packet, payload: Payload<'_, Posted>) -> Result<(), AccessDenied> {
        match payload {
            Payload::None => {
                let route = self.route();
                self.send_batch.add(route, &packet, 0, |_| Ok(()))?;
            }
            Payload::Region(from) => self.region(&packet, &from)?,
            Payload::Send { send, offset, len_bytes } => self.elements(&packet, send, (offset, len_bytes))?,
        }
        self.context.counters.packets_sent.increment();
        if self.send_batch.is_full() {
            self.send_batch.flush(self.send_sockets, self.counters, self.now_ns);
        }
        Ok(())
    }

    fn check(&self, send: &Posted, len_bytes: u64, need: Access) -> bool {
        let range = (0, len_bytes);
        send.inline.is_some() || memory::allows(self.regions, self.context.pd, send.sges(), range, need)
    }

    fn scatter(&mut self, send: &Posted, offset: u64, data: &[u8]) -> Result<(), AccessDenied> {
        let range = (offset, data.len() as u64);
        if !memory::allows(self.regions, self.context.pd, send.sges(), range, Access::LOCAL_WRITE) {
            return Err(AccessDenied);
        }
        // SAFETY: `allows` found the elements inside registered regions, and by the contract of `RawQp::post_send` they
        // are valid and unreferenced until the request completes.
        unsafe { memory::scatter(send.sges(), offset, data) };
        Ok(())
    }

    fn take_receive(&mut self, len_bytes_min: u64) -> Option<(Receive, u64)> {
        let fits = |next: &Receive| next.len_bytes() >= len_bytes_min;
        let receive = match &self.context.srq {
            Some(srq) => srq.take_if(|next| fits(next).then(|| next.clone())).flatten(),
            None if self.context.receives.front().is_some_and(fits) => self.context.receives.pop_front(),
            None => None,
        }?;
        let len_bytes = receive.len_bytes();
        Some((receive, len_bytes))
    }

    fn permits(&self, target: &Reth, need: Access) -> bool {
        memory::permits(self.regions, self.context.pd, target, need)
    }

    fn place(&mut self, _: Token, to: PlacementTarget<'_, Receive>, payload: &[u8]) -> AccessOutcome {
        let len_bytes = payload.len() as u64;
        match to {
            PlacementTarget::Region(target, offset) => {
                let addr = target.addr.wrapping_add(offset);
                let here = Reth { addr, len_bytes: payload.len() as u32, ..target };
                match memory::locate(self.regions, self.context.pd, &here, Access::REMOTE_WRITE) {
                    // SAFETY: `locate` found the range inside a registered region. By the contract of `reg_mr` it stays
                    // mapped until deregistration, which waits for the port's lock, and no reference exists to memory
                    // that peers may write.
                    Some(addr) => unsafe { memory::write(addr, payload) },
                    None if payload.is_empty() => {}
                    None => return AccessOutcome::Denied,
                }
            }
            PlacementTarget::Receive(receive, offset) => {
                let (range, need) = ((offset, len_bytes), Access::LOCAL_WRITE);
                if !memory::allows(self.regions, self.context.receives_pd, receive.sges(), range, need) {
                    return AccessOutcome::Denied;
                }
                // SAFETY: `allows` found the elements inside registered regions, and by the contract of
                // `RawQp::post_recv` they are valid and unreferenced until the completion is polled.
                unsafe { memory::scatter(receive.sges(), offset, payload) };
            }
            // Datagrams are handled elsewhere; these queue pairs are connected.
            PlacementTarget::Datagram(_) => return AccessOutcome::Denied,
        }
        AccessOutcome::Done(())
    }

    fn prepare_read(&mut self, _: Token, target: &Reth) -> AccessOutcome {
        if self.permits(target, Access::REMOTE_READ) {
            AccessOutcome::Done(())
        } else {
            AccessOutcome::Denied
        }
    }

    fn atomic(&mut self, _: Token, target: &AtomicEth) -> AccessOutcome<u64> {
        let word = Reth { addr: target.addr, rkey: target.rkey, len_bytes: 8 };
        let addr = memory::locate(self.regions, self.context.pd, &word, Access::REMOTE_ATOMIC);
        let is_aligned = |addr: &u64| addr.is_multiple_of(8) && target.addr.is_multiple_of(8);
        let Some(addr) = addr.filter(is_aligned) else { return AccessOutcome::Denied };
        let change = match target.op {
            AtomicOp::CompareSwap { compare, swap } => AtomicChange::Swap { if_equal: compare, new: swap },
            AtomicOp::FetchAdd { add } => AtomicChange::Add(add),
        };
        // SAFETY: `locate` found the word inside a registered region, and its alignment was checked. By the contract of
        // `reg_mr` it stays mapped until deregistration, which waits for the port's lock, and no reference exists to
        // memory that peers may write.
        AccessOutcome::Done(unsafe { update_word(memory::word(addr), change) })
    }

    fn sent(&mut self, mut send: Posted, mut wc: Wc) {
        if let Some(inline) = send.inline.take() {
            self.context.spare.push(inline);
        }
        if wc.status.is_success() && !send.is_signalled {
            return;
        }
        if !wc.status.is_success() {
            self.context.counters.record(Flight::SendFailed as u64, wc.status.0.into());
        }
        wc.wr_id = send.wr_id;
        self.context.sent.push_back((wc, send.ordinal));
        let slot = &self.context.send_slot;
        slot.cq.announce(slot.bit, !wc.status.is_success());
    }

    fn received(&mut self, receive: Receive, mut wc: Wc, is_solicited: bool) {
        if !wc.status.is_success() {
            self.context.counters.record(Flight::ReceiveFailed as u64, wc.status.0.into());
        }
        wc.wr_id = receive.wr_id;
        self.context.received.push_back(wc);
        let slot = &self.context.recv_slot;
        slot.cq.announce(slot.bit, is_solicited || !wc.status.is_success());
    }

    fn flush_receives(&mut self) {
        while let Some(receive) = self.context.receives.pop_front() {
            let wc = Wc::ended(0, self.context.qpn, WcOpcode::RECV, WcStatus::WR_FLUSH_ERR);
            self.received(receive, wc, false);
        }
    }

    fn event(&mut self, event: Event) {
        let (of_qp, of_port) = (&self.context.counters, self.counters);
        let count = |counters: [&Counter; 2]| counters.into_iter().for_each(Counter::increment);
        match event {
            Event::Async(kind) => self.context.events.raise(AsyncEvent { kind, element: self.context.qpn }),
            Event::State(state) => {
                of_qp.state.set(state as u64);
                of_qp.record(Flight::State as u64, state as u64);
                if matches!(state, QpState::Reset | QpState::Err) {
                    self.context.deadlines = [None; _];
                }
            }
            Event::AckTimeout => {
                count([&of_qp.ack_timeouts, &of_port.ack_timeouts]);
                self.context.gso_fallback.on_loss(self.context.path);
            }
            Event::GoBack(_) => {
                count([&of_qp.resent, &of_port.resent]);
                self.context.gso_fallback.on_loss(self.context.path);
            }
            Event::NotReady => count([&of_qp.not_ready, &of_port.not_ready]),
            Event::CnpSent => count([&of_qp.cnps_sent, &of_port.cnps_sent]),
            Event::CnpReceived => count([&of_qp.cnps_received, &of_port.cnps_received]),
            Event::OutOfSequence(_) => count([&of_qp.out_of_sequence, &of_port.out_of_sequence]),
        }
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn set_timer(&mut self, timer: Timer, after_ns: Option<u64>) {
        let deadline = after_ns.map(|after_ns| self.now_ns.saturating_add(after_ns));
        self.context.deadlines[timer as usize] = deadline;
        deadline.into_iter().for_each(|at_ns| self.schedule(at_ns));
    }
}
