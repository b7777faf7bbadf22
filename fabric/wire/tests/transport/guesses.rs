//! Senders that do not know the sequence numbers of a queue pair, and the information that its replies reveal to them.

use farcall_verbs::QpType;
use farcall_wire::{Aeth, Fit, Operation, Packet, Psn, Segment, Syndrome, Work};

use super::harness::*;

fn send(transport: QpType, psn: u32) -> Packet {
    let operation = Operation::Send(Segment::Only, None);
    Packet { transport, operation, solicited: false, ack_req: true, dest_qpn: 10, psn: Psn::new(psn) }
}

fn acknowledgement(psn: u32) -> Packet {
    let operation = Operation::Acknowledge(Aeth { syndrome: Syndrome::Ack, msn: 0 });
    Packet { operation, ack_req: false, ..send(QpType::Rc, psn) }
}

#[test]
fn replies_to_no_number_that_the_peer_has_not_sent() {
    let mut pair = Pair::new(QpType::Rc, 0x80_0000);
    let [a, b] = &mut pair.ends;
    for step in 1..1 << 10 {
        b.arrive(&send(QpType::Rc, 0x80_0000 - step * (1 << 13)), &[]);
    }
    assert_eq!(b.work(), [], "the connection has just begun");
    b.receive(1, 0, 100);
    a.post(1, Work::Send, 0, 10);
    pair.run();
    let b = &mut pair.ends[1];
    b.arrive(&send(QpType::Rc, 0x80_0000 - 1), &[]);
    assert_eq!(b.work(), []);
    b.arrive(&send(QpType::Rc, 0x80_0000), &[0; 10]);
    assert_eq!(b.work().len(), 1, "what its peer has sent is acknowledged again");
}

#[test]
fn acknowledges_repeated_requests_a_bounded_number_of_times() {
    let mut pair = Pair::new(QpType::Rc, 0);
    pair.ends[1].receive(1, 0, 100);
    pair.ends[0].post(1, Work::Send, 0, 10);
    pair.run();
    let b = &mut pair.ends[1];
    let replies: usize = (0..1_000)
        .map(|_| {
            b.arrive(&send(QpType::Rc, 0), &[0; 10]);
            b.work().len()
        })
        .sum();
    assert!((1..=64).contains(&replies), "{replies}");
    b.device.now_ns += 1_000_000;
    b.arrive(&send(QpType::Rc, 0), &[0; 10]);
    assert_eq!(b.work().len(), 1);
}

#[test]
fn fits_only_the_next_request_and_outstanding_answers() {
    let mut pair = Pair::new(QpType::Rc, 5);
    let a = &mut pair.ends[0];
    assert_eq!(a.qp.fit(&send(QpType::Rc, 5)), Fit::Next);
    for psn in [4, 6, 0x80_0005] {
        assert_eq!(a.qp.fit(&send(QpType::Rc, psn)), Fit::Unrelated, "{psn}");
    }
    assert_eq!(a.qp.fit(&send(QpType::Uc, 5)), Fit::Unrelated, "of another transport");
    assert_eq!(a.qp.fit(&acknowledgement(5)), Fit::Unrelated, "nothing was sent");
    a.post(1, Work::Send, 0, 4 * MTU_BYTES);
    a.work();
    for (psn, fit) in [
        (4, Fit::Unrelated),
        (5, Fit::Next),
        (6, Fit::Outstanding),
        (7, Fit::Outstanding),
        (8, Fit::Next),
        (9, Fit::Unrelated),
    ] {
        assert_eq!(a.qp.fit(&acknowledgement(psn)), fit, "{psn}");
    }
    let notification = Packet { operation: Operation::CongestionNotification, ..acknowledgement(5) };
    assert_eq!(a.qp.fit(&notification), Fit::Unrelated);
    let unreliable = Pair::new(QpType::Uc, 5);
    for (psn, fit) in [(5, Fit::Next), (70, Fit::Outstanding), (4, Fit::Unrelated), (1 << 17, Fit::Unrelated)]
    {
        assert_eq!(unreliable.ends[0].qp.fit(&send(QpType::Uc, psn)), fit, "{psn}");
    }
}
