//! Reliable connections.

use farcall_verbs::{AsyncEventKind, QpAttr, QpState, QpType, RnrTimer, WcStatus};
use farcall_wire::{
    Aeth, Event, Nak, Operation, Packet, Psn, Reth, Segment, SendRequest, Syndrome, Timer, Work,
};
use proptest::prelude::*;

use super::harness::*;

/// Posts one request of each operation at the first end; all lengths but one take several packets.
fn post_all(pair: &mut Pair) {
    let [a, b] = &mut pair.ends;
    b.receive(100, 4096, 1024);
    b.receive(101, 5120, 1024);
    a.post(1, Work::Send, 0, 600);
    a.post(2, Work::Write(region(2000, 700)), 1000, 700);
    a.post(3, Work::Read(region(3000, 800)), 6000, 800);
    a.post(4, fetch_add(64, 5), 7000, 8);
    a.post(5, Work::Send, 100, 10);
}

/// Checks that every posted request took effect, once and in order.
fn check_all(pair: &Pair, added_to: u64) {
    let [a, b] = &pair.ends;
    assert_eq!(a.sent_ids(), [1, 2, 3, 4, 5]);
    assert!(a.device.sent.iter().all(|wc| wc.status.is_success()), "{:?}", a.device.sent);
    let received: Vec<_> = b.device.received.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(received, [(100, 600), (101, 10)]);
    let (mine, theirs) = (&a.device.memory, &b.device.memory);
    assert_eq!(theirs[4096..4696], mine[..600]);
    assert_eq!(theirs[5120..5130], mine[100..110]);
    assert_eq!(theirs[2000..2700], mine[1000..1700]);
    assert_eq!(mine[6000..6800], theirs[3000..3800]);
    assert_eq!((a.device.word(7000), b.device.word(64)), (added_to, added_to + 5));
    assert_eq!(b.device.atomics, 1, "executed once");
}

fn run_all(psn: u32, fate: impl FnMut(usize, &farcall_wire::Packet) -> Fate) -> usize {
    let mut pair = Pair::new(QpType::Rc, psn);
    post_all(&mut pair);
    let added_to = pair.ends[1].device.word(64);
    pair.run_with(fate);
    check_all(&pair, added_to);
    pair.log.len()
}

#[test]
fn every_packet_may_be_lost_doubled_or_overtaken_once() {
    // The second start wraps around in the first message.
    for psn in [0, 0xff_fffe] {
        let packets = run_all(psn, |_, _| Fate::Pass);
        for fate in [Fate::Lose, Fate::Double, Fate::Delay] {
            for chosen in 0..packets {
                run_all(psn, |at, _| if at == chosen { fate } else { Fate::Pass });
            }
        }
    }
}

proptest! {
    #[test]
    fn recovers_from_a_bad_link(
        start in 0..1_u32 << 24,
        harm in proptest::collection::btree_map(
            0..60_usize,
            prop::sample::select(vec![Fate::Lose, Fate::Double, Fate::Delay]),
            0..5,
        ),
    ) {
        run_all(start, |at, _| harm.get(&at).copied().unwrap_or(Fate::Pass));
    }
}

#[test]
fn messages_are_cut_at_the_mtu() {
    use Segment::{First, Last, Middle, Only};
    let cases: [(usize, &[(Segment, usize)]); 6] = [
        (0, &[(Only, 0)]),
        (1, &[(Only, 1)]),
        (256, &[(Only, 256)]),
        (257, &[(First, 256), (Last, 1)]),
        (512, &[(First, 256), (Last, 256)]),
        (600, &[(First, 256), (Middle, 256), (Last, 88)]),
    ];
    for (len_bytes, expected) in cases {
        let mut pair = Pair::new(QpType::Rc, 0xff_ffff);
        pair.ends[1].receive(1, 0, 1024);
        pair.ends[0].post(1, Work::Send, 0, len_bytes);
        let packets = pair.ends[0].work();
        let segments: Vec<_> = packets
            .iter()
            .map(|(packet, payload)| match packet.operation {
                Operation::Send(segment, None) => (segment, payload.len()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(segments, expected);
        let (last, _) = packets.last().unwrap();
        assert!(last.ack_req && last.psn == Psn::new(0xff_ffff).plus(expected.len() as u32 - 1));
        assert_eq!(pair.ends[0].device.gathered.len(), expected.len());
    }
}

#[test]
fn going_back_gathers_again() {
    let mut pair = Pair::new(QpType::Rc, 7);
    pair.ends[1].receive(1, 4096, 1024);
    pair.ends[0].post(1, Work::Send, 0, 768);
    // The second packet is lost; before its retransmission, its bytes change.
    pair.exchange(&mut |at, _| if at == 1 { Fate::Lose } else { Fate::Pass });
    pair.ends[0].device.memory[256..768].fill(0xEE);
    pair.run();
    assert_eq!(pair.ends[0].device.gathered, [(0, 256), (256, 256), (512, 256), (256, 256), (512, 256)]);
    assert!(pair.ends[0].device.events.contains(&Event::GoBack(Psn::new(8))));
    assert!(pair.ends[1].device.memory[4352..4864].iter().all(|byte| *byte == 0xEE));
    let naks = pair.log.iter().filter(|(_, packet, _)| {
        matches!(packet.operation, Operation::Acknowledge(aeth) if aeth.syndrome == Syndrome::Nak(Nak::PsnSequence))
    });
    assert_eq!(naks.count(), 1, "a gap is reported once");
}

#[test]
fn no_more_than_the_window_is_unacknowledged() {
    let mut pair = Pair::new(QpType::Rc, 0);
    pair.ends[1].receive(1, 0, 8192);
    pair.ends[0].post(1, Work::Send, 0, 4096);
    assert_eq!(pair.ends[0].work().len(), 8);
    assert!(pair.ends[0].work().is_empty());
}

#[test]
fn fails_after_the_retries_of_a_silent_peer() {
    let mut pair = Pair::new(QpType::Rc, 0);
    pair.ends[0].post(1, Work::Write(region(0, 8)), 0, 8);
    pair.ends[0].post(2, Work::Write(region(0, 8)), 0, 8);
    pair.run_with(|_, _| Fate::Lose);
    let statuses: Vec<_> = pair.ends[0].device.sent.iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR]);
    // The first timeout and seven retries, each of 4.096 µs times 2 to the third power.
    assert_eq!(pair.now_ns, 8 * (4_096 << 3));
    assert_eq!(pair.ends[0].qp.state(), QpState::Err);
    pair.ends[0].post(3, Work::Send, 0, 8);
    assert_eq!(pair.ends[0].device.sent[2].status, WcStatus::WR_FLUSH_ERR, "posted in the error state");
}

#[test]
fn without_a_timeout_nothing_is_repeated() {
    let mut pair = Pair::new(QpType::Rc, 0);
    pair.ends[0].modify(QpAttr { timeout: Some(0), ..QpAttr::to(QpState::Rts) });
    pair.ends[0].post(1, Work::Write(region(0, 8)), 0, 8);
    pair.run_with(|_, _| Fate::Lose);
    assert_eq!((pair.log.len(), pair.now_ns), (1, 0));
}

#[test]
fn a_peer_without_a_receive_is_waited_for() {
    let mut pair = Pair::new(QpType::Rc, 0xff_ffff);
    pair.ends[0].post(1, Work::Send, 0, 300);
    pair.exchange(&mut |_, _| Fate::Pass);
    while !pair.ends[0].device.events.contains(&Event::NotReady) {
        assert!(pair.step());
        pair.exchange(&mut |_, _| Fate::Pass);
    }
    let told_ns = pair.now_ns;
    // Code 1 of the peer's timer is 10 µs.
    assert_eq!(pair.ends[0].device.timers, [None, Some(told_ns + 10_000), None]);
    pair.ends[1].receive(9, 4096, 512);
    pair.run();
    assert_eq!(pair.ends[1].device.received[0].byte_len, 300);
    assert!(pair.ends[0].device.sent[0].status.is_success());
}

#[test]
fn completes_a_local_failure_in_order() {
    let mut pair = Pair::new(QpType::Rc, 0);
    pair.ends[0].post(1, Work::Write(region(0, 300)), 0, 300);
    pair.ends[0].post(2, Work::Send, MEMORY_BYTES - 4, 8);
    pair.ends[0].post(3, Work::Send, 0, 8);
    pair.run();
    let ended: Vec<_> = pair.ends[0].device.sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let flushed = (3, WcStatus::WR_FLUSH_ERR);
    assert_eq!(ended, [(1, WcStatus::SUCCESS), (2, WcStatus::LOC_PROT_ERR), flushed]);
}

#[test]
fn reads_wait_for_their_depth_and_fenced_requests_for_reads() {
    let mut pair = Pair::new(QpType::Rc, 0);
    pair.ends[0].modify(QpAttr { max_rd_atomic: Some(1), ..QpAttr::to(QpState::Rts) });
    pair.ends[0].post(1, Work::Read(region(0, 8)), 6000, 8);
    pair.ends[0].post(2, Work::Read(region(8, 8)), 6008, 8);
    assert_eq!(pair.ends[0].work().len(), 1, "one READ at a time");

    let mut pair = Pair::new(QpType::Rc, 0);
    pair.ends[0].post(1, Work::Read(region(0, 8)), 6000, 8);
    let write = SendRequest {
        work: Work::Write(region(100, 8)),
        len_bytes: 8,
        imm_be: None,
        is_solicited: false,
        is_fenced: true,
    };
    pair.ends[0].post_request(write, Piece { wr_id: 2, addr: 6000, len_bytes: 8 });
    pair.run();
    assert_eq!(
        pair.ends[1].device.memory[100..108],
        pair.ends[1].device.memory[..8],
        "what the READ brought"
    );
}

#[test]
fn a_queue_that_drains_ends_what_has_begun_and_begins_nothing() {
    let mut pair = Pair::new(QpType::Rc, 0);
    let drained = Event::Async(AsyncEventKind::SqDrained);
    pair.ends[0].post(1, Work::Write(region(0, 600)), 0, 600);
    pair.exchange(&mut |_, _| Fate::Pass);
    pair.ends[0].post(2, Work::Write(region(0, 8)), 0, 8);
    pair.ends[0].modify(QpAttr { en_sqd_async_notify: Some(true), ..QpAttr::to(QpState::Sqd) });
    assert!(!pair.ends[0].device.events.contains(&drained));
    pair.run();
    assert_eq!(pair.ends[0].sent_ids(), [1]);
    assert_eq!(pair.ends[0].device.events.iter().filter(|event| **event == drained).count(), 1);
    pair.ends[0].modify(QpAttr::to(QpState::Rts));
    pair.run();
    assert_eq!(pair.ends[0].sent_ids(), [1, 2]);
}

#[test]
fn acknowledgements_count_messages() {
    let mut pair = Pair::new(QpType::Rc, 0);
    post_all(&mut pair);
    pair.run();
    let last = pair.log.iter().rev().find_map(|(_, packet, _)| match packet.operation {
        Operation::Acknowledge(aeth) => Some(aeth),
        _ => None,
    });
    let last = last.expect("the last SEND is acknowledged");
    // The READ is two requests on the wire.
    assert_eq!((last.syndrome, last.msn), (Syndrome::Ack, 6));
}

#[test]
fn a_long_read_asks_for_one_part_after_another() {
    let mut pair = Pair::new(QpType::Rc, 0xff_fffe);
    pair.ends[0].post(1, Work::Read(region(3000, 800)), 6000, 800);
    pair.ends[0].post(2, Work::Write(region(0, 1)), 0, 1);
    pair.run_with(|_, _| Fate::Pass);
    let requests: Vec<_> =
        pair.log.iter().filter(|(from, ..)| *from == 0).map(|(_, packet, _)| packet).collect();
    let asked: Vec<_> = requests
        .iter()
        .filter_map(|packet| match packet.operation {
            Operation::ReadRequest(reth) => Some((packet.psn.number(), reth.addr, reth.len_bytes)),
            _ => None,
        })
        .collect();
    assert_eq!(asked, [(0xff_fffe, 3000, 768), (1, 3768, 32)]);
    assert_eq!(
        requests.last().map(|packet| packet.psn),
        Some(Psn::new(2)),
        "the WRITE goes behind all of it"
    );
    assert_eq!(pair.ends[0].sent_ids(), [1, 2]);
}

#[test]
fn limits_outstanding_read_parts_by_window_and_peer() {
    // A part is three of the thirty packets; eight may be in flight at first, and more while none are lost.
    for (depth, at_first, at_most) in [(1, 1, 1), (2, 2, 2), (16, 2, 4)] {
        let mut pair = Pair::new(QpType::Rc, 7);
        pair.ends[0].modify(QpAttr { max_rd_atomic: Some(depth), ..QpAttr::to(QpState::Rts) });
        pair.ends[0].post(1, Work::Read(region(0, 7_680)), 0, 7_680);
        let mut asked = pair.ends[0].work();
        assert_eq!(asked.len(), at_first, "depth {depth}");
        let mut most = 0;
        while !asked.is_empty() {
            most = most.max(asked.len());
            for (packet, payload) in std::mem::take(&mut asked) {
                pair.ends[1].arrive(&packet, &payload);
            }
            for (packet, payload) in pair.ends[1].work() {
                if depth == 1 {
                    assert!(pair.ends[0].work().is_empty(), "its part has not come");
                }
                pair.ends[0].arrive(&packet, &payload);
            }
            asked = pair.ends[0].work();
        }
        assert_eq!((most, pair.ends[0].sent_ids()), (at_most, vec![1]), "depth {depth}");
    }
}

#[test]
fn acknowledges_a_burst_once() {
    let mut pair = Pair::new(QpType::Rc, 7);
    for id in 0..3 {
        pair.ends[0].post(id, Work::Write(region(0, 1)), 0, 1);
    }
    for (packet, payload) in pair.ends[0].work() {
        pair.ends[1].arrive(&packet, &payload);
    }
    let responses = pair.ends[1].work();
    assert_eq!(responses.iter().map(|(packet, _)| packet.psn.number()).collect::<Vec<_>>(), [9]);
    pair.ends[0].arrive(&responses[0].0, &[]);
    assert_eq!(pair.ends[0].sent_ids(), [0, 1, 2]);
}

#[test]
fn repeats_a_nak_that_was_lost() {
    let mut pair = Pair::new(QpType::Rc, 7);
    pair.ends[0].post(1, Work::Write(Reth { rkey: RKEY + 1, ..region(0, 1) }), 0, 1);
    let mut has_lost = false;
    pair.run_with(|_, packet| {
        let is_first_refusal = packet.operation.is_response()
            && !std::mem::replace(&mut has_lost, packet.operation.is_response());
        if is_first_refusal { Fate::Lose } else { Fate::Pass }
    });
    let ended: Vec<_> = pair.ends[0].device.sent.iter().map(|wc| wc.status).collect();
    assert_eq!(ended, [WcStatus::REM_ACCESS_ERR]);
    assert_eq!(pair.ends[1].qp.state(), QpState::Err);
}

/// A READ whose response is lost, after which its region is deregistered: the repeated request is refused, late if
/// `late`.
fn read_again_of_what_is_gone(late: bool) -> Pair {
    let mut pair = Pair::new(QpType::Rc, 7);
    pair.ends[0].post(1, Work::Read(region(2000, 8)), 0, 8);
    pair.exchange(&mut |_, _| Fate::Pass);
    pair.step();
    pair.exchange(&mut |_, _| Fate::Lose);
    if late {
        pair.ends[1].device.is_late = true;
        pair.step();
        pair.exchange(&mut |_, _| Fate::Pass);
        pair.step();
        pair.ends[1].refuse(0);
    } else {
        pair.ends[1].device.rkey = None;
    }
    pair
}

#[test]
fn rejects_a_repeated_read_of_a_deregistered_region() {
    for late in [false, true] {
        let mut pair = read_again_of_what_is_gone(late);
        pair.run();
        let ended: Vec<_> = pair.ends[0].device.sent.iter().map(|wc| wc.status).collect();
        assert_eq!(ended, [WcStatus::REM_ACCESS_ERR], "late: {late}");
        assert_eq!(pair.ends[1].qp.state(), QpState::Rts, "late: {late}");
    }
}

#[test]
fn keeps_the_pair_for_a_stale_read_of_a_deregistered_region() {
    let mut pair = Pair::new(QpType::Rc, 7);
    let read = |pair: &mut Pair, wr_id| pair.ends[0].post(wr_id, Work::Read(region(2000, 8)), 0, 8);
    read(&mut pair, 1);
    let mut copy = None;
    pair.run_with(|_, packet| {
        copy.get_or_insert(*packet);
        Fate::Pass
    });
    pair.ends[1].device.rkey = None;
    pair.ends[1].arrive(&copy.unwrap(), &[]);
    let said = pair.ends[1].work();
    pair.ends[1].device.rkey = Some(RKEY);
    assert_eq!(said.len(), 1, "who still waits is told");
    pair.ends[0].arrive(&said[0].0, &[]);
    read(&mut pair, 2);
    pair.run();
    assert!(pair.ends[0].device.sent.iter().all(|wc| wc.status.is_success()));
    assert_eq!(pair.ends[0].sent_ids(), [1, 2]);
    assert_eq!(pair.ends[1].qp.state(), QpState::Rts);
}

#[test]
fn rejects_an_unsupported_request_and_flushes_its_receive() {
    let mut pair = Pair::new(QpType::Rc, 7);
    pair.ends[1].receive(5, 0, 4096);
    let packet = |operation, psn| Packet {
        transport: QpType::Rc,
        operation,
        solicited: false,
        ack_req: true,
        dest_qpn: pair.ends[1].qp.config().qpn,
        psn: Psn::new(psn),
    };
    // The end of a SEND with invalidate, whose first packet looks like that of an ordinary SEND.
    let (begins, ends) =
        (packet(Operation::Send(Segment::First, None), 7), packet(Operation::NotOffered(0x16), 8));
    pair.ends[1].arrive(&begins, &[1; MTU_BYTES]);
    pair.ends[1].arrive(&ends, &[1; 8]);
    let responses: Vec<_> = pair.ends[1].work().into_iter().map(|(packet, _)| packet.operation).collect();
    let refused = |answer: &Operation| {
        matches!(answer, Operation::Acknowledge(Aeth { syndrome: Syndrome::Nak(Nak::InvalidRequest), .. }))
    };
    assert!(responses.last().is_some_and(refused), "{responses:?}");
    assert_eq!(pair.ends[1].qp.state(), QpState::Err);
    let received: Vec<_> = pair.ends[1].device.received.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(received, [(5, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn a_peer_that_asks_for_what_it_has_put_off_costs_no_retries() {
    let mut pair = Pair::new(QpType::Rc, 7);
    let a = &mut pair.ends[0];
    a.modify(QpAttr { rnr_retry: Some(7), ..QpAttr::to(QpState::Rts) });
    a.post(1, Work::Send, 0, 1);
    a.post(2, Work::Write(region(0, 1)), 0, 1);
    let answer = |syndrome| Packet {
        transport: QpType::Rc,
        operation: Operation::Acknowledge(Aeth { syndrome, msn: 0 }),
        solicited: false,
        ack_req: false,
        dest_qpn: 0,
        psn: Psn::new(7),
    };
    // Like the kernel's rxe: no receive for the first packet, and the second one arrives early.
    for round in 0..20 {
        assert_eq!(a.work().len(), 2, "round {round}: both are sent again");
        a.arrive(&answer(Syndrome::Rnr(RnrTimer(1))), &[]);
        a.arrive(&answer(Syndrome::Nak(Nak::PsnSequence)), &[]);
        assert!(a.work().is_empty(), "round {round}: nothing is sent while it waits");
        a.qp.timed_out(&mut a.device, Timer::Rnr);
    }
    assert_eq!((a.qp.state(), a.device.sent.len()), (QpState::Rts, 0));
}
