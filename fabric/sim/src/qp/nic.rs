//! The transport's interface to its device: memory, queues, timers and the network of the simulated world.

use farcall_verbs::{Access, QpState, QpType, Wc, WcOpcode, WcStatus};
use farcall_wire::{
    AccessDenied, AccessOutcome, Adapter, AtomicEth, Event, Packet, Payload, PlacementTarget, Reth, Timer,
    Token,
};

use super::{DeviceSide, Posted, Progress};
use crate::cq::{Entry, ReleasedSlots};
use crate::devices::Devices;
use crate::memory::Admitted;
use crate::packet::{Frame, Node};
use crate::queue;
use crate::receive::Receive;
use crate::trace::RecordKind;

/// A queue pair's device during one call of its transport.
pub(crate) struct Nic<'a> {
    pub(super) devices: &'a mut Devices,
    pub(super) qp: &'a mut DeviceSide,
}

impl Nic<'_> {
    fn domain(&self) -> (Node, u32) {
        (self.qp.node, self.qp.pd)
    }

    fn note(&mut self, what: RecordKind, numbers: [u64; 2]) {
        let (node, num) = (u64::from(self.qp.node), u64::from(self.qp.num));
        self.devices.note(what, [node, num, numbers[0], numbers[1]]);
    }

    fn admit(&self, target: &Reth, offset: u64, len: u64, need: Access) -> Option<Admitted> {
        let here = (target.addr.wrapping_add(offset), len);
        self.devices.memory.admit(self.domain(), target.rkey, here, need)
    }

    fn access_ends_at(&mut self, token: Token, at_ns: u64) {
        self.devices.at(at_ns, queue::Event::Accessed { qp: self.qp.id, token });
    }

    fn fetch(&mut self, pieces: &[Admitted]) -> Vec<u8> {
        self.devices.memory.fetch_list(&mut self.devices.scheduler.time, pieces)
    }

    fn store(&mut self, pieces: &[Admitted], bytes: &[u8]) {
        self.devices.memory.store_list(&mut self.devices.scheduler, pieces, bytes);
    }

    /// Voids everything in progress.
    fn void_progress(&mut self) {
        self.qp.progress.incarnation += 1;
        self.qp.progress.is_responding = false;
    }

    /// Discards all posted requests and their completions.
    fn discard_posted(&mut self) {
        self.qp.peer = None;
        self.qp.receives.clear();
        let Progress { incarnation, timer_generations, .. } = self.qp.progress;
        self.qp.progress = Progress { incarnation, timer_generations, ..Progress::default() };
        self.devices.discard_completions([self.qp.send_cq, self.qp.recv_cq], self.qp.id);
    }

    /// Stores a datagram with its route header: the packet's IPv4 header in the last 20 of 40 bytes, as with RoCEv2
    /// devices.
    fn place_datagram(&mut self, receive: &Receive, payload: &[u8]) -> AccessOutcome {
        const HEADERS_BYTES: usize = 20 + 8 + 12 + 8 + 4;
        let src = self.qp.arriving_from;
        let mut bytes = vec![0; farcall_wire::GRH_BYTES as usize];
        let ip = &mut bytes[20..];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&((payload.len() + HEADERS_BYTES) as u16).to_be_bytes());
        ip[8] = 64;
        ip[9] = 17;
        ip[12..16].copy_from_slice(&self.devices.nodes.gid(src).0[12..]);
        ip[16..20].copy_from_slice(&self.devices.nodes.gid(self.qp.node).0[12..]);
        bytes.extend_from_slice(payload);
        let range = (0, bytes.len() as u64);
        match self.devices.memory.admit_list(self.domain(), &receive.sges, range, Access::LOCAL_WRITE) {
            Some(pieces) => self.store(&pieces, &bytes),
            None => return AccessOutcome::Denied,
        }
        AccessOutcome::Done(())
    }
}

impl Adapter<Posted, Receive> for Nic<'_> {
    /// Reads the payload now, as the DMA of a device would.
    fn transmit(&mut self, packet: Packet, payload: Payload<'_, Posted>) -> Result<(), AccessDenied> {
        let (mut dst, mut bytes) = (self.qp.peer, Vec::new());
        match payload {
            Payload::None => {}
            Payload::Region(target) => {
                let len = u64::from(target.len_bytes);
                let from = self.admit(&target, 0, len, Access::REMOTE_READ).ok_or(AccessDenied)?;
                bytes = self.fetch(&[from]);
            }
            Payload::Send { send, offset, len_bytes } => {
                if packet.transport == QpType::Ud {
                    dst = send.dst;
                }
                bytes = match &send.inline {
                    Some(inline) => inline[offset as usize..(offset + len_bytes) as usize].to_vec(),
                    None => {
                        let range = (offset, len_bytes);
                        let pieces =
                            self.devices.memory.admit_list(self.domain(), &send.sges, range, Access::empty());
                        self.fetch(&pieces.ok_or(AccessDenied)?)
                    }
                };
            }
        }
        if let Some(dst) = dst {
            let (src, src_qpn) = (self.qp.node, self.qp.num);
            self.devices.send(Frame { src, dst, src_qpn, packet, payload: bytes, is_marked: false });
        }
        Ok(())
    }

    fn check(&self, send: &Posted, len_bytes: u64, need: Access) -> bool {
        let range = (0, len_bytes);
        send.inline.is_some()
            || self.devices.memory.admit_list(self.domain(), &send.sges, range, need).is_some()
    }

    fn scatter(&mut self, send: &Posted, offset: u64, data: &[u8]) -> Result<(), AccessDenied> {
        let range = (offset, data.len() as u64);
        let pieces = self.devices.memory.admit_list(self.domain(), &send.sges, range, Access::LOCAL_WRITE);
        self.store(&pieces.ok_or(AccessDenied)?, data);
        Ok(())
    }

    fn take_receive(&mut self, len_bytes_min: u64) -> Option<(Receive, u64)> {
        let is_long_enough = |next: &Receive| next.room() >= len_bytes_min;
        let receive = match self.qp.srq {
            Some(srq) => self.devices.take_shared_if(srq, is_long_enough),
            None => self.qp.receives.pop_if(is_long_enough),
        }?;
        let room = receive.room();
        Some((receive, room))
    }

    fn permits(&self, target: &Reth, need: Access) -> bool {
        self.admit(target, 0, u64::from(target.len_bytes), need).is_some()
    }

    fn place(&mut self, token: Token, to: PlacementTarget<'_, Receive>, payload: &[u8]) -> AccessOutcome {
        let len = payload.len() as u64;
        let (pieces, offset) = match to {
            PlacementTarget::Datagram(receive) => return self.place_datagram(receive, payload),
            PlacementTarget::Region(target, offset) => {
                let piece = self.admit(&target, offset, len, Access::REMOTE_WRITE);
                (piece.map(|piece| vec![piece]), offset)
            }
            PlacementTarget::Receive(receive, offset) => {
                let range = (offset, len);
                (
                    self.devices.memory.admit_list(self.domain(), &receive.sges, range, Access::LOCAL_WRITE),
                    offset,
                )
            }
        };
        let Some(pieces) = pieces else { return AccessOutcome::Denied };
        let soonest_ns = self.devices.now_ns() + self.devices.params.placement_ns;
        if offset == 0 {
            self.qp.progress.from_ns = self.qp.progress.placed_ns.max(soonest_ns);
        }
        let from_ns = self.qp.progress.from_ns.max(soonest_ns);
        let Devices { placement, scheduler, .. } = &mut *self.devices;
        let placer = (self.qp.id, self.qp.progress.incarnation);
        let placed_ns = placement.place(&mut scheduler.time, &pieces, payload, placer, from_ns);
        self.qp.progress.placed_ns = self.qp.progress.placed_ns.max(placed_ns);
        if self.devices.params.placement_in_order {
            self.qp.progress.from_ns = placed_ns;
        }
        self.access_ends_at(token, placed_ns);
        AccessOutcome::Pending
    }

    fn prepare_read(&mut self, token: Token, target: &Reth) -> AccessOutcome {
        if !self.permits(target, Access::REMOTE_READ) {
            return AccessOutcome::Denied;
        }
        let at_ns = self.devices.now_ns() + self.devices.placement.read_pause_ns();
        self.access_ends_at(token, at_ns);
        AccessOutcome::Pending
    }

    fn atomic(&mut self, _: Token, target: &AtomicEth) -> AccessOutcome<u64> {
        let word = Reth { addr: target.addr, rkey: target.rkey, len_bytes: 8 };
        let Some(place) = self.admit(&word, 0, 8, Access::REMOTE_ATOMIC) else {
            return AccessOutcome::Denied;
        };
        let bytes = self.fetch(&[place]);
        let old = u64::from_ne_bytes(bytes.try_into().expect("eight bytes were admitted"));
        let new = target.op.apply(old);
        self.devices.note(RecordKind::Atomic, [u64::from(self.qp.num), old, new, 0]);
        self.store(&[place], &new.to_ne_bytes());
        AccessOutcome::Done(old)
    }

    fn sent(&mut self, send: Posted, mut wc: Wc) {
        if wc.status.is_success() && !send.is_signalled {
            return;
        }
        wc.wr_id = send.wr_id;
        let entry = Entry { wc, qp: self.qp.id, released: ReleasedSlots::SendsTo(send.ordinal) };
        self.devices.complete(self.qp.send_cq, entry, false);
    }

    fn received(&mut self, receive: Receive, mut wc: Wc, is_solicited: bool) {
        wc.wr_id = receive.wr_id;
        let released = if self.qp.srq.is_some() { ReleasedSlots::Nothing } else { ReleasedSlots::Receive };
        self.devices.complete(self.qp.recv_cq, Entry { wc, qp: self.qp.id, released }, is_solicited);
    }

    fn flush_receives(&mut self) {
        while let Some(receive) = self.qp.receives.pop() {
            let wc = Wc::ended(0, self.qp.num, WcOpcode::RECV, WcStatus::WR_FLUSH_ERR);
            self.received(receive, wc, false);
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Async(kind) => self.devices.async_event(self.qp.context, kind, self.qp.num),
            Event::State(to) => {
                self.note(RecordKind::State, [to as u64, 0]);
                if matches!(to, QpState::Reset | QpState::Err) {
                    self.void_progress();
                }
                if to == QpState::Reset {
                    self.discard_posted();
                }
            }
            Event::AckTimeout => self.note(RecordKind::Timeout, [0, 0]),
            Event::GoBack(psn) => self.note(RecordKind::GoBack, [psn.number().into(), 0]),
            Event::NotReady => self.note(RecordKind::NotReady, [0, 0]),
            Event::CnpSent => self.note(RecordKind::Congestion, [0, 0]),
            Event::CnpReceived => self.note(RecordKind::Congestion, [1, 0]),
            Event::OutOfSequence(psn) => self.note(RecordKind::Ignore, [psn.number().into(), 1]),
        }
    }

    fn now_ns(&self) -> u64 {
        self.devices.now_ns()
    }

    fn set_timer(&mut self, timer: Timer, after_ns: Option<u64>) {
        let generation = &mut self.qp.progress.timer_generations[timer as usize];
        *generation += 1;
        if let Some(after_ns) = after_ns {
            let event = queue::Event::Timer { qp: self.qp.id, timer, generation: *generation };
            self.devices.at(self.devices.now_ns() + after_ns, event);
        }
    }
}
