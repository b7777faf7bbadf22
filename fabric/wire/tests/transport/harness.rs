//! Two queue pairs, the memory of each, and the link between them.

use std::collections::{BTreeMap, VecDeque};

use farcall_verbs::{Access, AhAttr, Mtu, QpAttr, QpState, QpType, RnrTimer, Wc};
use farcall_wire::{
    AccessDenied, AccessOutcome, Adapter, AtomicEth, AtomicOp, Event, Packet, Payload, PlacementTarget, Qp,
    QpConfig, Responded, Reth, SendRequest, Timer, Token, Work,
};

pub const MEMORY_BYTES: usize = 8192;
pub const RKEY: u32 = 0x77;
pub const QKEY: u32 = 0x1234;
pub const MTU_BYTES: usize = 256;
pub const DELAY_NS: u64 = 1_000;
pub const ALL: Access = Access::all();

/// Memory of an end.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub wr_id: u64,
    pub addr: usize,
    pub len_bytes: usize,
}

/// An access that has not ended.
enum Late {
    Write(usize, Vec<u8>),
    Read,
    Atomic(AtomicEth),
}

/// The memory, queues and timers of an end.
pub struct Device {
    pub memory: Vec<u8>,
    /// The key of the memory: [`RKEY`], until it is revoked.
    pub rkey: Option<u32>,
    pub receives: VecDeque<Piece>,
    pub sent: Vec<Wc>,
    pub received: Vec<Wc>,
    pub events: Vec<Event>,
    pub timers: [Option<u64>; 3],
    /// Whether accesses are pending until [`End::finish`].
    pub is_late: bool,
    late: Vec<(Token, Late)>,
    /// Offset and length of each gather.
    pub gathered: Vec<(u64, u64)>,
    pub atomics: u32,
    pub out: VecDeque<(Packet, Vec<u8>)>,
    pub now_ns: u64,
}

impl Device {
    fn store(&mut self, addr: usize, bytes: &[u8]) {
        self.memory[addr..addr + bytes.len()].copy_from_slice(bytes);
    }

    fn execute(&mut self, target: &AtomicEth) -> u64 {
        let addr = target.addr as usize;
        let old = u64::from_ne_bytes(self.memory[addr..addr + 8].try_into().unwrap());
        self.store(addr, &target.op.apply(old).to_ne_bytes());
        self.atomics += 1;
        old
    }

    pub fn word(&self, addr: usize) -> u64 {
        u64::from_ne_bytes(self.memory[addr..addr + 8].try_into().unwrap())
    }
}

impl Adapter<Piece, Piece> for Device {
    fn transmit(&mut self, packet: Packet, payload: Payload<'_, Piece>) -> Result<(), AccessDenied> {
        let bytes = match payload {
            Payload::None => Vec::new(),
            Payload::Send { send, offset, len_bytes } => {
                self.gathered.push((offset, len_bytes));
                let from = send.addr + offset as usize;
                self.memory.get(from..from + len_bytes as usize).ok_or(AccessDenied)?.to_vec()
            }
            Payload::Region(target) => {
                if self.rkey != Some(target.rkey) {
                    return Err(AccessDenied);
                }
                let from = target.addr as usize;
                self.memory[from..from + target.len_bytes as usize].to_vec()
            }
        };
        self.out.push_back((packet, bytes));
        Ok(())
    }

    fn check(&self, send: &Piece, len_bytes: u64, _: Access) -> bool {
        send.addr + len_bytes as usize <= self.memory.len()
    }

    fn scatter(&mut self, send: &Piece, offset: u64, data: &[u8]) -> Result<(), AccessDenied> {
        self.store(send.addr + offset as usize, data);
        Ok(())
    }

    fn take_receive(&mut self, len_bytes_min: u64) -> Option<(Piece, u64)> {
        let receive = self.receives.pop_front_if(|next| next.len_bytes as u64 >= len_bytes_min)?;
        Some((receive, receive.len_bytes as u64))
    }

    fn permits(&self, target: &Reth, _: Access) -> bool {
        let end = target.addr.checked_add(target.len_bytes.into());
        self.rkey == Some(target.rkey) && end.is_some_and(|end| end <= self.memory.len() as u64)
    }

    fn place(&mut self, token: Token, to: PlacementTarget<'_, Piece>, payload: &[u8]) -> AccessOutcome {
        let addr = match to {
            PlacementTarget::Receive(receive, offset) => receive.addr + offset as usize,
            PlacementTarget::Datagram(receive) => receive.addr + farcall_wire::GRH_BYTES as usize,
            PlacementTarget::Region(target, offset) => (target.addr + offset) as usize,
        };
        if self.is_late {
            self.late.push((token, Late::Write(addr, payload.to_vec())));
            return AccessOutcome::Pending;
        }
        self.store(addr, payload);
        AccessOutcome::Done(())
    }

    fn prepare_read(&mut self, token: Token, target: &Reth) -> AccessOutcome {
        if !self.permits(target, Access::REMOTE_READ) {
            return AccessOutcome::Denied;
        }
        if self.is_late {
            self.late.push((token, Late::Read));
            return AccessOutcome::Pending;
        }
        AccessOutcome::Done(())
    }

    fn atomic(&mut self, token: Token, target: &AtomicEth) -> AccessOutcome<u64> {
        if self.is_late {
            self.late.push((token, Late::Atomic(*target)));
            return AccessOutcome::Pending;
        }
        AccessOutcome::Done(self.execute(target))
    }

    fn sent(&mut self, send: Piece, wc: Wc) {
        self.sent.push(Wc { wr_id: send.wr_id, ..wc });
    }

    fn received(&mut self, receive: Piece, wc: Wc, _: bool) {
        self.received.push(Wc { wr_id: receive.wr_id, ..wc });
    }

    fn flush_receives(&mut self) {
        while let Some(receive) = self.receives.pop_front() {
            let flushed = farcall_verbs::WcStatus::WR_FLUSH_ERR;
            self.received(receive, Wc { status: flushed, ..Wc::default() }, false);
        }
    }

    fn event(&mut self, event: Event) {
        if matches!(event, Event::State(QpState::Err | QpState::Reset)) {
            self.late.clear();
        }
        self.events.push(event);
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn set_timer(&mut self, timer: Timer, after_ns: Option<u64>) {
        self.timers[timer as usize] = after_ns.map(|after_ns| self.now_ns + after_ns);
    }
}

/// One end.
pub struct End {
    pub qp: Qp<Piece, Piece>,
    pub device: Device,
}

impl End {
    pub fn new(transport: QpType, qpn: u32) -> Self {
        let config = QpConfig {
            qpn,
            transport,
            has_srq: false,
            port_mtu: Mtu::Mtu1024,
            message_bytes_max: 1 << 31,
            unacknowledged_min: 8,
            unacknowledged_max: 24,
            read_packets_max: 3,
            rate_control: farcall_wire::dcqcn,
        };
        let device = Device {
            memory: (0..MEMORY_BYTES).map(|at| (at as u32 * 31 + qpn) as u8).collect(),
            rkey: Some(RKEY),
            receives: VecDeque::new(),
            sent: Vec::new(),
            received: Vec::new(),
            events: Vec::new(),
            timers: [None; 3],
            is_late: false,
            late: Vec::new(),
            gathered: Vec::new(),
            atomics: 0,
            out: VecDeque::new(),
            now_ns: 0,
        };
        Self { qp: Qp::new(config), device }
    }

    pub fn modify(&mut self, attr: QpAttr) {
        self.qp.modify(&mut self.device, &attr);
    }

    pub fn post(&mut self, wr_id: u64, work: Work, addr: usize, len_bytes: usize) {
        let request = SendRequest {
            work,
            len_bytes: len_bytes as u64,
            imm_be: None,
            is_solicited: false,
            is_fenced: false,
        };
        self.post_request(request, Piece { wr_id, addr, len_bytes });
    }

    pub fn post_request(&mut self, request: SendRequest, piece: Piece) {
        self.qp.post_send(request, piece);
        self.qp.doorbell(&mut self.device);
    }

    pub fn receive(&mut self, wr_id: u64, addr: usize, len_bytes: usize) {
        self.device.receives.push_back(Piece { wr_id, addr, len_bytes });
    }

    pub fn arrive(&mut self, packet: &Packet, payload: &[u8]) {
        self.qp.arrived(&mut self.device, packet, payload);
    }

    /// Performs all work that is possible now; returns the sent packets.
    pub fn work(&mut self) -> Vec<(Packet, Vec<u8>)> {
        while self.qp.respond(&mut self.device) != Responded::Nothing {}
        while self.qp.transmit(&mut self.device) {}
        self.device.out.drain(..).collect()
    }

    pub fn accesses(&self) -> usize {
        self.device.late.len()
    }

    /// Completes the `at`-th pending access.
    pub fn finish(&mut self, at: usize) -> Token {
        let (token, access) = self.device.late.remove(at);
        let old = match access {
            Late::Write(addr, bytes) => {
                self.device.store(addr, &bytes);
                0
            }
            Late::Read => 0,
            Late::Atomic(target) => self.device.execute(&target),
        };
        self.qp.accessed(token, Ok(old));
        token
    }

    /// Refuses the `at`-th pending access.
    pub fn refuse(&mut self, at: usize) {
        let (token, _) = self.device.late.remove(at);
        self.qp.accessed(token, Err(AccessDenied));
    }

    pub fn sent_ids(&self) -> Vec<u64> {
        self.device.sent.iter().map(|wc| wc.wr_id).collect()
    }
}

/// Treatment of a packet by the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    Lose,
    Double,
    /// Later packets overtake it.
    Delay,
}

/// An arriving packet: the end, the packet, and its payload.
pub type Arrival = (usize, Packet, Vec<u8>);

/// Two ends and their link.
pub struct Pair {
    pub ends: [End; 2],
    pub now_ns: u64,
    /// Sent packets, with their sender.
    pub log: Vec<(usize, Packet, usize)>,
    link: BTreeMap<(u64, usize), Arrival>,
    arrivals: usize,
}

impl Pair {
    /// Creates a queue pair at each end in RTS, whose first packets have these numbers.
    pub fn new(transport: QpType, psn: u32) -> Self {
        let mut ends = [End::new(transport, 10), End::new(transport, 11)];
        for (at, end) in ends.iter_mut().enumerate() {
            let dest_qpn = 11 - at as u32;
            let (rtr, rts) = match transport {
                QpType::Rc => (
                    QpAttr {
                        min_rnr_timer: Some(RnrTimer(1)),
                        ..QpAttr::rtr(dest_qpn, psn, AhAttr::default(), Mtu::Mtu256)
                    },
                    QpAttr { timeout: Some(3), retry_cnt: Some(7), rnr_retry: Some(2), ..QpAttr::rts(psn) },
                ),
                QpType::Uc => (
                    QpAttr::rtr_unreliable(dest_qpn, psn, AhAttr::default(), Mtu::Mtu256),
                    QpAttr::rts_unreliable(psn),
                ),
                _ => (QpAttr::to(QpState::Rtr), QpAttr::rts_unreliable(psn)),
            };
            end.modify(match transport {
                QpType::Ud => QpAttr::init_datagrams(QKEY),
                _ => QpAttr::init(ALL),
            });
            end.modify(rtr);
            end.modify(rts);
        }
        Self { ends, now_ns: 0, log: Vec::new(), link: BTreeMap::new(), arrivals: 0 }
    }

    /// Performs all possible work of both ends, and passes the sent packets to the link.
    pub fn exchange(&mut self, fate: &mut impl FnMut(usize, &Packet) -> Fate) {
        for from in 0..2 {
            for (packet, payload) in self.ends[from].work() {
                let fate = fate(self.log.len(), &packet);
                self.log.push((from, packet, payload.len()));
                let delays: &[u64] = match fate {
                    Fate::Pass => &[DELAY_NS],
                    Fate::Lose => &[],
                    Fate::Double => &[DELAY_NS, 3 * DELAY_NS],
                    Fate::Delay => &[3 * DELAY_NS],
                };
                for delay_ns in delays {
                    self.arrivals += 1;
                    let at = (self.now_ns + delay_ns, self.arrivals);
                    self.link.insert(at, (1 - from, packet, payload.clone()));
                }
            }
        }
    }

    /// Advances the time to the next event; returns false if there is none.
    pub fn step(&mut self) -> bool {
        let timers = (0..2).flat_map(|at| Timer::ALL.map(|timer| (at, timer)));
        let timer = timers
            .filter_map(|(at, timer)| Some((self.ends[at].device.timers[timer as usize]?, at, timer)))
            .min_by_key(|(at_ns, at, _)| (*at_ns, *at));
        let packet_ns = self.link.first_key_value().map(|((at_ns, _), _)| *at_ns);
        match (timer, packet_ns) {
            (None, None) => return false,
            (Some((at_ns, at, timer)), packet_ns) if packet_ns.is_none_or(|packet_ns| at_ns < packet_ns) => {
                self.set_now(at_ns);
                let End { qp, device } = &mut self.ends[at];
                device.timers[timer as usize] = None;
                qp.timed_out(device, timer);
            }
            (_, Some(at_ns)) => {
                self.set_now(at_ns);
                let (_, (at, packet, payload)) = self.link.pop_first().unwrap();
                self.ends[at].arrive(&packet, &payload);
            }
            (Some(_), None) => unreachable!("a timer without packets comes first"),
        }
        true
    }

    fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.ends.iter_mut().for_each(|end| end.device.now_ns = now_ns);
    }

    /// Takes the packets in flight in their order, instead of delivering them.
    pub fn take_link(&mut self) -> Vec<Arrival> {
        std::mem::take(&mut self.link).into_values().collect()
    }

    /// Runs until nothing happens any more.
    pub fn run_with(&mut self, mut fate: impl FnMut(usize, &Packet) -> Fate) {
        for _ in 0..10_000 {
            self.exchange(&mut fate);
            if !self.step() {
                return;
            }
        }
        panic!("no end after 10,000 steps");
    }

    /// Runs until nothing happens any more, over a link without faults.
    pub fn run(&mut self) {
        self.run_with(|_, _| Fate::Pass);
    }
}

pub fn region(addr: usize, len_bytes: usize) -> Reth {
    Reth { addr: addr as u64, rkey: RKEY, len_bytes: len_bytes as u32 }
}

pub fn fetch_add(addr: usize, add: u64) -> Work {
    Work::Atomic(AtomicEth { addr: addr as u64, rkey: RKEY, op: AtomicOp::FetchAdd { add } })
}
