//! Memory that completes or refuses accesses late.

use farcall_verbs::{QpAttr, QpState, QpType, WcStatus};
use farcall_wire::{Operation, Work};

use super::harness::*;

/// Returns a pair of ends whose second end's accesses are pending, after the first end's packets have arrived.
fn late(post: impl FnOnce(&mut [End; 2])) -> Pair {
    let mut pair = Pair::new(QpType::Rc, 0xff_fffe);
    pair.ends[1].device.is_late = true;
    post(&mut pair.ends);
    pair.exchange(&mut |_, _| Fate::Pass);
    for (_, packet, payload) in pair.take_link() {
        pair.ends[1].arrive(&packet, &payload);
    }
    pair
}

#[test]
fn completes_a_message_after_all_of_it_is_placed() {
    let mut pair = late(|[a, b]| {
        b.receive(100, 4096, 1024);
        a.post(1, Work::Send, 0, 600);
    });
    let b = &mut pair.ends[1];
    assert_eq!(b.accesses(), 3);
    // The last packet is placed first.
    for at in [2, 0, 0] {
        assert!(b.work().is_empty() && b.device.received.is_empty(), "neither acknowledged nor told");
        b.finish(at);
    }
    assert_eq!(b.work().len(), 1);
    assert_eq!(b.device.received[0].byte_len, 600);
}

#[test]
fn completes_messages_in_order_whatever_is_placed_first() {
    let mut pair = late(|[a, b]| {
        b.receive(100, 4096, 64);
        b.receive(101, 4160, 64);
        a.post(1, Work::Send, 0, 8);
        a.post(2, Work::Send, 8, 8);
    });
    let b = &mut pair.ends[1];
    b.finish(1);
    assert!(b.work().is_empty() && b.device.received.is_empty());
    b.finish(0);
    b.work();
    let told: Vec<_> = b.device.received.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(told, [100, 101]);
}

#[test]
fn a_read_returns_what_was_written_before_it() {
    let mut pair = late(|[a, _]| {
        a.post(1, Work::Write(region(2000, 8)), 0, 8);
        a.post(2, Work::Read(region(2000, 8)), 6000, 8);
    });
    let b = &mut pair.ends[1];
    assert_eq!(b.accesses(), 2);
    b.finish(1);
    assert!(b.work().is_empty(), "the READ is ready, the WRITE before it is not placed");
    b.finish(0);
    pair.run();
    assert_eq!(pair.ends[0].device.memory[6000..6008], pair.ends[0].device.memory[..8]);
}

#[test]
fn an_atomic_that_ends_late_is_executed_once() {
    let mut pair = late(|[a, _]| a.post(1, fetch_add(64, 5), 7000, 8));
    let b = &mut pair.ends[1];
    let old = b.device.word(64);
    assert!(b.work().is_empty());
    assert_eq!(b.accesses(), 1, "it has begun");
    // No response arrives, so the requester retransmits.
    for _ in 0..4 {
        pair.step();
        pair.exchange(&mut |_, _| Fate::Pass);
    }
    assert!(pair.log.iter().filter(|(from, ..)| *from == 0).count() > 1);
    assert_eq!(pair.ends[1].accesses(), 1);
    pair.ends[1].finish(0);
    pair.run();
    assert_eq!((pair.ends[0].device.word(7000), pair.ends[1].device.word(64)), (old, old + 5));
    assert_eq!(pair.ends[1].device.atomics, 1);
}

#[test]
fn a_late_denial_ends_the_queue_pair() {
    let mut pair = late(|[a, b]| {
        b.receive(100, 4096, 64);
        a.post(1, Work::Send, 0, 8);
    });
    pair.ends[1].refuse(0);
    pair.run();
    assert_eq!(pair.ends[1].device.received[0].status, WcStatus::LOC_PROT_ERR);
    assert_eq!(pair.ends[0].device.sent[0].status, WcStatus::REM_OP_ERR);

    for work in [Work::Write(region(2000, 8)), Work::Read(region(2000, 8))] {
        let mut pair = late(|[a, _]| a.post(1, work, 0, 8));
        pair.ends[1].refuse(0);
        pair.run();
        assert_eq!(pair.ends[1].qp.state(), QpState::Err);
        assert_eq!(pair.ends[0].device.sent[0].status, WcStatus::REM_ACCESS_ERR);
    }
}

#[test]
fn ignores_an_access_of_an_earlier_incarnation() {
    let mut pair = late(|[a, b]| {
        b.receive(100, 4096, 64);
        a.post(1, Work::Send, 0, 8);
    });
    let b = &mut pair.ends[1];
    let token = b.finish(0);
    b.modify(QpAttr::to(QpState::Reset));
    b.qp.accessed(token, Err(farcall_wire::AccessDenied));
    assert!(b.work().is_empty() && b.device.received.is_empty());
    assert_eq!(b.qp.state(), QpState::Reset);
}

#[test]
fn an_error_flushes_receives_whose_message_is_on_its_way() {
    let mut pair = late(|[a, b]| {
        b.receive(100, 4096, 64);
        b.receive(101, 4160, 1024);
        b.receive(102, 5184, 64);
        a.post(1, Work::Send, 0, 8);
        a.post(2, Work::Send, 0, 300);
    });
    let b = &mut pair.ends[1];
    b.qp.enter_error(&mut b.device);
    let told: Vec<_> = b.device.received.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(told, [100, 101, 102].map(|wr_id| (wr_id, WcStatus::WR_FLUSH_ERR)));
    assert!(b.work().iter().all(|(packet, _)| !matches!(packet.operation, Operation::Acknowledge(_))));
}
