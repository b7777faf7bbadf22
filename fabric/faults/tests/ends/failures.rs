//! Broken connections and queue pairs, refused calls.

use farcall_verbs::{
    AsyncEvent, AsyncEventKind, CqInitAttr, Error, QpAttr, QpCap, QpInitAttr, QpState, QpType, SendFlags,
    SendWr, Wc,
};

use crate::support::{connected, faults, open};

fn endings(wcs: &[Wc]) -> Vec<(u64, &'static str)> {
    wcs.iter().map(|wc| (wc.wr_id, wc.status.name())).collect()
}

#[test]
fn fails_one_request_and_flushes_the_rest_in_order() {
    let (mut one, mut other) = connected(&faults("seed=1,kill_qp=1,after=3"), QpType::Rc, 7);
    // The first message may wait for path resolution. Afterwards messages without faults have completed when
    // `post_send` returns.
    other.receive(99, 0, 8);
    one.send(9, 0).unwrap();
    assert_eq!(
        (endings(&one.take(1)), endings(&other.take(1))),
        (vec![(9, "SUCCESS")], vec![(99, "SUCCESS")])
    );
    other.receive(100, 0, 8);
    other.receive(101, 8, 8);
    one.receive(50, 0, 8);
    let sge = [one.sge(0, 8)];
    // One doorbell. The second request is not signalled and completes before the connection breaks.
    let wrs = [0, 1, 2, 3, 4].map(|wr_id| {
        let flags = if wr_id == 1 { SendFlags::empty() } else { SendFlags::SIGNALED };
        SendWr::send(wr_id, &sge).with_flags(flags)
    });
    // SAFETY: the region exists as long as the queue pair.
    unsafe { one.qp.post_send(&wrs) }.unwrap();
    assert_eq!(one.qp.state(), QpState::Err);
    let found = one.take(5);
    let (receives, sends): (Vec<Wc>, Vec<Wc>) = found.iter().partition(|wc| wc.wr_id == 50);
    assert_eq!(endings(&receives), [(50, "WR_FLUSH_ERR")]);
    assert_eq!(
        endings(&sends),
        [(0, "SUCCESS"), (2, "RETRY_EXC_ERR"), (3, "WR_FLUSH_ERR"), (4, "WR_FLUSH_ERR")]
    );
    assert_eq!(endings(&other.take(2)), [(100, "SUCCESS"), (101, "SUCCESS")]);
    assert_eq!(one.context.poll_async_event(), None, "a completion tells it");
}

/// A program that polls one completion queue finds the cause first, as with devices, whatever the delay of each
/// completion.
#[test]
fn reports_a_failure_before_the_flushes_that_it_causes() {
    for seed in 0..16 {
        let text = format!("seed={seed},delay=0ns..2ms");
        let (mut one, _other) = connected(&faults(&text), QpType::Rc, 7);
        for wr_id in 0..3 {
            one.receive(wr_id, 0, 8);
        }
        let sge = [one.sge(0, 8)];
        let nowhere = SendWr::write(9, &sge, 0, 0x5A5A_5A5A).with_flags(SendFlags::SIGNALED);
        // SAFETY: the region exists as long as the queue pair.
        unsafe { one.qp.post_send(&[nowhere]) }.unwrap();
        let flushed = [0, 1, 2].map(|wr_id| (wr_id, "WR_FLUSH_ERR"));
        assert_eq!(endings(&one.take(4)), [&[(9, "REM_ACCESS_ERR")], &flushed[..]].concat(), "{text}");
    }
}

#[test]
fn a_queue_pair_that_was_broken_can_be_used_again() {
    let (mut one, mut other) = connected(&faults("seed=1,kill_qp=1,limit=1"), QpType::Rc, 7);
    one.send(1, 0).unwrap();
    assert_eq!(endings(&one.take(1)), [(1, "RETRY_EXC_ERR")]);
    for end in [&mut one, &mut other] {
        end.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    }
    one.connect(other.qp.qp_num(), 7);
    other.connect(one.qp.qp_num(), 7);
    other.receive(2, 0, 8);
    one.put(0, 77);
    one.send(3, 0).unwrap();
    assert_eq!(endings(&one.take(1)), [(3, "SUCCESS")]);
    assert_eq!(endings(&other.take(1)), [(2, "SUCCESS")]);
    assert_eq!(other.get(0), 77);
}

#[test]
fn reports_a_broken_queue_pair_by_event_and_flushes_all() {
    for (qp_type, spec) in [
        (QpType::Rc, "seed=1,qp_fatal=1"),
        (QpType::Uc, "seed=1,kill_qp=1"),
        (QpType::Ud, "seed=1,kill_qp=1"),
    ] {
        let (mut one, other) = connected(&faults(spec), qp_type, 7);
        let sges = [one.sge(0, 8)];
        let ah = other.pd.create_ah(&other.path()).unwrap();
        let ud = farcall_verbs::UdTarget { ah: ah.as_raw(), remote_qpn: 1, remote_qkey: 0 };
        let wr = if qp_type == QpType::Ud { SendWr::send_to(1, &sges, ud) } else { SendWr::send(1, &sges) };
        // SAFETY: the region and the handle exist as long as the queue pair.
        unsafe { one.qp.post_send(&[wr.with_flags(SendFlags::SIGNALED)]) }.unwrap();
        assert_eq!(endings(&one.take(1)), [(1, "WR_FLUSH_ERR")], "{qp_type:?}");
        assert!(is_readable(one.context.async_event_fd().unwrap()));
        let event = AsyncEvent { kind: AsyncEventKind::QpFatal, element: one.qp.qp_num() };
        assert_eq!(one.context.poll_async_event(), Some(event));
        assert!(!is_readable(one.context.async_event_fd().unwrap()));
    }
}

fn is_readable(fd: std::os::fd::RawFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // SAFETY: the caller holds the object that owns the descriptor.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn a_queue_pair_that_only_receives_can_break_too() {
    let (mut one, _other) = connected(&faults("seed=1,qp_fatal=1,after=1"), QpType::Rc, 7);
    one.receive(1, 0, 8);
    assert_eq!(one.qp.state(), QpState::Rts);
    one.receive(2, 8, 8);
    assert_eq!(endings(&one.take(2)), [(1, "WR_FLUSH_ERR"), (2, "WR_FLUSH_ERR")]);
    assert_eq!(one.context.poll_async_event().unwrap().kind, AsyncEventKind::QpFatal);
}

#[test]
fn a_receiver_that_is_never_ready_uses_the_retries_up() {
    let (mut one, mut other) = connected(&faults("seed=1,rnr=1"), QpType::Rc, 2);
    other.receive(9, 0, 8);
    one.send(1, 0).unwrap();
    one.send(2, 0).unwrap();
    assert_eq!(endings(&one.take(2)), [(1, "RNR_RETRY_EXC_ERR"), (2, "WR_FLUSH_ERR")]);
    assert_eq!(one.take(0), []);
    assert_eq!(other.cq.poll(&mut [Wc::default()]).unwrap(), 0, "nothing arrived");
}

#[test]
fn a_full_queue_refuses_one_request_and_what_comes_after_it() {
    let (mut one, mut other) = connected(&faults("seed=1,post_full=1,after=2,limit=1"), QpType::Rc, 7);
    for wr_id in 0..4 {
        other.receive(wr_id, 0, 8);
    }
    let sges = [one.sge(0, 8)];
    let wrs = [1, 2, 3, 4].map(|wr_id| SendWr::send(wr_id, &sges).with_flags(SendFlags::SIGNALED));
    // SAFETY: the region exists as long as the queue pair.
    let error = unsafe { one.qp.post_send(&wrs) }.unwrap_err();
    assert_eq!(error.posted, 2);
    assert!(matches!(*error.source, Error::Exhausted { .. }), "{error}");
    // SAFETY: the region exists as long as the queue pair.
    unsafe { one.qp.post_send(&wrs[2..]) }.unwrap();
    let all = [(1, "SUCCESS"), (2, "SUCCESS"), (3, "SUCCESS"), (4, "SUCCESS")];
    assert_eq!(endings(&one.take(4)), all);
}

#[test]
fn objects_are_refused_for_want_of_memory() {
    let is_refusal = |error: &Error| {
        matches!(error, Error::Exhausted { .. }) && error.to_string().contains("FARCALL_FAULTS")
    };
    let context = open(&faults("seed=1,create_cq=1"));
    assert!(context.create_cq(&CqInitAttr { cqe: 1, channel: None }).is_err_and(|error| is_refusal(&error)));
    let context = open(&faults("seed=1,reg_mr=1"));
    let domain = context.alloc_pd().unwrap();
    let access = farcall_verbs::Access::LOCAL_WRITE;
    assert!(domain.alloc_mr(8, access).is_err_and(|error| is_refusal(&error)));
    let mut word = 0_u64;
    // SAFETY: the call is refused, so nothing is registered.
    let registered = unsafe { domain.reg_mr((&raw mut word).cast(), 8, access) };
    assert!(registered.is_err_and(|error| is_refusal(&error)));
    let context = open(&faults("seed=1,create_qp=1"));
    let cq = context.create_cq(&CqInitAttr { cqe: 1, channel: None }).unwrap();
    let init = QpInitAttr {
        send_cq: &*cq,
        recv_cq: &*cq,
        srq: None,
        cap: QpCap::default(),
        qp_type: QpType::Rc,
        sq_sig_all: true,
    };
    let made = context.alloc_pd().unwrap().create_qp(&init);
    assert!(made.is_err_and(|error| is_refusal(&error)));
}

/// As `ibv_wr_complete` posts: all requests of a batch or none.
#[test]
fn posts_a_checked_batch_completely_or_not_at_all() {
    let mut counts = (0, 0);
    for seed in 0..40 {
        // Combined with other faults, which count for the limit, and with one that ends the decisions.
        for more in ["", ",drop=0.3,limit=2", ",kill_qp=0.2", ",after=3"] {
            let spec = format!("seed={seed},post_full=0.2{more}");
            let (mut one, mut other) = connected(&faults(&spec), QpType::Rc, 7);
            for wr_id in 0..40 {
                other.receive(wr_id, 0, 8);
            }
            let sges = [one.sge(0, 8)];
            let batch = [0, 1, 2, 3, 4].map(|wr_id| SendWr::send(wr_id, &sges));
            for _ in 0..4 {
                // SAFETY: the region exists as long as the queue pair, and is not written to.
                match unsafe { one.qp.check_sends(&batch) } {
                    // SAFETY: the region exists as long as the queue pair, and is not written to.
                    Ok(()) => match unsafe { one.qp.post_send(&batch) } {
                        Ok(()) => counts.0 += 1,
                        Err(error) => panic!("{spec}: {} of a batch were posted: {error}", error.posted),
                    },
                    Err(error) => {
                        assert!(
                            error.posted < 5 && matches!(*error.source, Error::Exhausted { .. }),
                            "{error}"
                        );
                        counts.1 += 1;
                    }
                }
            }
        }
    }
    assert!(counts.0 > 100 && counts.1 > 100, "posted and refused: {counts:?}");
}
