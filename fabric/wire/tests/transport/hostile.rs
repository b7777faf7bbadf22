//! Hostile peers that send arbitrary packets in any state. Nothing panics, and every request ends once.

use farcall_verbs::{QpAttr, QpState, QpType, RnrTimer};
use farcall_wire::{
    Aeth, AtomicEth, AtomicOp, Deth, Nak, Operation, Packet, Psn, Reth, Segment, Syndrome, Timer, Work,
};
use proptest::prelude::*;

use super::harness::*;

fn segment() -> impl Strategy<Value = Segment> {
    prop_oneof![Just(Segment::First), Just(Segment::Middle), Just(Segment::Last), Just(Segment::Only)]
}

fn reth() -> impl Strategy<Value = Reth> {
    let len = prop_oneof![0..2000_u32, any::<u32>()];
    let addr = prop_oneof![0..MEMORY_BYTES as u64, any::<u64>()];
    (addr, prop_oneof![Just(RKEY), any::<u32>()], len).prop_map(|(addr, rkey, len_bytes)| Reth {
        addr,
        rkey,
        len_bytes,
    })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    let naks = [Nak::PsnSequence, Nak::InvalidRequest, Nak::RemoteAccess, Nak::RemoteOperation];
    let syndrome = prop_oneof![
        3 => Just(Syndrome::Ack),
        2 => (0..32_u8).prop_map(|code| Syndrome::Rnr(RnrTimer(code))),
        1 => prop::sample::select(naks.to_vec()).prop_map(Syndrome::Nak),
    ];
    (syndrome, any::<u32>()).prop_map(|(syndrome, msn)| Aeth { syndrome, msn })
}

fn operation() -> impl Strategy<Value = Operation> {
    let imm = || proptest::option::of(any::<u32>());
    let atomic = (reth(), any::<u64>()).prop_map(|(reth, add)| {
        let op = AtomicOp::FetchAdd { add };
        Operation::AtomicRequest(AtomicEth { addr: reth.addr, rkey: reth.rkey, op })
    });
    prop_oneof![
        4 => (segment(), imm()).prop_map(|(segment, imm)| Operation::Send(segment, imm)),
        4 => (segment(), proptest::option::of(reth()), imm())
            .prop_map(|(segment, reth, imm)| Operation::Write(segment, reth, imm)),
        2 => reth().prop_map(Operation::ReadRequest),
        2 => atomic,
        2 => (segment(), proptest::option::of(aeth()))
            .prop_map(|(segment, aeth)| Operation::ReadResponse(segment, aeth)),
        1 => (aeth(), any::<u64>()).prop_map(|(aeth, old)| Operation::AtomicAcknowledge(aeth, old)),
        4 => aeth().prop_map(Operation::Acknowledge),
        1 => Just(Operation::NotOffered(0x17)),
        2 => Just(Operation::CongestionNotification),
        2 => (prop_oneof![Just(QKEY), any::<u32>()], any::<u32>(), imm())
            .prop_map(|(qkey, src_qpn, imm)| Operation::Datagram(Deth { qkey, src_qpn }, imm)),
    ]
}

/// An input of an end.
#[derive(Clone, Debug)]
enum Happening {
    /// A packet: operation, distance of its sequence number from the first, whether it is marked, and payload length.
    Arrive(Operation, i8, bool, usize),
    Post(u8),
    Receive(usize),
    Timeout(Timer),
    Pass(u64),
    Finish(bool),
    Work,
    State(QpState),
}

fn happening() -> impl Strategy<Value = Happening> {
    let lens = prop_oneof![Just(0_usize), Just(MTU_BYTES), 0..400_usize];
    let states = [QpState::Rts, QpState::Sqd, QpState::Err];
    prop_oneof![
        12 => (operation(), -3..12_i8, any::<bool>(), lens)
            .prop_map(|(operation, away, ack_req, len)| Happening::Arrive(operation, away, ack_req, len)),
        3 => (0..5_u8).prop_map(Happening::Post),
        3 => (0..700_usize).prop_map(Happening::Receive),
        2 => prop::sample::select(Timer::ALL.to_vec()).prop_map(Happening::Timeout),
        2 => (0..100_000_u64).prop_map(Happening::Pass),
        3 => any::<bool>().prop_map(Happening::Finish),
        4 => Just(Happening::Work),
        1 => prop::sample::select(states.to_vec()).prop_map(Happening::State),
    ]
}

/// Applies inputs to a single end; returns the numbers of posted sends and receives.
fn suffer(end: &mut End, psn: u32, happenings: &[Happening]) -> (usize, usize) {
    let transport = end.qp.config().transport;
    let (mut sends, mut receives) = (0, 0);
    for happening in happenings {
        match happening {
            Happening::Arrive(operation, away, ack_req, len_bytes) => {
                let psn = Psn::new(psn.wrapping_add_signed((*away).into()));
                let (operation, ack_req) = (*operation, *ack_req);
                let packet = Packet { transport, operation, solicited: false, ack_req, dest_qpn: 10, psn };
                end.arrive(&packet, &vec![0xAB; *len_bytes]);
                end.qp.marked(&mut end.device, &packet);
            }
            Happening::Post(kind) if end.qp.state().accepts_sends() => {
                let work = match (transport, kind) {
                    (QpType::Ud, _) => Work::Datagram { dest_qpn: 1, qkey: QKEY },
                    (QpType::Rc, 0) => Work::Read(region(0, 600)),
                    (QpType::Rc, 1) => fetch_add(0, 1),
                    (_, 2) => Work::Write(region(0, 600)),
                    _ => Work::Send,
                };
                end.post(sends, work, 0, if matches!(work, Work::Atomic(_)) { 8 } else { 600 });
                sends += 1;
            }
            Happening::Receive(len_bytes) if end.qp.state() != QpState::Err => {
                end.receive(receives, 0, *len_bytes);
                receives += 1;
            }
            Happening::Timeout(timer) if end.device.timers[*timer as usize].take().is_some() => {
                end.qp.timed_out(&mut end.device, *timer);
            }
            Happening::Pass(ns) => end.device.now_ns += ns,
            Happening::Finish(is_done) if end.accesses() > 0 => {
                let at = end.accesses() / 2;
                if *is_done {
                    end.finish(at);
                } else {
                    end.refuse(at);
                }
            }
            Happening::Work => drop(end.work()),
            Happening::State(to) if end.qp.state() != QpState::Err && end.qp.state() != QpState::Sqe => {
                end.modify(QpAttr::to(*to));
            }
            _ => {}
        }
    }
    (sends as usize, receives as usize)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_request_ends_once_whatever_the_peer_sends(
        transport in prop::sample::select(vec![QpType::Rc, QpType::Uc, QpType::Ud]),
        psn in prop_oneof![Just(0_u32), Just(0xff_fffe), 0..1_u32 << 24],
        is_late in any::<bool>(),
        happenings in proptest::collection::vec(happening(), 0..80),
    ) {
        let [mut end, _] = Pair::new(transport, psn).ends;
        end.device.is_late = is_late;
        let (sends, receives) = suffer(&mut end, psn, &happenings);
        end.device.out.clear();
        end.qp.enter_error(&mut end.device);
        let ids = |wcs: &[farcall_verbs::Wc]| {
            let mut ids: Vec<_> = wcs.iter().map(|wc| wc.wr_id).collect();
            ids.sort_unstable();
            ids
        };
        prop_assert_eq!(end.sent_ids(), (0..sends as u64).collect::<Vec<_>>(), "in the order of posting");
        prop_assert_eq!(ids(&end.device.received), (0..receives as u64).collect::<Vec<_>>());
        let repeats_why = |packet: &Packet| {
            matches!(packet.operation, Operation::Acknowledge(aeth) if matches!(aeth.syndrome, Syndrome::Nak(_)))
        };
        let said = end.work();
        prop_assert!(said.iter().all(|(packet, _)| repeats_why(packet)), "a queue pair in error only says why: {said:?}");
    }
}
