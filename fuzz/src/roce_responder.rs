//! Packets of a malicious peer to a connected queue pair, in any order: no panic, no access outside the memory of the
//! key, one completion for each receive and each send, a bounded response to every packet, and a bounded rate of
//! congestion notifications.

use farcall_verbs::{Access, AhAttr, Mtu, QpAttr, QpType, RnrTimer, Wc, WcOpcode};
use farcall_wire::codec::decode;
use farcall_wire::{
    AccessDenied, AccessOutcome, Adapter, AtomicEth, Event, Operation, Packet, Payload, PlacementTarget, Psn,
    Qp, QpConfig, Responded, Reth, SendRequest, Timer, Token, Work, dcqcn,
};

const MEMORY_BYTES: usize = 4096;
/// Range of memory that the key permits to access; the rest must never change.
const OPEN: std::ops::Range<u64> = 1024..3072;
const RKEY: u32 = 0x101;
const RECEIVE_BYTES: u64 = 600;
const QPN: u32 = 211;
const SENDS: usize = 3;
/// Interval between two packets, and minimum interval between two congestion notifications.
const GAP_NS: u64 = 5_000;
const NOTIFICATION_NS: u64 = 50_000;
/// Maximum number of packets sent in response to one packet: those of a READ of the complete range, and an
/// acknowledgement.
const ANSWERS_MAX: usize = (OPEN.end - OPEN.start) as usize / 256 + 1;

/// Device of the queue pair: memory, receives and counters.
struct Device {
    memory: Vec<u8>,
    receives: Vec<u32>,
    received: usize,
    sent: usize,
    packets: usize,
    notifications: u64,
    now_ns: u64,
}

impl Device {
    fn is_open(target: &Reth) -> bool {
        let end = target.addr.checked_add(u64::from(target.len_bytes));
        target.rkey == RKEY && target.addr >= OPEN.start && end.is_some_and(|end| end <= OPEN.end)
    }
}

impl Adapter<usize, u32> for Device {
    fn transmit(&mut self, packet: Packet, payload: Payload<'_, usize>) -> Result<(), AccessDenied> {
        if let Payload::Region(from) = payload {
            assert!(from.len_bytes <= 256);
            if !Self::is_open(&from) {
                return Err(AccessDenied);
            }
        }
        self.packets += usize::from(packet.operation.is_response());
        self.notifications += u64::from(packet.operation == Operation::CongestionNotification);
        Ok(())
    }

    fn check(&self, _: &usize, _: u64, _: Access) -> bool {
        true
    }

    fn scatter(&mut self, _: &usize, offset: u64, data: &[u8]) -> Result<(), AccessDenied> {
        assert!(offset + data.len() as u64 <= 800, "more than was asked for");
        Ok(())
    }

    fn take_receive(&mut self, len_bytes_min: u64) -> Option<(u32, u64)> {
        if len_bytes_min > RECEIVE_BYTES { None } else { self.receives.pop().map(|id| (id, RECEIVE_BYTES)) }
    }

    fn permits(&self, target: &Reth, _: Access) -> bool {
        Self::is_open(target)
    }

    fn place(&mut self, _: Token, to: PlacementTarget<'_, u32>, payload: &[u8]) -> AccessOutcome {
        match to {
            PlacementTarget::Receive(_, offset) => assert!(offset + payload.len() as u64 <= RECEIVE_BYTES),
            PlacementTarget::Datagram(_) => unreachable!("the pair is connected"),
            PlacementTarget::Region(target, offset) => {
                let addr = target.addr.wrapping_add(offset);
                if !Self::is_open(&Reth { addr, len_bytes: payload.len() as u32, ..target }) {
                    return AccessOutcome::Denied;
                }
                self.memory[addr as usize..][..payload.len()].copy_from_slice(payload);
            }
        }
        AccessOutcome::Done(())
    }

    fn prepare_read(&mut self, _: Token, target: &Reth) -> AccessOutcome {
        if Self::is_open(target) { AccessOutcome::Done(()) } else { AccessOutcome::Denied }
    }

    fn atomic(&mut self, _: Token, target: &AtomicEth) -> AccessOutcome<u64> {
        assert!(Self::is_open(&Reth { addr: target.addr, rkey: target.rkey, len_bytes: 8 }));
        assert_eq!(target.addr % 8, 0);
        AccessOutcome::Done(0)
    }

    fn sent(&mut self, _: usize, _: Wc) {
        self.sent += 1;
    }

    fn received(&mut self, _: u32, wc: Wc, _: bool) {
        assert!(wc.opcode != WcOpcode::RECV || u64::from(wc.byte_len) <= RECEIVE_BYTES);
        self.received += 1;
    }

    fn flush_receives(&mut self) {
        self.received += std::mem::take(&mut self.receives).len();
    }

    fn event(&mut self, _: Event) {}

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn set_timer(&mut self, _: Timer, _: Option<u64>) {}
}

fn connected(device: &mut Device, transport: QpType) -> Qp<usize, u32> {
    let mut qp = Qp::new(QpConfig {
        qpn: QPN,
        transport,
        has_srq: false,
        port_mtu: Mtu::Mtu256,
        message_bytes_max: 1 << 20,
        unacknowledged_min: 8,
        unacknowledged_max: 32,
        read_packets_max: 2,
        rate_control: dcqcn,
    });
    let (rtr, rts) = if transport == QpType::Rc {
        let rtr = QpAttr::rtr(7, 100, AhAttr::default(), Mtu::Mtu256);
        (QpAttr { min_rnr_timer: Some(RnrTimer(1)), ..rtr }, QpAttr::rts(100))
    } else {
        let rtr = QpAttr::rtr_unreliable(7, 100, AhAttr::default(), Mtu::Mtu256);
        (rtr, QpAttr::rts_unreliable(100))
    };
    for attr in [QpAttr::init(Access::all()), rtr, rts] {
        qp.modify(device, &attr);
    }
    qp
}

/// Runs one input: the first byte selects the transport; packets follow, each preceded by its length.
pub fn run(input: &[u8]) {
    let Some((&kind, mut rest)) = input.split_first() else { return };
    let mut device = Device {
        memory: vec![0xA5; MEMORY_BYTES],
        receives: vec![2, 1, 0],
        received: 0,
        sent: 0,
        packets: 0,
        notifications: 0,
        now_ns: 0,
    };
    let transport = if kind & 1 == 0 { QpType::Rc } else { QpType::Uc };
    let mut qp = connected(&mut device, transport);
    let region = Reth { addr: OPEN.start, rkey: RKEY, len_bytes: 800 };
    for at in 0..SENDS {
        let work = if at == 1 && transport == QpType::Rc { Work::Read(region) } else { Work::Write(region) };
        let request =
            SendRequest { work, len_bytes: 800, imm_be: None, is_solicited: false, is_fenced: false };
        qp.post_send(request, at);
    }
    qp.doorbell(&mut device);
    while qp.transmit(&mut device) {}
    while let Some((len, packet)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_le_bytes(*len));
        let (datagram, after) = packet.split_at(packet.len().min(len));
        rest = after;
        let Ok((packet, payload)) = decode(datagram) else { continue };
        // A random sequence number is rarely in a window, so small ones are counted from its beginning.
        let number = packet.psn.number();
        let psn = if kind & 2 == 0 { Psn::new(100 + number % 16) } else { packet.psn };
        device.packets = 0;
        let packet = Packet { psn, ..packet };
        device.now_ns += GAP_NS;
        qp.arrived(&mut device, &packet, payload);
        qp.marked(&mut device, &packet);
        while qp.respond(&mut device) != Responded::Nothing {}
        while qp.transmit(&mut device) {}
        assert!(device.packets <= ANSWERS_MAX, "{} answers to one packet", device.packets);
        assert!(
            device.notifications <= device.now_ns / NOTIFICATION_NS + 1,
            "{} notifications",
            device.notifications
        );
        if kind & 4 != 0 {
            Timer::ALL.into_iter().for_each(|timer| qp.timed_out(&mut device, timer));
        }
    }
    assert!(device.memory[..OPEN.start as usize].iter().all(|byte| *byte == 0xA5), "before the region");
    assert!(device.memory[OPEN.end as usize..].iter().all(|byte| *byte == 0xA5), "behind the region");
    qp.enter_error(&mut device);
    assert_eq!((device.sent, device.received), (SENDS, 3), "each ends once");
}
