//! Delayed completions: they keep their order, and each wakes a sleeping program.

use std::os::fd::BorrowedFd;

use farcall_verbs::{Notify, QpType, SendFlags, SendWr, Wc, WcOpcode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{End, LOST, connected, faults};

/// Sleeps until the channel has an event, and takes it, like a program that must have no spurious wake-ups.
fn sleep(end: &End) {
    // SAFETY: `end` owns the channel and thereby the descriptor.
    let fd = unsafe { BorrowedFd::borrow_raw(end.channel.fd()) };
    let patience = Timespec { tv_sec: LOST.as_secs() as i64, tv_nsec: 0 };
    let readable = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)).unwrap();
    assert!(readable > 0, "slept through a completion");
    assert_eq!(end.channel.poll_cq_event().unwrap(), Some(end.cq.id()), "readable without an event");
}

/// Returns the next completion; sleeps until it arrives.
fn awaited(end: &mut End, notify: Notify) -> Wc {
    let mut wc = [Wc::default()];
    loop {
        end.cq.req_notify(notify).unwrap();
        if end.cq.poll(&mut wc).unwrap() > 0 {
            return wc[0];
        }
        sleep(end);
        if end.cq.poll(&mut wc).unwrap() > 0 {
            return wc[0];
        }
    }
}

#[test]
fn sleepers_are_woken_when_late_completions_are_ready() {
    for text in ["seed=3,delay=300us", "seed=3,delay=0ns..1ms", "seed=3,rnr=0.3", "seed=3,drop=0"] {
        let faults = faults(text);
        let mut one = End::new(crate::support::open(&faults), QpType::Rc);
        let mut other = End::new(crate::support::open(&faults), QpType::Rc);
        one.connect(other.qp.qp_num(), 7);
        other.connect(one.qp.qp_num(), 7);
        for round in 0..40 {
            other.receive(round, 0, 8);
            one.put(0, round);
            one.send(round, 0).unwrap();
            let received = awaited(&mut other, Notify::Any);
            assert_eq!(
                (received.wr_id, received.opcode, other.get(0)),
                (round, WcOpcode::RECV, round),
                "{text}"
            );
            let sent = awaited(&mut one, Notify::Any);
            assert_eq!((sent.wr_id, sent.opcode), (round, WcOpcode::SEND), "{text}");
        }
    }
}

#[test]
fn sleepers_for_solicited_completions_are_woken_too() {
    let faults = faults("seed=3,delay=200us");
    let mut one = End::new(crate::support::open(&faults), QpType::Rc);
    let mut other = End::new(crate::support::open(&faults), QpType::Rc);
    one.connect(other.qp.qp_num(), 7);
    other.connect(one.qp.qp_num(), 7);
    for round in 0..30_u64 {
        other.receive(2 * round, 0, 8);
        other.receive(2 * round + 1, 0, 8);
        other.cq.req_notify(Notify::Solicited).unwrap();
        let sges = [one.sge(0, 8)];
        let quiet = SendWr::send(1, &sges);
        let loud = SendWr::send(2, &sges).with_flags(SendFlags::SIGNALED | SendFlags::SOLICITED);
        // SAFETY: the region exists as long as the queue pair.
        unsafe { one.qp.post_send(&[quiet, loud]) }.unwrap();
        sleep(&other);
        let received: Vec<u64> = other.take(2).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(received, [2 * round, 2 * round + 1]);
        one.take(1);
    }
}

#[test]
fn wakes_an_armed_queue_after_dropping_a_late_completion() {
    let (mut one, mut other) = connected(&faults("seed=3,delay=50ms"), QpType::Rc, 7);
    let init = farcall_verbs::QpInitAttr {
        send_cq: &*one.cq,
        recv_cq: &*one.cq,
        srq: None,
        cap: farcall_verbs::QpCap::default(),
        qp_type: QpType::Rc,
        sq_sig_all: true,
    };
    let sibling = one.pd.create_qp(&init).unwrap();
    // A staged completion that is not ready yet, of a queue pair that is destroyed before. On a busy machine a
    // completion may be ready when the test polls; then the next one is tried.
    let is_late = (0..100).any(|wr_id| {
        other.receive(wr_id, 0, 8);
        one.send(wr_id, 0).unwrap();
        one.cq.poll(&mut [Wc::default()]).unwrap() == 0
    });
    assert!(is_late, "no completion is late");
    one.cq.req_notify(Notify::Any).unwrap();
    let number = one.qp.qp_num();
    let gone = std::mem::replace(&mut one.qp, sibling);
    drop(gone);
    let mut third = End::new(farcall_softnic::SoftNic::open().unwrap(), QpType::Rc);
    one.connect(third.qp.qp_num(), 7);
    third.connect(one.qp.qp_num(), 7);
    third.receive(3, 0, 8);
    one.send(4, 0).unwrap();
    sleep(&one);
    let found = one.take(1)[0];
    assert_eq!(found.wr_id, 4);
    assert_ne!(found.qp_num, number);
}

#[test]
fn completions_of_a_queue_pair_keep_their_order_however_late() {
    let (mut one, mut other) = connected(&faults("seed=4,delay=0ns..200us,rnr=0.2,drop=0"), QpType::Rc, 7);
    for wr_id in 0..200 {
        other.receive(wr_id, 0, 8);
    }
    for wr_id in 0..200 {
        one.send(wr_id, 0).unwrap();
    }
    let sent: Vec<u64> = one.take(200).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(sent, (0..200).collect::<Vec<_>>());
    assert_eq!(one.cq.poll(&mut [Wc::default()]).unwrap(), 0, "each once");
}
