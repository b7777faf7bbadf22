//! The send queue drained state, receiver-not-ready timers, and asynchronous events.

use std::time::{Duration, Instant};

use crate::support::*;
use farcall_verbs::{
    AsyncEvent, AsyncEventKind, Notify, QpAttr, QpCap, QpState, QpType, RnrTimer, SendWr, Sge, WcStatus,
};

fn events(end: &End) -> Vec<(AsyncEventKind, u32)> {
    std::iter::from_fn(|| end.context.poll_async_event()).map(|event| (event.kind, event.element)).collect()
}

fn wait_for_event(end: &End) -> AsyncEvent {
    let fd = end.context.async_event_fd().unwrap();
    assert!(readable(fd, LOST.as_millis() as i32), "no event");
    end.context.poll_async_event().expect("the descriptor said so")
}

fn drain(end: &mut End, notify: bool) {
    let attr = QpAttr { en_sqd_async_notify: Some(notify), ..QpAttr::to(QpState::Sqd) };
    end.qp.modify(&attr).unwrap();
    assert_eq!(end.qp.state(), QpState::Sqd);
}

#[test]
fn holds_requests_in_a_drained_queue_and_resumes_in_order() {
    let (mut a, mut b) = pair();
    b.put(0, &[0; 64]);
    drain(&mut a, true);
    assert_eq!(events(&a), [(AsyncEventKind::SqDrained, a.qp.qp_num())], "nothing was under way");
    a.put(0, &[7; 64]);
    let (sges, to) = ([a.sge(0, 64)], (b.mr.addr() as u64, b.mr.rkey()));
    b.recv(5, &[b.sge(64, 64)]);
    a.send(&[
        SendWr::write(1, &sges, to.0, to.1).with_flags(SIGNALED),
        SendWr::send(2, &sges).with_flags(SIGNALED),
    ]);
    for _ in 0..100 {
        assert_eq!((a.poll(), b.poll()), (None, None));
    }
    assert_eq!(b.get(0, 64), [0; 64], "executed while it is drained");
    // The other direction continues.
    a.recv(9, &[a.sge(1024, 8)]);
    let from_b = [b.sge(0, 8)];
    b.send(&[SendWr::send(3, &from_b).with_flags(SIGNALED)]);
    assert_eq!((b.wait().status, a.wait().wr_id), (WcStatus::SUCCESS, 9));
    a.rts();
    assert_eq!((a.wait().wr_id, a.wait().wr_id, b.wait().wr_id), (1, 2, 5));
    assert_eq!((b.get(0, 64), events(&a)), (vec![7; 64], vec![]));
}

#[test]
fn drains_a_queue_after_outstanding_requests_complete() {
    for shared in [false, true] {
        let (mut a, mut b) = (End::default(), End::default());
        let mut srq = b.pd.create_srq(&farcall_verbs::SrqInitAttr { max_wr: 4, max_sge: 1 }).unwrap();
        if shared {
            b.qp = create_qp(&*b.pd, (&*b.cq, &*b.cq), Some(&*srq), QpCap::default(), QpType::Rc);
        }
        join(&mut a, &mut b, End::rts);
        let mut receive = |b: &mut End, wr_id: u64| {
            let sges = [b.sge(0, 64)];
            if shared {
                // SAFETY: the region outlives the receive.
                unsafe { srq.post_recv(&[farcall_verbs::RecvWr::new(wr_id, &sges)]) }.unwrap();
            } else {
                b.recv(wr_id, &sges);
            }
        };
        let sges = [a.sge(0, 8)];
        // Two wait for receives.
        a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED), SendWr::send(2, &sges).with_flags(SIGNALED)]);
        drain(&mut a, true);
        a.send(&[SendWr::send(3, &sges).with_flags(SIGNALED)]);
        receive(&mut b, 10);
        assert_eq!((a_and_b(&mut a, &mut b, 1), events(&a)), (vec![1], vec![]), "one is left");
        receive(&mut b, 11);
        receive(&mut b, 12);
        assert_eq!(a_and_b(&mut a, &mut b, 1), [2]);
        assert_eq!(wait_for_event(&a).kind, AsyncEventKind::SqDrained);
        for _ in 0..10 {
            assert_eq!((a.poll(), b.poll()), (None, None));
        }
        a.rts();
        assert_eq!(a_and_b(&mut a, &mut b, 1), [3]);
    }
}

/// Polls both ends until `n` sends have completed and `n` messages have arrived; returns the sends.
fn a_and_b(a: &mut End, b: &mut End, n: usize) -> Vec<u64> {
    let start = Instant::now();
    let (mut sent, mut got) = (Vec::new(), 0);
    while sent.len() < n || got < n {
        sent.extend(a.poll().map(|wc| (wc.status, wc.wr_id)));
        got += usize::from(b.poll().is_some());
        assert!(start.elapsed() < LOST, "{sent:?}, {got} received");
    }
    assert!(sent.iter().all(|(status, _)| status.is_success()), "{sent:?}");
    sent.into_iter().map(|(_, wr_id)| wr_id).collect()
}

#[test]
fn an_error_flushes_a_drained_queue() {
    let (mut a, _b) = pair();
    drain(&mut a, false);
    assert_eq!(events(&a), [], "not asked for");
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges), SendWr::send(2, &sges)]);
    a.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    let ends: Vec<_> = a.wait_n(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, WcStatus::WR_FLUSH_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn bounds_the_rnr_wait_by_target_timer_and_retry_count() {
    let patient = |retries: u8, of_target: u8| {
        let (mut a, mut b) = (End::default(), End::default());
        join(&mut a, &mut b, |end| {
            end.qp.modify(&QpAttr { timeout: Some(0), rnr_retry: Some(retries), ..QpAttr::rts(0) }).unwrap();
        });
        // The initiator's own timer would be 10 µs.
        let timer = |code: u8| QpAttr { min_rnr_timer: Some(RnrTimer(code)), ..QpAttr::to(QpState::Rts) };
        a.qp.modify(&timer(1)).unwrap();
        b.qp.modify(&timer(of_target)).unwrap();
        (a, b)
    };
    // Six times 655 ms.
    let (mut a, mut b) = patient(6, 0);
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        assert_eq!(a.poll(), None, "by its own timer it has given up");
    }
    b.recv(5, &[b.sge(0, 8)]);
    assert_eq!((a.wait().status, b.wait().wr_id), (WcStatus::SUCCESS, 5));
    for (retries, of_target) in [(6, 1), (1, 12), (0, 31), (0, 0)] {
        let (mut a, _b) = patient(retries, of_target);
        let sges = [a.sge(0, 8)];
        a.send(&[SendWr::send(1, &sges)]);
        assert_eq!(a.wait().status, WcStatus::RNR_RETRY_EXC_ERR, "{retries} times timer {of_target}");
    }
    // Seven means no limit.
    let (mut a, mut b) = patient(7, 1);
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        assert_eq!(a.poll(), None);
    }
    b.recv(5, &[b.sge(0, 8)]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
}

#[test]
fn an_owner_whose_send_waits_is_not_woken_for_nothing() {
    let (mut a, mut b) = pair();
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    a.cq.req_notify(Notify::Any).unwrap();
    assert_eq!(a.poll(), None);
    assert!(!readable(a.channel.fd(), 100), "an event without a completion");
    b.recv(1, &[b.sge(0, 8)]);
    assert_eq!(a.sleep(Notify::Any).status, WcStatus::SUCCESS);
}

#[test]
fn reports_communication_established_for_a_message_before_rts() {
    let (mut a, mut b) = (End::default(), End::default());
    let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
    a.init();
    b.init();
    b.rtr(qa);
    a.rtr(qb);
    a.rts();
    let sges = [a.sge(0, 8)];
    for round in 0..2 {
        b.recv(round, &[b.sge(0, 8)]);
        a.send(&[SendWr::send(round, &sges).with_flags(SIGNALED)]);
        assert_eq!((a.wait().status, b.wait().wr_id), (WcStatus::SUCCESS, round));
    }
    assert_eq!(events(&b), [(AsyncEventKind::CommEst, qb)], "once");
    b.rts();
    b.recv(9, &[b.sge(0, 8)]);
    a.send(&[SendWr::send(9, &sges).with_flags(SIGNALED)]);
    assert_eq!((a.wait().status, b.wait().wr_id, events(&b)), (WcStatus::SUCCESS, 9, vec![]));
}

/// A responder may wait for the event without polling (man `rdma_notify`).
#[test]
fn reports_a_message_before_rts_without_polls() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (mut a, mut b) = (End::of(qp_type, QpCap::default()), End::of(qp_type, QpCap::default()));
        let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
        for round in 0..2 {
            a.init();
            b.init();
            b.recv(round, &[b.sge(0, 8)]);
            b.recv(9, &[b.sge(8, 8)]);
            b.rtr(qa);
            a.rtr(qb);
            a.rts();
            assert_eq!(events(&b), [], "nothing has come");
            let sges = [a.sge(0, 8)];
            a.send(&[SendWr::send(round, &sges).with_flags(SIGNALED)]);
            let expected = AsyncEvent { kind: AsyncEventKind::CommEst, element: qb };
            assert_eq!(wait_for_event(&b), expected, "{qp_type:?}");
            b.rts();
            assert_eq!((a.wait().status, b.wait().wr_id), (WcStatus::SUCCESS, round));
            a.send(&[SendWr::send(9, &sges).with_flags(SIGNALED)]);
            assert_eq!((a.wait().status, b.wait().wr_id, events(&b)), (WcStatus::SUCCESS, 9, vec![]));
            // Again in the next incarnation.
            for end in [&mut a, &mut b] {
                end.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
            }
        }
    }
}

#[test]
fn reports_a_message_before_rts_on_a_shared_queue_without_polls() {
    let (mut a, mut b) = (End::default(), End::default());
    let mut srq = b.pd.create_srq(&farcall_verbs::SrqInitAttr { max_wr: 4, max_sge: 1 }).unwrap();
    b.qp = create_qp(&*b.pd, (&*b.cq, &*b.cq), Some(&*srq), QpCap::default(), QpType::Rc);
    let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
    a.init();
    b.init();
    let sges = [b.sge(0, 8)];
    // SAFETY: the region outlives the receive.
    unsafe { srq.post_recv(&[farcall_verbs::RecvWr::new(5, &sges)]) }.unwrap();
    b.rtr(qa);
    a.rtr(qb);
    a.rts();
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    let expected = AsyncEvent { kind: AsyncEventKind::CommEst, element: qb };
    assert_eq!(wait_for_event(&b), expected);
    b.rts();
    assert_eq!((a.wait().status, b.wait().wr_id, events(&b)), (WcStatus::SUCCESS, 5, vec![]));
}

#[test]
fn raises_events_on_the_device_of_the_object_without_polls() {
    let (mut a, b) = pair();
    let bystander = End::default();
    let fd = b.context.async_event_fd().unwrap();
    assert!(!readable(fd, 0));
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::write(1, &sges, b.mr.addr() as u64, b.mr.rkey() ^ 0x5A5A)]);
    assert_eq!(a.wait().status, WcStatus::REM_ACCESS_ERR);
    // No thread polls the target's completion queue.
    let expected = AsyncEvent { kind: AsyncEventKind::QpAccessErr, element: b.qp.qp_num() };
    assert_eq!((wait_for_event(&b), b.qp.state()), (expected, QpState::Err));
    assert_eq!((events(&a), events(&bystander), events(&b)), (vec![], vec![], vec![]));
    assert!(!readable(fd, 0));
}

#[test]
fn fails_a_large_message_into_deregistered_memory() {
    let (mut a, mut b) = pair();
    let gone = b.pd.alloc_mr(8192, ALL).unwrap();
    b.recv(1, &[Sge { addr: gone.addr() as u64, length: 8192, lkey: gone.lkey() }]);
    b.recv(2, &[]);
    drop(gone);
    let sges = [a.sge(0, 5000)];
    a.send(&[SendWr::send(1, &sges)]);
    assert_eq!((a.wait().status, a.qp.state()), (WcStatus::REM_OP_ERR, QpState::Err));
    let ends: Vec<_> = b.wait_n(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, WcStatus::LOC_PROT_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn fails_a_small_message_into_deregistered_memory() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (mut a, mut b) = (End::of(qp_type, QpCap::default()), End::of(qp_type, QpCap::default()));
        join(&mut a, &mut b, End::rts);
        let memory = vec![0_u64; 64];
        let base = memory.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: the memory belongs to the test and outlives its registrations.
        let register = || unsafe { b.pd.reg_mr(base, 512, ALL) }.unwrap();
        let (kept, gone) = (register(), register());
        let at = |lkey| [Sge { addr: base as u64, length: 8, lkey }];
        let (kept_at, gone_at) = (at(kept.lkey()), at(gone.lkey()));
        // Receives posted before and after it, with other memory, are not affected.
        b.recv(1, &kept_at);
        b.recv(2, &gone_at);
        b.recv(3, &kept_at);
        drop(gone);
        a.put(0, &7_u64.to_ne_bytes());
        let sges = [a.sge(0, 8)];
        a.send(&[SendWr::send(1, &sges)]);
        // SAFETY: the memory belongs to the test, and no request is outstanding.
        let word = || unsafe { base.cast::<u64>().read_volatile() };
        assert_eq!((b.wait().status, word()), (WcStatus::SUCCESS, 7));
        a.put(0, &8_u64.to_ne_bytes());
        let sges = [a.sge(0, 8)];
        a.send(&[SendWr::send(2, &sges)]);
        let ends: Vec<_> = b.wait_n(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ends, [(2, WcStatus::LOC_PROT_ERR), (3, WcStatus::WR_FLUSH_ERR)], "{qp_type:?}");
        if qp_type == QpType::Rc {
            assert_eq!((a.wait().status, a.qp.state()), (WcStatus::REM_OP_ERR, QpState::Err));
        }
        assert_eq!((word(), b.qp.state()), (7, QpState::Err), "nothing was written");
        drop(kept);
    }
}

/// No request waits over UC: a message held back in SQD completes when sending resumes, although there is no receive
/// for it.
#[test]
fn completes_a_held_uc_message_without_a_receive() {
    let (mut a, mut b) = (End::of(QpType::Uc, QpCap::default()), End::of(QpType::Uc, QpCap::default()));
    join(&mut a, &mut b, End::rts);
    a.qp.modify(&QpAttr::to(QpState::Sqd)).unwrap();
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    assert_eq!(a.poll(), None, "it is held");
    a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    let wc = a.wait();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::SUCCESS));
}
