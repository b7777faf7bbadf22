//! Handling of packets and timers of a process's port, under its lock.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use farcall_capture::{CaptureSource, Direction};
use farcall_shm::fork::DontForkFd;
use farcall_stats::Block;
use farcall_verbs::{Error, QpAttr, Result, Sge};
use farcall_wire::codec::{UDP_PORT, decode};
use farcall_wire::{Packet, Responded, Timer};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::adapter::PortAdapter;
use super::counters::PortCounters;
use super::crc::{LastCovered, flow};
use super::faults::Faults;
use super::gro_pause::GroPauses;
use super::gso::GsoMode;
use super::mad_queue::{self, MadQueue};
use super::memory;
use super::path::Path;
use super::peer_port::Kind;
use super::poll_responsibility::PollActivity;
use super::qp_context::{RoceQpState, Transport};
use super::rx_queues::{DatagramOutcome, MakeSource, RxQueues};
use super::send_batch::{Route, SendBatch};
use super::send_sockets::SendSockets;
use super::shared_port::SharedPort;
use super::socket::{ReceivedDatagram, RecvBatch, enlarge_receive_buffer};
use super::sources::{Sources, is_truncated};
use super::timers::Timers;
use crate::process::QpnMap;
use crate::process::rendezvous::block_of;
use crate::shm_transport::ShmTransport;

/// Number of packets or responses after which the quantum of a queue pair ends at the next end of a GSO batch.
const PACKETS_PER_QUANTUM: usize = 64;
/// Number after which the quantum ends in any case.
const PACKETS_PER_QUANTUM_MAX: usize = 128;
/// Maximum number of batches that one poll receives.
const BATCHES_PER_POLL: usize = 4;

/// State under the port's lock.
pub(super) struct State {
    shm: Weak<ShmTransport>,
    shared_port: Arc<SharedPort>,
    pub(super) send_sockets: SendSockets,
    pub(super) qps: QpnMap<Box<RoceQpState>>,
    pub(super) rx_queues: RxQueues,
    /// Received datagrams for queue pair 1; `None` until a connection manager requests them.
    pub(super) management: Option<MadQueue>,
    sources: Sources,
    gro_pauses: GroPauses,
    /// `true` if a packet of the current GRO batch was for a queue pair of this process, from an authorized sender.
    is_batch_known: bool,
    recv_batch: RecvBatch,
    covered: LastCovered,
    send_batch: SendBatch,
    timers: Timers,
    /// Queue pairs that have packets to send, or may have.
    active_qps: Vec<u32>,
    /// Buffer for the queue pairs whose quantum is due.
    current_round: Vec<u32>,
    pub(super) timer: DontForkFd,
    /// Time at which the timer expires; `None` if it is not set.
    timer_ns: Option<u64>,
    began: Instant,
    pub(super) now_ns: u64,
    pub(super) poll_activity: PollActivity,
    counters: Block<PortCounters>,
}

/// Runs one quantum of a queue pair: repeats `step` while it returns `true`, up to the limits. Returns whether a limit
/// ended it.
fn run_quantum(adapter: &mut PortAdapter<'_>, mut step: impl FnMut(&mut PortAdapter<'_>) -> bool) -> bool {
    let mut steps = 0;
    while step(adapter) {
        steps += 1;
        let ends_batch = !adapter.send_batch.has_packets_to_send();
        if steps >= PACKETS_PER_QUANTUM_MAX || (steps >= PACKETS_PER_QUANTUM && ends_batch) {
            return true;
        }
    }
    false
}

impl State {
    /// # Errors
    /// Returns an error if the system refuses the socket, if another user holds the port, or if the environment is
    /// malformed.
    pub(super) fn new(
        shm: &Arc<ShmTransport>,
        shared_port: Arc<SharedPort>,
        began: Instant,
        make_source: MakeSource,
    ) -> Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(|e| Error::os("open the RoCEv2 port", "create a timer (check RLIMIT_NOFILE)", e))?;
        enlarge_receive_buffer(shared_port.socket());
        Ok(Self {
            shm: Arc::downgrade(shm),
            send_sockets: SendSockets::new(shared_port.clone())?,
            shared_port,
            qps: QpnMap::default(),
            rx_queues: RxQueues::new(make_source)?,
            management: None,
            sources: Sources::new(shm.core.process.forces_roce()),
            gro_pauses: GroPauses::default(),
            is_batch_known: false,
            recv_batch: RecvBatch::new(),
            covered: LastCovered::default(),
            send_batch: SendBatch::new(Faults::configured()?, shm.recorder.clone()),
            timers: Timers::default(),
            active_qps: Vec::new(),
            current_round: Vec::new(),
            timer: DontForkFd::new(timer),
            timer_ns: None,
            began,
            now_ns: 0,
            poll_activity: PollActivity::default(),
            counters: Block::new("softnic roce port", 0),
        })
    }

    pub(super) fn tick(&mut self) {
        self.now_ns = self.began.elapsed().as_nanos() as u64;
    }

    pub(super) fn counters(&self) -> &PortCounters {
        &self.counters
    }

    /// Queues a packet of a datagram queue pair.
    ///
    /// # Safety
    /// The elements must be readable.
    pub(super) unsafe fn add_datagram(
        &mut self,
        path: Path,
        packet: &Packet,
        sges: &[Sge],
        len_bytes: usize,
    ) {
        let gather = |bytes: &mut Vec<u8>| {
            // SAFETY: by the contract of this function the elements are readable.
            unsafe { memory::gather(bytes, sges, 0, len_bytes as u64) };
            Ok(())
        };
        // `gather` cannot fail here, because the elements were checked.
        let route = Route { path, src_port: UDP_PORT, gso_mode: GsoMode::for_unacknowledged(path) };
        let _added = self.send_batch.add(route, packet, len_bytes, gather);
        if self.send_batch.is_full() {
            self.send_batch.flush(&self.send_sockets, &self.counters, self.now_ns);
        }
    }

    /// Queues a packet with a short payload.
    pub(super) fn add_bytes(&mut self, path: Path, packet: &Packet, payload: &[u8]) {
        let gather = |bytes: &mut Vec<u8>| {
            bytes.extend_from_slice(payload);
            Ok(())
        };
        // `gather` cannot fail here.
        let route = Route { path, src_port: UDP_PORT, gso_mode: GsoMode::Single };
        let _added = self.send_batch.add(route, packet, payload.len(), gather);
    }

    /// Calls `work` with the protocol state of a queue pair.
    pub(super) fn with_qp<T>(
        &mut self,
        qpn: u32,
        work: impl FnOnce(&mut Transport, &mut PortAdapter<'_>) -> T,
    ) -> Option<T> {
        let shm = self.shm.upgrade()?;
        let RoceQpState { transport, context } = &mut **self.qps.get_mut(&qpn)?;
        let mut adapter = PortAdapter {
            context,
            send_batch: &mut self.send_batch,
            timers: &mut self.timers,
            send_sockets: &self.send_sockets,
            regions: &shm.core.process.regions,
            counters: &self.counters,
            now_ns: self.now_ns,
        };
        Some(work(transport, &mut adapter))
    }

    /// Changes a queue pair's state and attributes, which were checked.
    pub(super) fn modify(&mut self, qpn: u32, attr: &QpAttr) {
        self.with_qp(qpn, |transport, adapter| transport.modify(adapter, attr));
        self.progress_qp(qpn);
    }

    /// Called after requests were posted.
    pub(super) fn post_doorbell(&mut self, qpn: u32) {
        if self.with_qp(qpn, |transport, adapter| transport.doorbell(adapter)) == Some(true) {
            self.progress_qp(qpn);
        }
    }

    /// Sends responses and requests of a queue pair, up to its quantum; the rest after the quanta of other queue pairs.
    fn progress_qp(&mut self, qpn: u32) {
        let becomes_active = self.with_qp(qpn, |transport, adapter| {
            let has_responses =
                run_quantum(adapter, |adapter| transport.respond(adapter) != Responded::Nothing);
            let has_packets = run_quantum(adapter, |adapter| transport.transmit(adapter));
            (has_responses || has_packets) && !std::mem::replace(&mut adapter.context.is_active, true)
        });
        if becomes_active == Some(true) {
            self.active_qps.push(qpn);
        }
    }

    /// Runs a quantum of every queue pair that has packets to send.
    fn progress_active_qps(&mut self) {
        std::mem::swap(&mut self.active_qps, &mut self.current_round);
        for at in 0..self.current_round.len() {
            let qpn = self.current_round[at];
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.context.is_active = false;
            }
            self.progress_qp(qpn);
        }
        self.current_round.clear();
    }

    /// Sends the acknowledgements that are held back, and those that wait for another quantum of their queue pair.
    pub(super) fn send_held_acknowledgements(&mut self) {
        self.progress_active_qps();
        self.finish();
    }

    /// Returns whether queue pairs wait for another quantum.
    pub(super) fn has_active_qps(&self) -> bool {
        !self.active_qps.is_empty()
    }

    /// Receives and handles packets, and runs expired timers. [`Self::finish`] sends the resulting packets.
    pub(super) fn poll(&mut self) {
        let Some(shm) = self.shm.upgrade() else { return };
        self.gro_pauses.end_if_due(&self.shared_port, self.now_ns);
        for _ in 0..BATCHES_PER_POLL {
            self.recv_batch.receive(self.shared_port.socket());
            self.record_received();
            for at in 0..self.recv_batch.datagrams.len() {
                let received = self.recv_batch.datagrams[at];
                self.handle_datagram(&shm, &received);
            }
            self.progress_active_qps();
            if !self.recv_batch.has_more {
                break;
            }
            self.send_batch.flush(&self.send_sockets, &self.counters, self.now_ns);
        }
        self.run_expired_timers();
    }

    /// Records received packets if a capture is configured.
    fn record_received(&self) {
        let Some(recorder) = self.send_batch.recorder() else { return };
        let datagrams = &self.recv_batch.datagrams;
        if datagrams.is_empty() {
            return;
        }
        let mut capture = recorder.batch();
        for received in datagrams {
            let path = Path { src: received.src, dst: received.dst };
            let datagram = self.recv_batch.datagram(received);
            capture.datagram(CaptureSource::RoCE, Direction::In, &flow(path, received.src_port), datagram);
        }
    }

    /// Called for a datagram of a GRO batch, after one from a known peer, that no queue pair of this process accepts.
    /// If it is for another process, the batch mixes datagrams for several processes.
    #[cold]
    fn check_gro_batch(&mut self, received: &ReceivedDatagram, dest_qpn: u32) {
        if received.index_in_batch > 0
            && self.shared_port.is_of_other_process(block_of(dest_qpn))
            && self.gro_pauses.begin(&self.shared_port)
        {
            self.counters.trains_for_several.increment();
        }
    }

    /// Handles a datagram of an unauthenticated sender.
    fn handle_datagram(&mut self, shm: &Arc<ShmTransport>, received: &ReceivedDatagram) {
        let datagram = self.recv_batch.datagram(received);
        let path = Path { src: received.src, dst: received.dst };
        if received.index_in_batch > 0 {
            self.counters.received_in_trains.increment();
        } else {
            self.is_batch_known = false;
        }
        if received.is_marked {
            self.counters.packets_marked.increment();
        }
        if is_truncated(path.src, datagram) {
            return self.counters.dropped_local.increment();
        }
        let covered = self.covered.of(path, received.src_port, datagram.len());
        if !covered.is_sound(received.index_in_batch, datagram) {
            return self.counters.dropped_crc.increment();
        }
        let Ok((packet, payload)) = decode(datagram) else {
            return self.counters.dropped_malformed.increment();
        };
        let Some(qp) = self.qps.get_mut(&packet.dest_qpn) else {
            let is_admitted = || self.sources.admits(path.src, received.src_port, self.now_ns);
            if let (mad_queue::QPN, Some(queue)) = (packet.dest_qpn, &mut self.management) {
                if !self.rx_queues.admits(shm, path) {
                    return self.counters.dropped_foreign.increment();
                }
                return queue.enqueue(&self.counters, path, (&packet, payload), is_admitted);
            }
            let of = (path, datagram.len());
            let outcome = self.rx_queues.enqueue(shm, &self.counters, of, (&packet, payload), is_admitted);
            match outcome {
                DatagramOutcome::Queued => self.is_batch_known = true,
                DatagramOutcome::Unknown => {
                    self.counters.dropped_unknown.increment();
                    if self.is_batch_known {
                        self.check_gro_batch(received, packet.dest_qpn);
                    }
                }
                DatagramOutcome::NotAllowed => self.counters.dropped_foreign.increment(),
                DatagramOutcome::Local => self.counters.dropped_local.increment(),
                DatagramOutcome::Unwanted => self.counters.dropped_unwanted.increment(),
            }
            return;
        };
        let RoceQpState { transport, context } = &mut **qp;
        if (context.path.src, context.path.dst) != (path.dst, path.src) {
            context.counters.dropped_foreign.increment();
            return self.counters.dropped_foreign.increment();
        }
        if !self.sources.admits(path.src, received.src_port, self.now_ns) {
            return self.counters.dropped_local.increment();
        }
        let kind = Kind::of(&packet);
        if !context.peer_port.admits(received.src_port, self.now_ns, kind, || transport.fit(&packet)) {
            context.counters.dropped_foreign.increment();
            return self.counters.dropped_foreign.increment();
        }
        self.is_batch_known = true;
        self.counters.packets_received.increment();
        context.counters.packets_received.increment();
        if !std::mem::replace(&mut context.is_active, true) {
            self.active_qps.push(context.qpn);
        }
        let mut adapter = PortAdapter {
            context,
            send_batch: &mut self.send_batch,
            timers: &mut self.timers,
            regions: &shm.core.process.regions,
            send_sockets: &self.send_sockets,
            counters: &self.counters,
            now_ns: self.now_ns,
        };
        transport.arrived(&mut adapter, &packet, payload);
        if received.is_marked {
            adapter.context.counters.packets_marked.increment();
            transport.marked(&mut adapter, &packet);
        }
    }

    fn run_expired_timers(&mut self) {
        while let Some((at_ns, qpn)) = self.timers.pop_expired(self.now_ns) {
            let now_ns = self.now_ns;
            self.with_qp(qpn, |transport, adapter| {
                if !adapter.context.scheduled.take(at_ns) {
                    return;
                }
                for timer in Timer::ALL {
                    let deadline = &mut adapter.context.deadlines[timer as usize];
                    if deadline.is_some_and(|at_ns| at_ns <= now_ns) {
                        *deadline = None;
                        transport.timed_out(adapter, timer);
                    }
                }
                for deadline in adapter.context.deadlines.into_iter().flatten() {
                    adapter.timers.schedule(qpn, &mut adapter.context.scheduled, deadline);
                }
            });
            self.progress_qp(qpn);
        }
    }

    /// Finishes a poll of the application thread. If that thread is responsible for polling, acknowledgements are held
    /// back for the packets that it posts in response, or until its next poll. The service thread bounds their delay.
    pub(super) fn finish_poll(&mut self) {
        if self.poll_activity.app_polls() && self.send_batch.hold_acknowledgements(&self.counters) {
            self.schedule_timer();
        } else {
            self.finish();
        }
    }

    /// Finishes other work of the application thread. Acknowledgements that are held back are sent after the packets
    /// that it posted; while it only posts receives they stay.
    pub(super) fn finish_work(&mut self) {
        if self.send_batch.has_packets_to_send() {
            self.finish();
        } else {
            self.schedule_timer();
        }
    }

    /// Sends waiting packets, and sets the timer to the next expiry.
    pub(super) fn finish(&mut self) {
        self.send_batch.flush(&self.send_sockets, &self.counters, self.now_ns);
        self.schedule_timer();
    }

    fn schedule_timer(&mut self) {
        if let Some(at_ns) = self.timers.next_ns().into_iter().chain(self.send_batch.next_ns()).min() {
            self.arm_timer_at(at_ns);
        }
    }

    /// Wakes the service thread if queue pairs wait for another quantum, unless the application thread is responsible
    /// for polling.
    pub(super) fn wake_service_thread(&mut self) {
        if self.has_active_qps() && !self.poll_activity.app_polls() {
            self.arm_timer_at(self.now_ns);
        }
    }

    /// Called by the service thread: clears the timer if it has expired, and runs expired timers.
    pub(super) fn on_timer(&mut self) {
        if self.timer_ns.is_some_and(|at_ns| at_ns <= self.now_ns) {
            self.timer_ns = None;
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        }
        self.run_expired_timers();
    }

    /// Sets the timer to expire at `at_ns` or earlier.
    pub(super) fn arm_timer_at(&mut self, at_ns: u64) {
        if self.timer_ns.is_some_and(|scheduled| scheduled <= at_ns) {
            return;
        }
        self.timer_ns = Some(at_ns);
        let after = Duration::from_nanos(at_ns.saturating_sub(self.now_ns).max(1));
        let it_value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: after.subsec_nanos().into() };
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Itimerspec { it_interval: none, it_value };
        // The arguments are valid, so the call cannot fail.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time);
    }
}
