//! Unreliable connections: messages that arrive are complete and in order; others are dropped without a report.

use crate::support::process::{Address, Other, learn, role, start, tell};
use crate::support::unreliable::end_in_operation_errors;
use crate::support::*;
use farcall_verbs::{Access, Notify, QpAttr, QpCap, QpState, QpType, SendWr, Sge, WcStatus};

fn uc() -> End {
    End::of(QpType::Uc, QpCap::default())
}

fn uc_pair() -> (End, End) {
    let (mut a, mut b) = (uc(), uc());
    join(&mut a, &mut b, End::rts);
    (a, b)
}

/// Posts one signalled request and expects that its sender receives no error.
fn post(a: &mut End, wr: SendWr<'_>) {
    let wr_id = wr.wr_id;
    a.send(&[wr.with_flags(SIGNALED)]);
    let wc = a.wait();
    assert_eq!((wc.wr_id, wc.status, a.qp.state()), (wr_id, WcStatus::SUCCESS, QpState::Rts));
}

/// Sends one message to a new receive and verifies that it arrives: earlier errors have no effect.
fn still_works(a: &mut End, b: &mut End) {
    b.recv(777, &[b.sge(0, 64)]);
    a.put(0, b"still there");
    let sges = [a.sge(0, 11)];
    post(a, SendWr::send(1, &sges).with_imm(7));
    let wc = b.wait();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len, wc.imm()), (777, WcStatus::SUCCESS, 11, Some(7)));
    assert_eq!((b.get(0, 11), b.poll()), (b"still there".to_vec(), None));
}

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let mut end = uc();
    end.init();
    tell(&mut line, &end);
    let to = learn(&mut line).unwrap();
    end.rtr(to.qpn);
    end.rts();
    for i in 0..8 {
        end.recv(i, &[end.sge(i as usize * 4096, 4096)]);
    }
    line.say([1, 0, 0, 0]);
    // The messages sent while this process was stopped are available afterwards.
    line.hear();
    for i in 0..4_u64 {
        let wc = end.wait();
        assert_eq!((wc.wr_id, wc.byte_len), (i, 3000));
        assert_eq!(end.get(i as usize * 4096, 3000), bytes(3000, i));
    }
    line.say([2, 0, 0, 0]);
    line.hear();
    std::process::exit(0);
}

#[test]
fn only_what_a_receive_waits_for_arrives() {
    let (mut a, mut b) = uc_pair();
    let (to, key) = (b.mr.addr() as u64, b.mr.rkey());
    let sges = [a.sge(0, 8)];
    let room = a.qp.cap().max_send_wr;
    // Far more than any queue holds: no request waits, and none is stored.
    for i in 0..u64::from(room) * 4 {
        a.put(0, &i.to_ne_bytes());
        post(&mut a, SendWr::send(i, &sges));
        post(&mut a, SendWr::write(i, &sges, to + 512, key).with_imm(1));
    }
    assert_eq!((b.poll(), b.qp.state()), (None, QpState::Rts));
    assert_eq!(b.get(512, 8), vec![0; 8], "a dropped WRITE with immediate has written");
    still_works(&mut a, &mut b);
}

#[test]
fn keeps_a_uc_receive_that_is_too_short_for_a_message() {
    for (len, room) in [(9, 8), (1024, 1023), (1025, 1024), (100_000, 99_999)] {
        let (mut a, mut b) = uc_pair();
        b.put(0, &vec![0x5A; len]);
        b.recv(4, &[b.sge(0, room)]);
        let long = [a.sge(0, len)];
        post(&mut a, SendWr::send(1, &long).with_flags(farcall_verbs::SendFlags::SOLICITED));
        assert_eq!((b.poll(), b.qp.state(), b.get(0, len)), (None, QpState::Rts, vec![0x5A; len]));
        let short = [a.sge(0, room)];
        post(&mut a, SendWr::send(2, &short));
        assert_eq!((b.wait().wr_id, b.get(0, room)), (4, a.get(0, room)));
    }
}

#[test]
fn access_errors_at_the_target_are_silent() {
    let write = |a: &mut End, addr, key| {
        let sges = [a.sge(0, 8)];
        post(a, SendWr::write(1, &sges, addr, key));
        post(a, SendWr::write(2, &sges, addr, key).with_imm(3));
    };
    let (mut a, mut b) = uc_pair();
    a.put(0, &[0xFF; 8]);
    b.recv(5, &[b.sge(64, 8)]);
    let (addr, key, len) = (b.mr.addr() as u64, b.mr.rkey(), b.mr.len_bytes() as u64);
    for (at, with) in
        [(addr, key ^ 1), (addr, u32::MAX), (addr + len - 7, key), (addr - 1, key), (u64::MAX, key)]
    {
        write(&mut a, at, with);
    }
    let read_only = b.pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    write(&mut a, read_only.addr() as u64, read_only.rkey());
    let gone = b.pd.alloc_mr(4096, ALL).unwrap();
    let (at, with) = (gone.addr() as u64, gone.rkey());
    post(&mut a, SendWr::write(3, &[], at, with));
    assert_eq!(gone.dereg(), farcall_verbs::Revoked::Now);
    write(&mut a, at, with);
    assert!(b.get(0, len as usize).iter().all(|byte| *byte == 0));
    // The receive for a refused WRITE with immediate is still posted.
    assert_eq!((b.poll(), b.qp.state(), b.context.poll_async_event()), (None, QpState::Rts, None));
    let sges = [a.sge(0, 8)];
    post(&mut a, SendWr::send(4, &sges));
    assert_eq!((b.wait().wr_id, b.get(64, 8)), (5, vec![0xFF; 8]));
}

#[test]
fn stops_only_sending_after_a_local_error_until_rts_again() {
    let (mut a, mut b) = uc_pair();
    a.recv(50, &[a.sge(512, 64)]);
    let wrong = [Sge { lkey: a.mr.lkey() ^ 1, ..a.sge(0, 8) }];
    let good = [a.sge(0, 8)];
    b.recv(1, &[b.sge(0, 64)]);
    a.send(&[SendWr::send(1, &wrong), SendWr::send(2, &good)]);
    let ends: Vec<_> = a.wait_n(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, WcStatus::LOC_PROT_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!((a.qp.state(), b.poll()), (QpState::Sqe, None));
    a.send(&[SendWr::send(3, &good)]);
    assert_eq!(a.wait().status, WcStatus::WR_FLUSH_ERR);
    // The other direction is not affected.
    b.put(0, b"to a");
    let sges = [b.sge(0, 4)];
    post(&mut b, SendWr::send(6, &sges));
    assert_eq!((a.wait().wr_id, a.get(512, 4)), (50, b"to a".to_vec()));
    a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    post(&mut a, SendWr::send(4, &good));
    assert_eq!(b.wait().wr_id, 1);
}

#[test]
fn a_target_that_is_not_ready_drops_and_becomes_ready() {
    let (mut a, mut b) = (uc(), uc());
    let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
    a.init();
    b.init();
    a.rtr(qb);
    a.rts();
    b.recv(1, &[b.sge(0, 64)]);
    let sges = [a.sge(0, 8)];
    post(&mut a, SendWr::send(1, &sges));
    post(&mut a, SendWr::write(2, &sges, b.mr.addr() as u64, b.mr.rkey()));
    b.rtr(qa);
    b.rts();
    assert_eq!(b.poll(), None, "dropped means dropped");
    post(&mut a, SendWr::send(3, &sges));
    assert_eq!(b.wait().wr_id, 1);
    // In the error state it drops messages again.
    b.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    post(&mut a, SendWr::send(4, &sges));
    assert_eq!(b.poll(), None);
}

#[test]
fn pairs_of_different_transports_do_not_connect() {
    let (mut a, mut b) = (uc(), End::default());
    let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
    a.init();
    b.init();
    a.rtr(qb);
    b.rtr(qa);
    a.rts();
    b.rts_impatient();
    // As on a network, neither receives an error.
    for from in [&mut a, &mut b] {
        let sges = [from.sge(0, 8)];
        from.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
        let expected = match from.qp.qp_type() {
            QpType::Uc => WcStatus::SUCCESS,
            _ => WcStatus::RETRY_EXC_ERR,
        };
        assert_eq!(from.wait().status, expected);
    }
}

fn with_receiver() -> (Other, End, Address) {
    let mut other = start("receiver", &[]);
    let mut a = uc();
    a.init();
    tell(&mut other.line, &a);
    let to = learn(&mut other.line).unwrap();
    a.rtr(to.qpn);
    a.rts();
    assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
    (other, a, to)
}

#[test]
fn a_stopped_peer_receives_and_a_dead_one_is_no_error() {
    let (mut other, mut a, to) = with_receiver();
    // Connected, and with its memory mapped, while the process can reply.
    a.put(0, &bytes(3000, 0));
    let sges = [a.sge(0, 3000)];
    post(&mut a, SendWr::send(0, &sges));
    other.stop();
    for i in 1..4 {
        a.put(0, &bytes(3000, i));
        post(&mut a, SendWr::send(i, &sges));
    }
    other.signal(libc::SIGCONT);
    other.line.say([0; 4]);
    assert_eq!(other.line.hear(), Some([2, 0, 0, 0]));
    // The sender sleeps when the peer exits: there is no event to wake it.
    a.cq.req_notify(Notify::Any).unwrap();
    assert_eq!(a.poll(), None);
    other.end();
    assert!(!readable(std::os::fd::RawFd::from(a.channel.fd()), 200), "a death woke the sender");
    for i in 0..100 {
        post(&mut a, SendWr::send(i, &sges));
        post(&mut a, SendWr::write(i, &sges, to.addr, to.rkey));
    }
}

/// Only the target's process can report the location of the receives, and it may have to wait to be scheduled.
#[test]
fn what_the_targets_process_has_yet_to_answer_is_waited_for() {
    let (mut other, mut a, to) = with_receiver();
    // Certainly connected.
    post(&mut a, SendWr::write(9, &[], to.addr, to.rkey));
    other.stop();
    for i in 0..4_u64 {
        let at = i as usize * 4096;
        a.put(at, &bytes(3000, i));
        let sges = [a.sge(at, 3000)];
        a.send(&[SendWr::send(i, &sges).with_flags(SIGNALED)]);
    }
    assert_eq!(a.poll(), None, "dropped, though a receive waits for it");
    other.signal(libc::SIGCONT);
    for i in 0..4 {
        let wc = a.wait();
        assert_eq!((wc.wr_id, wc.status), (i, WcStatus::SUCCESS));
    }
    other.line.say([0; 4]);
    assert_eq!(other.line.hear(), Some([2, 0, 0, 0]), "all of it came");
}

#[test]
fn ends_reads_and_atomics_over_uc_in_an_operation_error() {
    let (mut a, mut b) = uc_pair();
    end_in_operation_errors(&mut a, &mut b);
    // Also before anything has been sent to a target that is not connected yet.
    let (mut lonely, target) = (uc(), uc());
    lonely.connect(target.qp.qp_num());
    let sges = [lonely.sge(0, 8)];
    lonely.send(&[SendWr::read(9, &sges, target.mr.addr() as u64, target.mr.rkey())]);
    assert_eq!(lonely.wait().status, WcStatus::LOC_QP_OP_ERR);
}
