//! Marked packets, congestion notifications, and the resulting pacing.

use farcall_verbs::{QpAttr, QpState, QpType, WcStatus};
use farcall_wire::{Event, Operation, Packet, Psn, RateBounds, Segment, Timer, Work};

use super::harness::*;

const CNP_INTERVAL_NS: u64 = 50_000;
const MIN_BYTES_PER_S: u64 = RateBounds::DEFAULT.min_bytes_per_s;
/// Header length that the transport assumes.
const HEADERS_BYTES: u64 = 64;

fn packet_of(transport: QpType, operation: Operation) -> Packet {
    Packet { transport, operation, solicited: false, ack_req: false, dest_qpn: 10, psn: Psn::new(0) }
}

fn notification() -> Packet {
    packet_of(QpType::Rc, Operation::CongestionNotification)
}

/// Returns the number of notifications that the first end sends for a packet that is marked now.
fn told_of(end: &mut End, packet: &Packet) -> usize {
    end.qp.marked(&mut end.device, packet);
    let sent = end.work();
    sent.iter().filter(|(packet, _)| packet.operation == Operation::CongestionNotification).count()
}

#[test]
fn notifies_the_peer_of_marked_packets_once_in_50_us() {
    for transport in [QpType::Rc, QpType::Uc] {
        let [mut end, _] = Pair::new(transport, 0).ends;
        let marked = packet_of(transport, Operation::Send(Segment::Only, None));
        let told_at = |end: &mut End, at_ns| {
            end.device.now_ns = at_ns;
            told_of(end, &marked)
        };
        assert_eq!(told_at(&mut end, 0), 1);
        let told: usize = (1..=4 * CNP_INTERVAL_NS / 100).map(|nth| told_at(&mut end, nth * 100)).sum();
        assert_eq!(told, 4, "in 200 us, however many packets are marked");
        assert_eq!(end.device.events.iter().filter(|event| **event == Event::CnpSent).count(), 5);
    }
}

#[test]
fn notifies_only_when_established_and_for_paceable_packets() {
    let [mut end, _] = Pair::new(QpType::Rc, 0).ends;
    let send = Operation::Send(Segment::Only, None);
    for not_told in [
        notification(),
        packet_of(QpType::Uc, send),
        packet_of(
            QpType::Rc,
            Operation::Acknowledge(farcall_wire::Aeth { syndrome: farcall_wire::Syndrome::Ack, msn: 0 }),
        ),
    ] {
        assert_eq!(told_of(&mut end, &not_told), 0, "{not_told:?}");
    }
    let [mut datagrams, _] = Pair::new(QpType::Ud, 0).ends;
    assert_eq!(told_of(&mut datagrams, &packet_of(QpType::Ud, send)), 0);
    let mut early = End::new(QpType::Rc, 10);
    early.modify(QpAttr::init(ALL));
    assert_eq!(told_of(&mut early, &packet_of(QpType::Rc, send)), 0);
    end.qp.enter_error(&mut end.device);
    assert_eq!(told_of(&mut end, &packet_of(QpType::Rc, send)), 0);
}

/// Returns when each packet with payload was sent, while the first end receives `notifications` between any two steps.
fn times(mut pair: Pair, notifications: usize) -> (Pair, Vec<u64>) {
    let (mut times, mut seen) = (Vec::new(), 0);
    for _ in 0..100_000 {
        (0..notifications).for_each(|_| pair.ends[0].arrive(&notification(), &[]));
        pair.exchange(&mut |_, _| Fate::Pass);
        times.extend(pair.log[seen..].iter().filter(|sent| sent.2 > 0).map(|_| pair.now_ns));
        seen = pair.log.len();
        if !pair.step() {
            return (pair, times);
        }
    }
    panic!("no end");
}

fn assert_undisturbed(pair: &Pair) {
    let disturbed =
        |event: &&Event| matches!(event, Event::AckTimeout | Event::GoBack(_) | Event::OutOfSequence(_));
    for end in &pair.ends {
        assert_eq!(end.device.events.iter().find(disturbed), None);
        assert!(end.device.sent.iter().all(|wc| wc.status == WcStatus::SUCCESS));
    }
}

#[test]
fn limits_a_flood_of_notifications_to_the_lowest_rate() {
    for transport in [QpType::Rc, QpType::Uc] {
        let mut pair = Pair::new(transport, 0);
        (0..16).for_each(|_| pair.ends[0].arrive(&notification(), &[]));
        for wr_id in 0..10 {
            pair.ends[0].post(wr_id, Work::Write(region(0, 4 * MTU_BYTES)), 0, 4 * MTU_BYTES);
        }
        let (pair, times) = times(pair, 9);
        assert_eq!(pair.ends[0].sent_ids(), (0..10).collect::<Vec<_>>());
        assert_undisturbed(&pair);
        let gap_ns = (MTU_BYTES as u64 + HEADERS_BYTES) * 1_000_000_000 / MIN_BYTES_PER_S;
        let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps, [gap_ns; 39], "{transport:?}: one packet after the other, at the lowest rate");
    }
}

#[test]
fn a_slow_pair_does_not_take_its_own_pauses_for_loss() {
    let mut pair = Pair::new(QpType::Rc, 0);
    for end in &mut pair.ends {
        // 8 us, shorter than the pauses.
        end.modify(QpAttr { timeout: Some(1), ..QpAttr::to(QpState::Rts) });
    }
    (0..16).for_each(|_| pair.ends[0].arrive(&notification(), &[]));
    pair.ends[0].post(1, Work::Write(region(0, 20 * MTU_BYTES)), 0, 20 * MTU_BYTES);
    pair.ends[0].post(2, Work::Read(region(0, 5 * MTU_BYTES)), 0, 5 * MTU_BYTES);
    let (pair, _) = times(pair, 0);
    assert_eq!(pair.ends[0].sent_ids(), [1, 2]);
    assert_undisturbed(&pair);
    // A failed peer is detected nevertheless.
    let mut pair = pair;
    pair.ends[0].arrive(&notification(), &[]);
    pair.ends[0].post(3, Work::Write(region(0, 3 * MTU_BYTES)), 0, 3 * MTU_BYTES);
    pair.run_with(|_, _| Fate::Lose);
    assert_eq!(pair.ends[0].device.sent.last().map(|wc| wc.status), Some(WcStatus::RETRY_EXC_ERR));
}

#[test]
fn paces_read_responses_at_the_responder() {
    let mut pair = Pair::new(QpType::Rc, 0);
    pair.ends[1].modify(QpAttr { timeout: Some(14), ..QpAttr::to(QpState::Rts) });
    (0..16).for_each(|_| pair.ends[0].arrive(&notification(), &[]));
    pair.ends[1].post(1, Work::Read(region(0, 3 * MTU_BYTES)), 4096, 3 * MTU_BYTES);
    let (pair, times) = times(pair, 0);
    assert_undisturbed(&pair);
    let gap_ns = (MTU_BYTES as u64 + HEADERS_BYTES) * 1_000_000_000 / MIN_BYTES_PER_S;
    assert_eq!(times, [DELAY_NS, gap_ns, 2 * gap_ns], "the wait before the first is made up for");
    assert_eq!(
        pair.ends[1].device.memory[4096..][..3 * MTU_BYTES],
        pair.ends[0].device.memory[..3 * MTU_BYTES]
    );
}

#[test]
fn sets_no_pacing_timer_without_congestion() {
    let mut pair = Pair::new(QpType::Rc, 0);
    pair.ends[0].post(1, Work::Write(region(0, 4096)), 0, 4096);
    pair.exchange(&mut |_, _| Fate::Pass);
    assert_eq!(pair.ends[0].device.timers[Timer::Pace as usize], None);
    // A queue pair that was paced and is connected again is not paced any more.
    (0..16).for_each(|_| pair.ends[0].arrive(&notification(), &[]));
    pair.run();
    pair.ends[0].post(2, Work::Write(region(0, 4096)), 0, 4096);
    pair.exchange(&mut |_, _| Fate::Pass);
    assert_ne!(pair.ends[0].device.timers[Timer::Pace as usize], None);
    pair.ends[0].modify(QpAttr::to(QpState::Reset));
    assert_eq!(pair.ends[0].device.timers[Timer::Pace as usize], None);
}
