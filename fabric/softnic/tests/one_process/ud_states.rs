//! Datagram queue pairs: their states, and what is refused.

use crate::support::datagrams::{Ud, arrives};
use crate::support::*;
use farcall_verbs::{
    AhAttr, AsyncEventKind, AtomicTarget, Error, Gid, Notify, QpAttr, QpCap, QpState, QpType, RecvWr, SendWr,
    Sge, UdTarget, Wc, WcStatus, WrOpcode,
};

#[test]
fn a_pair_drops_until_it_is_ready_and_again_when_it_is_not() {
    let mut a = Ud::new();
    let mut end = End::of(QpType::Ud, QpCap::default());
    end.init();
    let ah = end.pd.create_ah(&end.path()).unwrap();
    let mut b = Ud { end, ah };
    b.recv(1, 8);
    a.send(b.qpn(), QKEY, &[1; 8]);
    // Until the refusal is known. The queue pair may become ready only then, because otherwise the datagram would be in
    // time.
    a.until_counted("dropped_late", |_| ());
    b.end.rtr(0);
    assert_eq!(b.end.poll(), None);
    a.send(b.qpn(), QKEY, &[2; 8]);
    assert_eq!((b.take().1, b.end.qp.state()), (vec![2; 8], QpState::Rtr));
    b.end.rts();
    arrives(&mut a, &mut b, b"ready to send");
    // In the error state posted receives are flushed, and arriving datagrams are dropped.
    b.recv(5, 8);
    b.end.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    a.send(b.qpn(), QKEY, &[3; 8]);
    b.recv(6, 8);
    for wr_id in [5, 6] {
        let wc = b.end.sleep(Notify::Any);
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::WR_FLUSH_ERR));
    }
    let (sges, to) = ([b.end.sge(0, 8)], b.to(a.qpn(), QKEY));
    b.end.send(&[SendWr::send_to(7, &sges, to)]);
    assert_eq!((b.end.wait().status, a.end.poll()), (WcStatus::WR_FLUSH_ERR, None));
    // A new incarnation begins empty, and is reached by senders that knew the old one.
    b.end.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    b.end.connect(0);
    assert_eq!(b.end.poll(), None);
    arrives(&mut a, &mut b, b"a new life");
}

#[test]
fn reset_drops_datagrams_that_were_not_taken() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    arrives(&mut a, &mut b, b"first");
    b.recv(1, 8);
    a.send(b.qpn(), QKEY, &[1; 8]);
    b.end.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    b.end.connect(0);
    assert_eq!(b.end.poll(), None);
    arrives(&mut a, &mut b, b"second");
}

/// Sends that wait for a destination end with their queue pair.
#[test]
fn sends_that_wait_are_flushed_with_their_pair() {
    let mut b = Ud::new();
    for _ in 0..100 {
        let mut a = Ud::new();
        arrives(&mut a, &mut b, b"the way is known");
        let (sges, to) = ([a.end.sge(0, 8)], a.to(b.qpn(), QKEY));
        for wr_id in 0..3 {
            a.end.send(&[SendWr::send_to(wr_id, &sges, to).with_flags(SIGNALED)]);
        }
        a.end.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
        let ends = a.end.wait_n(3);
        assert_eq!(ends.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((a.end.poll(), b.end.poll()), (None, None));
        a.end.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
        a.end.connect(0);
        arrives(&mut a, &mut b, b"a new life");
        // Unless this thread was not scheduled for so long that they timed out.
        if ends.iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR) {
            return;
        }
    }
    panic!("nothing was flushed");
}

#[test]
fn a_senders_own_fault_stops_its_sends_until_rts_again() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    arrives(&mut a, &mut b, b"first");
    let wrong = [Sge { lkey: a.end.mr.lkey() ^ 1, ..a.end.sge(0, 8) }];
    let good = [a.end.sge(0, 8)];
    let to = a.to(b.qpn(), QKEY);
    b.recv(1, 8);
    a.recv(50, 8);
    a.end.send(&[SendWr::send_to(1, &wrong, to), SendWr::send_to(2, &good, to)]);
    let ends: Vec<_> = a.end.wait_n(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, WcStatus::LOC_PROT_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!((a.end.qp.state(), b.end.poll()), (QpState::Sqe, None));
    b.send(a.qpn(), QKEY, b"to a SQE");
    assert_eq!(a.take().1, b"to a SQE");
    a.end.rts();
    a.send(b.qpn(), QKEY, &[4; 8]);
    assert_eq!(b.take().1, [4; 8]);
}

#[test]
fn holds_datagrams_in_a_drained_queue_and_resumes_in_order() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    arrives(&mut a, &mut b, b"before");
    a.end.qp.modify(&QpAttr { en_sqd_async_notify: Some(true), ..QpAttr::to(QpState::Sqd) }).unwrap();
    let event = a.end.context.poll_async_event().expect("nothing is under way");
    assert_eq!((event.kind, event.element), (AsyncEventKind::SqDrained, a.qpn()));
    (0..4).for_each(|i| b.recv(i, 64));
    let to = a.to(b.qpn(), QKEY);
    a.end.put(0, &[1; 8]);
    let mut inline = [2_u8; 24];
    let (plain, copied) =
        ([a.end.sge(0, 8)], [Sge { addr: inline.as_mut_ptr() as u64, length: 24, lkey: 0 }]);
    a.end.send(&[
        SendWr::send_to(1, &plain, to).with_flags(SIGNALED),
        SendWr::send_to(2, &copied, to).with_imm(7).with_flags(SIGNALED | INLINE),
        SendWr::send_to(3, &[], to),
    ]);
    inline.fill(9);
    std::hint::black_box(&inline);
    // Receives continue.
    a.recv(9, 64);
    b.send(a.qpn(), QKEY, b"there");
    assert_eq!(a.take().1, b"there");
    assert_eq!((a.end.poll(), b.end.poll()), (None, None));
    a.end.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    assert_eq!(a.end.wait_n(2).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(b.take().1, [1; 8]);
    let (wc, payload) = b.take();
    assert_eq!((wc.imm(), payload), (Some(7), vec![2; 24]), "inline data is taken when it is posted");
    assert_eq!(b.take().1, []);
    assert_eq!(a.end.context.poll_async_event(), None, "told once");
}

#[test]
fn flushes_a_drained_datagram_queue_on_error_not_on_reset() {
    let (mut a, mut b) = (Ud::with(QpCap { max_send_wr: 3, ..QpCap::default() }), Ud::new());
    b.recv(1, 64);
    let (to, most) = (a.to(b.qpn(), QKEY), a.end.qp.cap().max_send_wr as usize);
    for again in [true, false] {
        a.end.qp.modify(&QpAttr::to(QpState::Sqd)).unwrap();
        let requests: Vec<_> = (0..most as u64 + 1).map(|i| SendWr::send_to(i, &[], to)).collect();
        // SAFETY: no memory is named.
        let full = unsafe { a.end.qp.post_send(&requests) }.unwrap_err();
        assert!(full.posted == most && matches!(*full.source, Error::Exhausted { .. }), "{full}");
        if again {
            a.end.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
            let ended = a.end.wait_n(most);
            let flushed = |(i, wc): (usize, &Wc)| (wc.wr_id, wc.status) == (i as u64, WcStatus::WR_FLUSH_ERR);
            assert!(ended.iter().enumerate().all(flushed), "{ended:?}");
        }
        a.end.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
        a.end.connect(0);
        assert_eq!((a.end.poll(), b.end.poll()), (None, None));
    }
    a.send(b.qpn(), QKEY, b"after");
    assert_eq!(b.take().1, b"after");
}

#[test]
fn what_a_datagram_pair_cannot_do_is_refused() {
    let (mut a, b) = (Ud::new(), Ud::new());
    let sges = [a.end.sge(0, 8)];
    let refused = |a: &mut Ud, wr: SendWr<'_>, why: &str| {
        // SAFETY: the request is refused before any memory is accessed.
        let error = unsafe { a.end.qp.post_send(&[wr]) }.unwrap_err();
        assert!(error.source.to_string().contains(why), "{error:?}");
    };
    let nowhere = UdTarget { ah: std::ptr::null(), ..a.to(b.qpn(), QKEY) };
    refused(&mut a, SendWr::send_to(1, &sges, nowhere), "address handle");
    let long = [a.end.sge(0, 2000)];
    let to = a.to(b.qpn(), QKEY);
    refused(&mut a, SendWr::send_to(1, &long, to).with_flags(INLINE), "max_inline_data");
    // A path to another host, through another port, from another GID.
    let path = a.end.path();
    for wrong in [
        AhAttr { dgid: Gid(*b"\xfd\x46\x43\x01 another one"), ..path },
        AhAttr { port_num: 2, ..path },
        AhAttr { sgid_index: 99, ..path },
    ] {
        assert!(matches!(a.end.pd.create_ah(&wrong), Err(Error::InvalidArgument { .. })), "{wrong:?}");
    }
    // States need their attributes.
    let mut end = End::of(QpType::Ud, QpCap::default());
    let no_qkey = QpAttr { qkey: None, ..QpAttr::init_datagrams(0) };
    assert!(end.qp.modify(&no_qkey).unwrap_err().to_string().contains("qkey"));
    assert_eq!(end.qp.state(), QpState::Reset);
    end.init();
    end.rtr(0);
    assert!(end.qp.modify(&QpAttr::to(QpState::Rts)).unwrap_err().to_string().contains("sq_psn"));
    // SAFETY: the request is refused before any memory is accessed.
    assert!(unsafe { end.qp.post_send(&[SendWr::send_to(1, &sges, to)]) }.is_err());
    let too_many = [end.sge(0, 1), end.sge(0, 1)];
    // SAFETY: the request is refused before any memory is accessed.
    assert!(unsafe { end.qp.post_recv(&[RecvWr::new(1, &too_many)]) }.is_err());
}

#[test]
fn ends_in_an_operation_error_what_datagrams_cannot_do() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    b.recv(1, 100);
    let (addr, rkey) = (b.end.mr.addr() as u64, b.end.mr.rkey());
    let sges = [a.end.sge(0, 8)];
    let word = AtomicTarget { remote_addr: addr, compare_add: 1, swap: 0, rkey };
    let foreign = UdTarget { ah: b.ah.as_raw(), ..a.to(b.qpn(), QKEY) };
    for wr in [
        SendWr::write(5, &sges, addr, rkey),
        SendWr::write(5, &sges, addr, rkey).with_imm(1),
        SendWr::read(5, &sges, addr, rkey),
        SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, 5, &sges, word),
        SendWr::atomic(WrOpcode::ATOMIC_CMP_AND_SWP, 5, &sges, word),
        // An address handle of another domain.
        SendWr::send_to(5, &sges, foreign),
    ] {
        a.end.send(&[wr]);
        let wc = a.end.wait();
        assert_eq!((wc.wr_id, wc.status), (5, WcStatus::LOC_QP_OP_ERR), "{:?}", wr.opcode);
        assert_eq!((a.end.qp.state(), b.end.poll()), (QpState::Sqe, None));
        a.end.rts();
    }
    a.send(b.qpn(), QKEY, b"after");
    assert_eq!(b.take().1, b"after");
}

#[test]
fn what_is_longer_than_the_mtu_is_not_sent() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    b.recv(1, 4500);
    let (sges, to) = ([a.end.sge(0, 4097)], a.to(b.qpn(), QKEY));
    a.end.send(&[SendWr::send_to(1, &sges, to)]);
    assert_eq!((a.end.wait().status, a.end.qp.state()), (WcStatus::LOC_LEN_ERR, QpState::Sqe));
    a.end.rts();
    a.send(b.qpn(), QKEY, &[2; 4096]);
    assert_eq!((b.take().1, b.end.poll()), (vec![2; 4096], None));
}
