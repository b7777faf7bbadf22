//! Handling of packets and timers of a process's port, under its lock.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use farcall_capture::{Direction, Way};
use farcall_shm::fork::DontForkFd;
use farcall_stats::Block;
use farcall_verbs::{Error, QpAttr, Result, Sge};
use farcall_wire::codec::decode;
use farcall_wire::{Packet, Responded, Timer};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::batch::Outbox;
use super::company::Company;
use super::counters::PortCounters;
use super::crc::{LastCovered, flow};
use super::datagrams::{Came, Inlets};
use super::faults::Faults;
use super::management::{self, Arrivals};
use super::memory;
use super::nic::Nic;
use super::owner::Owner;
use super::pair::{Pair, Transport};
use super::path::Path;
use super::peer_port::Kind;
use super::slots::Slots;
use super::socket::{Arrival, Inbox, Socket};
use super::sources::{Sources, is_truncated};
use super::timers::Timers;
use super::train_pause::TrainPauses;
use crate::host::Host;
use crate::life::ByNumber;
use crate::life::rendezvous::block_of;

/// Number of packets or responses after which the quantum of a queue pair ends at the next end of a GSO batch.
const PACKETS_A_TURN: usize = 64;
/// Number after which the quantum ends in any case.
const PACKETS_A_TURN_MAX: usize = 128;
/// Maximum number of batches that one poll receives.
const BATCHES_A_LOOK: usize = 4;
/// State under the port's lock.
pub(super) struct State {
    host: Weak<Host>,
    slots: Arc<Slots>,
    pub(super) socket: Socket,
    pub(super) pairs: ByNumber<Box<Pair>>,
    pub(super) inlets: Inlets,
    /// Received datagrams for queue pair 1; `None` until a connection manager requests them.
    pub(super) management: Option<Arrivals>,
    sources: Sources,
    pauses: TrainPauses,
    /// `true` if a packet of the current GRO batch was for a queue pair of this process, from an authorized sender.
    is_train_known: bool,
    inbox: Inbox,
    covered: LastCovered,
    out: Outbox,
    timers: Timers,
    /// Queue pairs that have packets to send, or may have.
    touched: Vec<u32>,
    /// Buffer for the queue pairs whose quantum is due.
    turn: Vec<u32>,
    pub(super) timer: DontForkFd,
    /// Time at which the timer expires; `None` if it is not set.
    timer_ns: Option<u64>,
    began: Instant,
    pub(super) now_ns: u64,
    pub(super) owner: Owner,
    counters: Block<PortCounters>,
}

/// Runs one quantum of a queue pair: repeats `step` while it returns `true`, up to the limits. Returns whether a limit
/// ended it.
fn take_turn(nic: &mut Nic<'_>, mut step: impl FnMut(&mut Nic<'_>) -> bool) -> bool {
    let mut steps = 0;
    while step(nic) {
        steps += 1;
        let ends_a_train = !nic.out.has_more_than_kept();
        if steps >= PACKETS_A_TURN_MAX || (steps >= PACKETS_A_TURN && ends_a_train) {
            return true;
        }
    }
    false
}

impl State {
    /// # Errors
    /// Returns an error if the system refuses the socket, if another user holds the port, or if the environment is
    /// malformed.
    pub(super) fn new(host: &Arc<Host>, slots: Arc<Slots>, began: Instant) -> Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(|e| Error::os("open the RoCEv2 port", "create a timer (check RLIMIT_NOFILE)", e))?;
        Ok(Self {
            host: Arc::downgrade(host),
            socket: Socket::new(slots.clone()),
            slots,
            pairs: ByNumber::default(),
            inlets: Inlets::new()?,
            management: None,
            sources: Sources::new(host.process.forces_roce()),
            pauses: TrainPauses::default(),
            is_train_known: false,
            inbox: Inbox::new(),
            covered: LastCovered::default(),
            out: Outbox::new(Faults::configured()?, host.recorder.clone()),
            timers: Timers::default(),
            touched: Vec::new(),
            turn: Vec::new(),
            timer: DontForkFd::new(timer),
            timer_ns: None,
            began,
            now_ns: 0,
            owner: Owner::default(),
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
        let _added = self.out.add((path, Company::unacknowledged(path)), packet, len_bytes, gather);
        if self.out.is_full() {
            self.out.flush(&self.socket, &self.counters, self.now_ns);
        }
    }

    /// Queues a packet with a short payload.
    pub(super) fn add_bytes(&mut self, path: Path, packet: &Packet, payload: &[u8]) {
        let gather = |bytes: &mut Vec<u8>| {
            bytes.extend_from_slice(payload);
            Ok(())
        };
        // `gather` cannot fail here.
        let _added = self.out.add((path, Company::Alone), packet, payload.len(), gather);
    }

    /// Calls `work` with the protocol state of a queue pair.
    pub(super) fn with_pair<T>(
        &mut self,
        qpn: u32,
        work: impl FnOnce(&mut Transport, &mut Nic<'_>) -> T,
    ) -> Option<T> {
        let host = self.host.upgrade()?;
        let Pair { transport, side } = &mut **self.pairs.get_mut(&qpn)?;
        let mut nic = Nic {
            side,
            out: &mut self.out,
            timers: &mut self.timers,
            socket: &self.socket,
            regions: &host.process.regions,
            counters: &self.counters,
            now_ns: self.now_ns,
        };
        Some(work(transport, &mut nic))
    }

    /// Changes a queue pair's state and attributes, which were checked.
    pub(super) fn modify(&mut self, qpn: u32, attr: &QpAttr) {
        self.with_pair(qpn, |transport, nic| transport.modify(nic, attr));
        self.go_on(qpn);
    }

    /// Called after requests were posted.
    pub(super) fn ring(&mut self, qpn: u32) {
        if self.with_pair(qpn, |transport, nic| transport.ring(nic)) == Some(true) {
            self.go_on(qpn);
        }
    }

    /// Sends responses and requests of a queue pair, up to its quantum; the rest after the quanta of other queue pairs.
    fn go_on(&mut self, qpn: u32) {
        let touches_it = self.with_pair(qpn, |transport, nic| {
            let answers_wait = take_turn(nic, |nic| transport.respond(nic) != Responded::Nothing);
            let packets_wait = take_turn(nic, |nic| transport.transmit(nic));
            (answers_wait || packets_wait) && !std::mem::replace(&mut nic.side.is_touched, true)
        });
        if touches_it == Some(true) {
            self.touched.push(qpn);
        }
    }

    /// Runs a quantum of every queue pair that has packets to send.
    fn go_on_in_turn(&mut self) {
        std::mem::swap(&mut self.touched, &mut self.turn);
        for at in 0..self.turn.len() {
            let qpn = self.turn[at];
            if let Some(pair) = self.pairs.get_mut(&qpn) {
                pair.side.is_touched = false;
            }
            self.go_on(qpn);
        }
        self.turn.clear();
    }

    /// Sends the acknowledgements that are held back, and those that wait for another quantum of their queue pair.
    pub(super) fn settle_debts(&mut self) {
        self.go_on_in_turn();
        self.finish();
    }

    /// Returns whether queue pairs wait for another quantum.
    pub(super) fn has_turns_left(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Receives and handles packets, and runs expired timers. [`Self::finish`] sends the resulting packets.
    pub(super) fn look(&mut self) {
        let Some(host) = self.host.upgrade() else { return };
        self.pauses.end_if_due(&self.slots, self.now_ns);
        for _ in 0..BATCHES_A_LOOK {
            self.socket.receive(&mut self.inbox);
            self.record_arrivals();
            for at in 0..self.inbox.arrivals.len() {
                let arrival = self.inbox.arrivals[at];
                self.take_in(&host, &arrival);
            }
            self.go_on_in_turn();
            if !self.inbox.has_more {
                break;
            }
            self.out.flush(&self.socket, &self.counters, self.now_ns);
        }
        self.do_what_is_due();
    }

    /// Records received packets if a capture is configured.
    fn record_arrivals(&self) {
        let Some(recorder) = self.out.recorder() else { return };
        let arrivals = &self.inbox.arrivals;
        if arrivals.is_empty() {
            return;
        }
        let mut batch = recorder.batch();
        for arrival in arrivals {
            let path = Path { src: arrival.src, dst: arrival.dst };
            let datagram = self.inbox.datagram(arrival);
            batch.datagram(Way::Net, Direction::In, &flow(path, arrival.src_port), datagram);
        }
    }

    /// Called for a datagram of a GRO batch, after one from a known peer, that no queue pair of this process accepts.
    /// If it is for another process, the batch mixes datagrams for several processes.
    #[cold]
    fn look_at_train(&mut self, arrival: &Arrival, dest_qpn: u32) {
        if arrival.before > 0 && self.slots.is_anothers(block_of(dest_qpn)) && self.pauses.begin(&self.slots)
        {
            self.counters.trains_for_several.increment();
        }
    }

    /// Handles a datagram of an unauthenticated sender.
    fn take_in(&mut self, host: &Arc<Host>, arrival: &Arrival) {
        let datagram = self.inbox.datagram(arrival);
        let path = Path { src: arrival.src, dst: arrival.dst };
        if arrival.before > 0 {
            self.counters.received_in_trains.increment();
        } else {
            self.is_train_known = false;
        }
        if arrival.is_marked {
            self.counters.packets_marked.increment();
        }
        if is_truncated(path.src, datagram) {
            return self.counters.dropped_local.increment();
        }
        let covered = self.covered.of(path, arrival.src_port, datagram.len());
        if !covered.is_sound(arrival.before, datagram) {
            return self.counters.dropped_crc.increment();
        }
        let Ok((packet, payload)) = decode(datagram) else {
            return self.counters.dropped_malformed.increment();
        };
        let Some(pair) = self.pairs.get_mut(&packet.dest_qpn) else {
            let is_admitted = || self.sources.admits(path.src, arrival.src_port, self.now_ns);
            if let (management::QPN, Some(arrivals)) = (packet.dest_qpn, &mut self.management) {
                if !self.inlets.admits(host, path) {
                    return self.counters.dropped_foreign.increment();
                }
                return arrivals.take_in(&self.counters, path, (&packet, payload), is_admitted);
            }
            let of = (path, datagram.len());
            let came = self.inlets.take_in(host, &self.counters, of, (&packet, payload), is_admitted);
            match came {
                Came::Taken => self.is_train_known = true,
                Came::Unknown => {
                    self.counters.dropped_unknown.increment();
                    if self.is_train_known {
                        self.look_at_train(arrival, packet.dest_qpn);
                    }
                }
                Came::Foreign => self.counters.dropped_foreign.increment(),
                Came::Local => self.counters.dropped_local.increment(),
                Came::Unwanted => self.counters.dropped_unwanted.increment(),
            }
            return;
        };
        let Pair { transport, side } = &mut **pair;
        if (side.path.src, side.path.dst) != (path.dst, path.src) {
            side.counters.dropped_foreign.increment();
            return self.counters.dropped_foreign.increment();
        }
        if !self.sources.admits(path.src, arrival.src_port, self.now_ns) {
            return self.counters.dropped_local.increment();
        }
        let kind = Kind::of(&packet);
        if !side.peer_port.admits(arrival.src_port, self.now_ns, kind, || transport.fit(&packet)) {
            side.counters.dropped_foreign.increment();
            return self.counters.dropped_foreign.increment();
        }
        self.is_train_known = true;
        self.counters.packets_received.increment();
        side.counters.packets_received.increment();
        if !std::mem::replace(&mut side.is_touched, true) {
            self.touched.push(side.qpn);
        }
        let mut nic = Nic {
            side,
            out: &mut self.out,
            timers: &mut self.timers,
            regions: &host.process.regions,
            socket: &self.socket,
            counters: &self.counters,
            now_ns: self.now_ns,
        };
        transport.arrived(&mut nic, &packet, payload);
        if arrival.is_marked {
            nic.side.counters.packets_marked.increment();
            transport.marked(&mut nic, &packet);
        }
    }

    fn do_what_is_due(&mut self) {
        while let Some((at_ns, qpn)) = self.timers.take_due(self.now_ns) {
            let now_ns = self.now_ns;
            self.with_pair(qpn, |transport, nic| {
                if !nic.side.planned.came(at_ns) {
                    return;
                }
                for timer in Timer::ALL {
                    let deadline = &mut nic.side.deadlines[timer as usize];
                    if deadline.is_some_and(|at_ns| at_ns <= now_ns) {
                        *deadline = None;
                        transport.timed_out(nic, timer);
                    }
                }
                for deadline in nic.side.deadlines.into_iter().flatten() {
                    nic.timers.plan(qpn, &mut nic.side.planned, deadline);
                }
            });
            self.go_on(qpn);
        }
    }

    /// Finishes a poll of the application thread. If that thread is responsible for polling, acknowledgements are held
    /// back for the packets that it posts in response, or until its next poll. The service thread bounds their delay.
    pub(super) fn finish_look(&mut self) {
        if self.owner.is_trusted() && self.out.keep_acknowledgements(&self.counters) {
            self.plan_timer();
        } else {
            self.finish();
        }
    }

    /// Finishes other work of the application thread. Acknowledgements that are held back are sent after the packets
    /// that it posted; while it only posts receives they stay.
    pub(super) fn finish_work(&mut self) {
        if self.out.has_more_than_kept() {
            self.finish();
        } else {
            self.plan_timer();
        }
    }

    /// Sends waiting packets, and sets the timer to the next expiry.
    pub(super) fn finish(&mut self) {
        self.out.flush(&self.socket, &self.counters, self.now_ns);
        self.plan_timer();
    }

    fn plan_timer(&mut self) {
        if let Some(at_ns) = self.timers.next_ns().into_iter().chain(self.out.next_ns()).min() {
            self.ring_at(at_ns);
        }
    }

    /// Wakes the service thread if queue pairs wait for another quantum, unless the application thread is responsible
    /// for polling.
    pub(super) fn call_service(&mut self) {
        if self.has_turns_left() && !self.owner.is_trusted() {
            self.ring_at(self.now_ns);
        }
    }

    /// Called by the service thread: clears the timer if it has expired, and runs expired timers.
    pub(super) fn ring_came(&mut self) {
        if self.timer_ns.is_some_and(|at_ns| at_ns <= self.now_ns) {
            self.timer_ns = None;
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        }
        self.do_what_is_due();
    }

    /// Sets the timer to expire at `at_ns` or earlier.
    pub(super) fn ring_at(&mut self, at_ns: u64) {
        if self.timer_ns.is_some_and(|planned| planned <= at_ns) {
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
