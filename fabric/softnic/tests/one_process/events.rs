//! Completion channels: which operations wake a thread, and that no wake-up is lost.
//!
//! The number of sleep/wake rounds is 20 000 in a debug build and a million in release (half a minute); CI runs `cargo
//! test --release -p farcall-softnic --test one_process events::`. `FARCALL_TEST_ROUNDS` sets another number.

use std::os::fd::AsRawFd;

use crate::support::*;
use farcall_verbs::{Notify, QpAttr, QpState, SendFlags, SendWr, Wc, WcOpcode, WcStatus};
use rustix::event::epoll;

fn send_one(a: &mut End, flags: SendFlags) {
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(flags)]);
}

fn pair_with_receives(n: u64) -> (End, End) {
    let (a, mut b) = pair();
    for i in 0..n {
        b.recv(i, &[b.sge(0, 8)]);
    }
    (a, b)
}

#[test]
fn armed_then_completed_is_one_event() {
    let (mut a, mut b) = pair_with_receives(3);
    b.cq.req_notify(Notify::Any).unwrap();
    assert_eq!(b.event(), None);
    (0..3).for_each(|_| send_one(&mut a, SendFlags::empty()));
    assert!(readable(b.channel.fd(), 0));
    assert_eq!((b.event(), b.event()), (Some(b.cq.id()), None), "one event for one arming");
    assert!(!readable(b.channel.fd(), 0));
    assert_eq!(b.wait_n(3).len(), 3);
}

#[test]
fn completed_then_armed_is_no_event_but_a_poll_finds_it() {
    let (mut a, mut b) = pair_with_receives(2);
    send_one(&mut a, SendFlags::SOLICITED);
    b.cq.req_notify(Notify::Any).unwrap();
    assert!(!readable(b.channel.fd(), 10));
    assert!(b.poll().is_some());
    // It is still armed.
    send_one(&mut a, SendFlags::empty());
    assert_eq!(b.event(), Some(b.cq.id()));
}

/// Programs exit when they have received what they wait for. That their peers exited before must not disturb them.
#[test]
fn leaves_failures_after_successes_to_the_next_poll() {
    for notify in [Notify::Any, Notify::Solicited] {
        let (mut a, mut b) = pair_with_receives(2);
        send_one(&mut a, SendFlags::empty());
        b.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
        b.cq.req_notify(notify).unwrap();
        let mut polled = [Wc::default(); 4];
        assert_eq!(b.cq.poll(&mut polled).unwrap(), 1);
        assert_eq!(polled[0].status, WcStatus::SUCCESS);
        assert_eq!(b.event(), Some(b.cq.id()), "{notify:?}");
        assert_eq!(b.cq.poll(&mut polled).unwrap(), 1);
        assert_eq!(polled[0].status, WcStatus::WR_FLUSH_ERR);
    }
}

#[test]
fn a_solicited_sleeper_wakes_for_solicited_and_failed_only() {
    let (mut a, mut b) = pair_with_receives(4);
    b.cq.req_notify(Notify::Solicited).unwrap();
    send_one(&mut a, SendFlags::empty());
    assert!(!readable(b.channel.fd(), 10));
    send_one(&mut a, SendFlags::SOLICITED);
    assert_eq!(b.event(), Some(b.cq.id()));
    assert_eq!(b.wait_n(2).len(), 2);
    b.cq.req_notify(Notify::Solicited).unwrap();
    b.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    assert_eq!(b.event(), Some(b.cq.id()));
    assert_eq!(b.wait().status, WcStatus::WR_FLUSH_ERR);
}

#[test]
fn send_completions_wake_their_owner() {
    let (mut a, b) = pair();
    a.cq.req_notify(Notify::Any).unwrap();
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::write(1, &sges, b.mr.addr() as u64, b.mr.rkey())]);
    assert_eq!(a.event(), None, "an unsignalled success is no completion");
    a.send(&[SendWr::write(2, &sges, b.mr.addr() as u64, b.mr.rkey()).with_flags(SIGNALED)]);
    // The target's process must first reply with the location of the memory.
    assert!(readable(a.channel.fd(), LOST.as_millis() as i32));
    assert_eq!((a.event(), a.wait().wr_id), (Some(a.cq.id()), 2));
    // A send that waits for a receive completes when the target posts one, and wakes the thread.
    send_one(&mut a, SIGNALED);
    a.cq.req_notify(Notify::Any).unwrap();
    assert_eq!(a.poll(), None);
    let mut b = b;
    b.recv(1, &[b.sge(0, 8)]);
    assert_eq!(a.sleep(Notify::Any).opcode, WcOpcode::SEND);
}

#[test]
fn a_sleeper_learns_that_its_send_found_no_receive() {
    let (mut a, mut b) = (End::default(), End::default());
    join(&mut a, &mut b, End::rts_impatient);
    send_one(&mut a, SIGNALED);
    assert_eq!(a.sleep(Notify::Any).status, WcStatus::RNR_RETRY_EXC_ERR);
}

#[test]
fn wakes_the_sender_of_a_receiver_that_was_ready_first() {
    let (mut a, mut b) = (End::default(), End::default());
    let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
    a.init();
    b.init();
    // Its peer is not ready: the receiver has no connection, and no reason to try again.
    b.rtr(qa);
    a.rtr(qb);
    a.rts();
    a.reach();
    let mut at_once = 0;
    for round in 0..50 {
        send_one(&mut a, SIGNALED);
        a.cq.req_notify(Notify::Any).unwrap();
        assert_eq!(a.poll(), None);
        b.recv(round, &[b.sge(0, 8)]);
        match a.event() {
            Some(queue) => at_once += u32::from(queue == a.cq.id()),
            // The service thread has polled the send in the meantime, and requests the wake-up when it leaves the send
            // side.
            None => assert_eq!(
                (readable(a.channel.fd(), LOST.as_millis() as i32), a.event()),
                (true, Some(a.cq.id()))
            ),
        }
        assert_eq!((a.wait().status, b.wait().wr_id), (WcStatus::SUCCESS, round));
    }
    assert!(at_once > 25, "posting a receive woke the sender in {at_once} of 50 rounds");
}

#[test]
fn signals_edge_triggered_epoll_on_every_arming() {
    let (mut a, mut b) = pair_with_receives(100);
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    // SAFETY: the channel's descriptor stays open as long as `b`.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(b.channel.fd()) };
    epoll::add(&set, fd, epoll::EventData::new_u64(1), epoll::EventFlags::IN | epoll::EventFlags::ET)
        .unwrap();
    for i in 0..100 {
        b.cq.req_notify(Notify::Any).unwrap();
        assert_eq!(b.poll(), None);
        send_one(&mut a, SendFlags::empty());
        assert!(readable(set.as_raw_fd(), 5000), "no edge in round {i}");
        let mut events = Vec::with_capacity(4);
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None).unwrap();
        assert_eq!((events.len(), b.event()), (1, Some(b.cq.id())));
        assert!(b.poll().is_some());
    }
}

#[test]
fn wakes_every_sleeper_in_a_million_rounds() {
    let default = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
    let rounds = std::env::var("FARCALL_TEST_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(default);
    let (mut a, mut b) = pair();
    (0..64).for_each(|i| (a.recv(i, &[a.sge(0, 8)]), b.recv(i, &[b.sge(0, 8)])).0);
    let echo = std::thread::spawn(move || {
        for round in 0..rounds {
            let wc = b.sleep(if round % 2 == 0 { Notify::Any } else { Notify::Solicited });
            assert_eq!(wc.imm(), Some(round));
            b.recv(wc.wr_id, &[b.sge(0, 8)]);
            b.send(&[SendWr::send(0, &[]).with_imm(round).with_flags(SendFlags::SOLICITED)]);
        }
        b
    });
    for round in 0..rounds {
        a.send(&[SendWr::send(0, &[]).with_imm(round).with_flags(SendFlags::SOLICITED)]);
        let wc = a.sleep(Notify::Any);
        assert_eq!((wc.status, wc.imm()), (WcStatus::SUCCESS, Some(round)));
        a.recv(wc.wr_id, &[a.sge(0, 8)]);
    }
    drop(echo.join().unwrap());
}

/// As on a device, whose events wait in the channel regardless of later arming.
#[test]
fn an_event_that_was_not_taken_survives_arming_again() {
    let (mut a, mut b) = pair_with_receives(2);
    b.cq.req_notify(Notify::Any).unwrap();
    send_one(&mut a, SendFlags::empty());
    b.cq.req_notify(Notify::Any).unwrap();
    assert_eq!(b.event(), Some(b.cq.id()), "the event of before");
    assert_eq!(b.event(), None, "once");
    send_one(&mut a, SendFlags::empty());
    assert_eq!(b.event(), Some(b.cq.id()), "and the next");
}
