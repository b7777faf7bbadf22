//! What goes wrong, goes wrong as on an RC queue pair of a real NIC: one clear error, nothing else changed.

mod support;

use farcall_softnic::SoftNic;
use farcall_verbs::{
    Access, AsyncEventKind, CqInitAttr, Error, Mtu, Notify, QpAttr, QpCap, QpInitAttr, QpState, QpType,
    RawMr, RecvWr, Revoked, RnrTimer, SendFlags, SendWr, Sge, Wc, WcStatus,
};
use support::*;

const READ_ONLY: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ);
const WRITE_ONLY: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// What a one-sided request looks like in these tests.
#[derive(Clone, Copy, Debug)]
enum OneSided {
    Write,
    WriteImm,
    Read,
}

const ONE_SIDED: [OneSided; 3] = [OneSided::Write, OneSided::WriteImm, OneSided::Read];

impl OneSided {
    fn request<'a>(self, sges: &'a [Sge], addr: u64, rkey: u32) -> SendWr<'a> {
        match self {
            Self::Write => SendWr::write(7, sges, addr, rkey),
            Self::WriteImm => SendWr::write(7, sges, addr, rkey).with_imm(1),
            Self::Read => SendWr::read(7, sges, addr, rkey),
        }
    }
}

/// Posts one request of 8 bytes and returns how it ended.
fn attempt(a: &mut End, op: OneSided, addr: u64, len: usize, rkey: u32) -> WcStatus {
    let sges = [a.sge(0, len)];
    a.send(&[op.request(&sges, addr, rkey).with_flags(SIGNALED)]);
    let wc = a.wait();
    assert_eq!(wc.wr_id, 7);
    wc.status
}

/// The same request on a fresh pair, with the target's memory checked afterwards.
fn attempt_afresh(op: OneSided, target: impl FnOnce(&End) -> (u64, usize, u32)) -> (WcStatus, End, End) {
    let (mut a, mut b) = pair();
    if matches!(op, OneSided::WriteImm) {
        b.recv(70, &[]);
    }
    b.put(0, &vec![0x5A; b.mr.len_bytes()]);
    let (addr, len, rkey) = target(&b);
    let status = attempt(&mut a, op, addr, len, rkey);
    if !status.is_success() {
        assert!(b.get(0, b.mr.len_bytes()).iter().all(|byte| *byte == 0x5A), "{op:?} changed the target");
        assert_eq!(a.get(0, 64), vec![0; 64], "{op:?} changed the initiator");
    }
    (status, a, b)
}

#[test]
fn a_wrong_rkey_is_a_remote_access_error_at_both_ends() {
    for op in ONE_SIDED {
        for wrong in [1_u32, 1 << 8, u32::MAX] {
            let (status, a, mut b) =
                attempt_afresh(op, |b| (b.mr.addr() as u64, 8, b.mr.rkey().wrapping_add(wrong)));
            assert_eq!((status, a.qp.state()), (WcStatus::REM_ACCESS_ERR, QpState::Err), "{op:?} {wrong}");
            // The responder fails too; a queue pair without a receive tells it by an asynchronous event.
            if matches!(op, OneSided::WriteImm) {
                let wc = b.wait();
                assert_eq!((wc.wr_id, wc.status), (70, WcStatus::WR_FLUSH_ERR));
            }
            while b.qp.state() != QpState::Err {
                assert_eq!(b.poll(), None);
            }
            let told = std::iter::from_fn(|| b.context.poll_async_event())
                .any(|e| e.element == b.qp.qp_num() && e.kind == AsyncEventKind::QpAccessErr);
            // No other test of this process takes events.
            assert!(told, "no asynchronous event");
        }
    }
}

#[test]
fn bounds_of_a_region_are_exact() {
    let page = 4096_u64;
    for op in ONE_SIDED {
        // From the start and from the end of the region, length, and whether that is inside.
        let cases = [
            (0_i64, 8, true),
            (-8, 8, false),
            (-1, 8, false),
            (4 << 20, 8, false),
            ((4 << 20) - 8, 8, true),
            ((4 << 20) - 7, 8, false),
            ((4 << 20) - page as i64, page as usize, true),
            ((4 << 20) - page as i64 + 1, page as usize, false),
        ];
        for (offset, len, inside) in cases {
            let at = |b: &End| ((b.mr.addr() as u64).wrapping_add_signed(offset), len, b.mr.rkey());
            let (status, ..) = attempt_afresh(op, at);
            let expected = if inside { WcStatus::SUCCESS } else { WcStatus::REM_ACCESS_ERR };
            assert_eq!(status, expected, "{op:?} at {offset}, {len} bytes");
        }
        for addr in [0, u64::MAX, u64::MAX - 7] {
            let (status, ..) = attempt_afresh(op, |b| (addr, 8, b.mr.rkey()));
            assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{op:?} at {addr:#x}");
        }
    }
}

#[test]
fn permissions_of_region_and_queue_pair_are_both_needed() {
    let cases = [
        (ALL, READ_ONLY, false, true),
        (READ_ONLY, ALL, false, true),
        (ALL, WRITE_ONLY, true, false),
        (WRITE_ONLY, ALL, true, false),
        (ALL, Access::LOCAL_WRITE, false, false),
        (Access::empty(), ALL, false, false),
        (ALL, ALL, true, true),
    ];
    for (of_qp, of_mr, may_write, may_read) in cases {
        for op in ONE_SIDED {
            let (mut a, mut b) = (End::default(), End::new(4096, of_mr, QpCap::default()));
            let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
            a.init();
            b.qp.modify(&QpAttr::init(of_qp)).unwrap();
            a.rtr(qb);
            b.rtr(qa);
            a.rts();
            b.rts();
            if matches!(op, OneSided::WriteImm) {
                b.recv(1, &[]);
            }
            let allowed = if matches!(op, OneSided::Read) { may_read } else { may_write };
            let status = attempt(&mut a, op, b.mr.addr() as u64, 8, b.mr.rkey());
            let need = if matches!(op, OneSided::Read) { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
            let expected = match (allowed, of_qp.contains(need)) {
                (true, _) => WcStatus::SUCCESS,
                // The queue pair does not take such requests at all.
                (false, false) => WcStatus::REM_INV_REQ_ERR,
                (false, true) => WcStatus::REM_ACCESS_ERR,
            };
            assert_eq!(status, expected, "{op:?} queue pair {of_qp:?} region {of_mr:?}");
        }
    }
}

#[test]
fn a_key_of_another_domain_is_wrong_on_either_side() {
    let (mut a, b) = pair();
    let other = b.context.alloc_pd().unwrap().alloc_mr(4096, ALL).unwrap();
    let status = attempt(&mut a, OneSided::Write, other.addr() as u64, 8, other.rkey());
    assert_eq!(status, WcStatus::REM_ACCESS_ERR);

    let (mut a, b) = pair();
    let foreign = [Sge { addr: other.addr() as u64, length: 8, lkey: other.lkey() }];
    a.send(&[SendWr::write(1, &foreign, b.mr.addr() as u64, b.mr.rkey())]);
    assert_eq!((a.wait().status, a.qp.state()), (WcStatus::LOC_PROT_ERR, QpState::Err));
}

#[test]
fn a_deregistered_key_is_dead_also_when_its_place_is_used_again() {
    let (mut a, mut b) = pair();
    assert_eq!(attempt(&mut a, OneSided::Write, b.mr.addr() as u64, 8, b.mr.rkey()), WcStatus::SUCCESS);
    let mut old = b.pd.alloc_mr(4096, ALL).unwrap();
    // The initiator has the mapping in its cache; only the generation tells.
    assert_eq!(attempt(&mut a, OneSided::Write, old.addr() as u64, 8, old.rkey()), WcStatus::SUCCESS);
    for _ in 0..600 {
        let (addr, key) = (old.addr() as u64, old.rkey());
        assert_eq!(old.dereg(), Revoked::Now);
        old = b.pd.alloc_mr(4096, ALL).unwrap();
        assert_ne!((old.addr() as u64, old.rkey()), (addr, key), "a key comes back at once");
        assert_eq!(attempt(&mut a, OneSided::Write, old.addr() as u64, 8, old.rkey()), WcStatus::SUCCESS);
    }
    let (addr, key) = (old.addr() as u64, old.rkey());
    assert_eq!(old.dereg(), Revoked::Now);
    let again = b.pd.alloc_mr(4096, ALL).unwrap();
    assert_eq!(attempt(&mut a, OneSided::Write, addr, 8, key), WcStatus::REM_ACCESS_ERR);
    assert_eq!((again.len_bytes(), b.poll()), (4096, None));
}

#[test]
fn a_wrong_local_element_is_a_local_protection_error() {
    let (a, b) = pair();
    let read_only = a.pd.alloc_mr(4096, Access::empty()).unwrap();
    let good = a.sge(0, 8);
    let end = a.mr.len_bytes() as u64;
    let wrong = [
        Sge { lkey: good.lkey ^ 1, ..good },
        Sge { lkey: u32::MAX, ..good },
        Sge { addr: good.addr + end - 7, ..good },
        Sge { addr: good.addr - 1, ..good },
        Sge { addr: u64::MAX - 3, ..good },
        Sge { addr: good.addr, length: end as u32 + 1, lkey: good.lkey },
    ];
    drop((a, b));
    for sge in wrong {
        for what in 0..3 {
            let (mut a, mut b) = pair();
            let sge = Sge {
                addr: sge.addr.wrapping_sub(good.addr).wrapping_add(a.mr.addr() as u64),
                lkey: if sge.lkey == good.lkey { a.mr.lkey() } else { sge.lkey ^ good.lkey ^ a.mr.lkey() },
                ..sge
            };
            let sges = [sge];
            b.recv(1, &[b.sge(0, 64)]);
            let to = (b.mr.addr() as u64, b.mr.rkey());
            a.send(&[match what {
                0 => SendWr::write(1, &sges, to.0, to.1),
                1 => SendWr::read(1, &sges, to.0, to.1),
                _ => SendWr::send(1, &sges),
            }]);
            assert_eq!((a.wait().status, a.qp.state()), (WcStatus::LOC_PROT_ERR, QpState::Err));
            assert_eq!((b.poll(), b.qp.state()), (None, QpState::Rts), "the target must not notice");
            // A receive is checked when it is posted.
            // SAFETY: refused before any memory is touched.
            assert!(unsafe { b.qp.post_recv(&[RecvWr::new(2, &sges)]) }.is_err());
        }
    }
    // A READ writes the local element.
    let (mut a, b) = pair();
    let no_write = a.pd.alloc_mr(4096, Access::empty()).unwrap();
    let sges = [Sge { addr: no_write.addr() as u64, length: 8, lkey: no_write.lkey() }];
    a.send(&[SendWr::write(1, &sges, b.mr.addr() as u64, b.mr.rkey()).with_flags(SIGNALED)]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    // SAFETY: refused before any memory is touched.
    assert!(unsafe { a.qp.post_recv(&[RecvWr::new(2, &sges)]) }.is_err());
    a.send(&[SendWr::read(1, &sges, b.mr.addr() as u64, b.mr.rkey())]);
    assert_eq!(a.wait().status, WcStatus::LOC_PROT_ERR);
    assert_eq!(read_only.access(), Access::empty());
}

#[test]
fn a_message_longer_than_its_receive_fails_both_ends() {
    for (len, room) in [(9, 8), (1, 0), (1024, 1023), (1025, 1024), (100_000, 99_999)] {
        let (mut a, mut b) = pair();
        b.put(0, &vec![0x5A; len + 64]);
        b.recv(1, &[b.sge(0, room)]);
        b.recv(2, &[b.sge(0, len)]);
        let sges = [a.sge(0, len)];
        a.send(&[SendWr::send(10, &sges), SendWr::send(11, &sges)]);
        let ends: Vec<_> = a.wait_n(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(
            ends,
            [(10, WcStatus::REM_INV_REQ_ERR), (11, WcStatus::WR_FLUSH_ERR)],
            "{len} into {room}"
        );
        let ends: Vec<_> = b.wait_n(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ends, [(1, WcStatus::LOC_LEN_ERR), (2, WcStatus::WR_FLUSH_ERR)], "{len} into {room}");
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
        assert_eq!(b.get(room, 64), vec![0x5A; 64], "bytes beyond the receive were written");
    }
}

fn impatient_pair() -> (End, End) {
    let (mut a, mut b) = (End::default(), End::default());
    let rts = |end: &mut End| end.qp.modify(&QpAttr { rnr_retry: Some(1), ..patient() }).unwrap();
    join(&mut a, &mut b, rts);
    (a, b)
}

#[test]
fn no_receive_ends_after_the_retries_and_the_rest_is_flushed() {
    for sleeps in [false, true] {
        let (mut a, mut b) = impatient_pair();
        let sges = [a.sge(0, 8)];
        a.send(&[SendWr::send(1, &sges), SendWr::write(2, &sges, b.mr.addr() as u64, b.mr.rkey())]);
        a.send(&[SendWr::send(3, &sges)]);
        let next = |a: &mut End| if sleeps { a.sleep(Notify::Any) } else { a.wait() };
        let ends: Vec<(u64, WcStatus)> =
            (0..3).map(|_| next(&mut a)).map(|wc| (wc.wr_id, wc.status)).collect();
        let flushed = WcStatus::WR_FLUSH_ERR;
        assert_eq!(ends, [(1, WcStatus::RNR_RETRY_EXC_ERR), (2, flushed), (3, flushed)]);
        assert_eq!((a.qp.state(), b.poll()), (QpState::Err, None));
    }
}

#[test]
fn a_receive_in_time_saves_the_send() {
    let (mut a, mut b) = (End::default(), End::default());
    // Eight waits of 491 ms.
    join(&mut a, &mut b, |end| {
        end.qp.modify(&QpAttr { rnr_retry: Some(6), ..QpAttr::rts(0) }).unwrap();
    });
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    assert_eq!(a.poll(), None);
    b.recv(5, &[b.sge(0, 8)]);
    assert_eq!((a.wait().status, b.wait().wr_id), (WcStatus::SUCCESS, 5));
}

/// Every request to a target that does not respond ends in RETRY_EXC_ERR, whatever kind it is.
fn expect_retry_exceeded(a: &mut End, b_addr: u64, b_rkey: u32) {
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges), SendWr::read(2, &sges, b_addr, b_rkey)]);
    let ends: Vec<_> = a.wait_n(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, WcStatus::RETRY_EXC_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!(a.qp.state(), QpState::Err);
}

/// RTS with quick transport retries, but receiver-not-ready retries for ever.
fn rts_patient_for_receives(end: &mut End) {
    end.qp.modify(&QpAttr { timeout: Some(8), retry_cnt: Some(1), ..QpAttr::rts(0) }).unwrap();
}

#[test]
fn a_target_that_is_not_ready_to_receive_does_not_answer() {
    for to in [QpState::Init, QpState::Err, QpState::Reset] {
        for with_receive in [false, true] {
            let (mut a, mut b) = (End::default(), End::default());
            let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
            a.init();
            b.init();
            a.rtr(qb);
            if with_receive {
                b.recv(1, &[b.sge(0, 64)]);
            }
            if to != QpState::Init {
                b.rtr(qa);
                b.qp.modify(&QpAttr::to(to)).unwrap();
            }
            rts_patient_for_receives(&mut a);
            expect_retry_exceeded(&mut a, b.mr.addr() as u64, b.mr.rkey());
        }
    }
}

#[test]
fn a_target_that_becomes_ready_in_time_is_served() {
    let (mut a, mut b) = (End::default(), End::default());
    let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
    a.init();
    b.init();
    a.rtr(qb);
    a.rts();
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    b.recv(9, &[b.sge(0, 8)]);
    assert_eq!((a.poll(), b.poll()), (None, None), "not before the target is ready to receive");
    b.rtr(qa);
    assert_eq!((a.wait().status, b.wait().wr_id), (WcStatus::SUCCESS, 9));
}

#[test]
fn a_wait_for_the_peer_and_a_wait_for_a_receive_have_timers_of_their_own() {
    let (mut a, mut b) = (End::default(), End::default());
    let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
    a.init();
    b.init();
    a.rtr(qb);
    // About 270 ms for the peer, for ever for a receive.
    a.qp.modify(&QpAttr { timeout: Some(15), retry_cnt: Some(1), ..QpAttr::rts(0) }).unwrap();
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    b.rtr(qa);
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(500) {
        assert_eq!(a.poll(), None, "the peer is ready and may take its time to post a receive");
    }
    b.recv(1, &[b.sge(0, 8)]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
}

#[test]
fn a_peer_that_closes_while_a_send_waits_for_a_receive_ends_the_wait() {
    for how in 0..3 {
        let (mut a, mut b) = (End::default(), End::default());
        join(&mut a, &mut b, rts_patient_for_receives);
        let sges = [a.sge(0, 8)];
        a.send(&[SendWr::send(1, &sges)]);
        assert_eq!(a.poll(), None);
        match how {
            0 => b.qp.modify(&QpAttr::to(QpState::Err)).unwrap(),
            1 => b.qp.modify(&QpAttr::to(QpState::Reset)).unwrap(),
            _ => drop(b),
        }
        assert_eq!((a.wait().status, a.qp.state()), (WcStatus::RETRY_EXC_ERR, QpState::Err), "case {how}");
    }
}

/// Two pairs on one queue, and on each a send that waits: what the peers sent before they went comes before the failures of
/// either pair.
#[test]
fn failures_come_after_what_the_peers_did_before() {
    let (mut a, mut b) = (End::default(), End::default());
    let (mut c, mut d) = (a.sibling(), End::default());
    let cap = QpCap::default();
    let (cq, srq, qp_type) = (&*a.cq, None, QpType::Rc);
    c.qp =
        a.pd.create_qp(&QpInitAttr { send_cq: cq, recv_cq: cq, srq, cap, qp_type, sq_sig_all: false })
            .unwrap();
    join(&mut a, &mut b, rts_patient_for_receives);
    join(&mut c, &mut d, rts_patient_for_receives);
    for end in [&mut a, &mut c] {
        end.recv(100, &[end.sge(64, 8)]);
        let sges = [end.sge(0, 8)];
        end.send(&[SendWr::send(1, &sges)]);
    }
    for end in [&mut b, &mut d] {
        let sges = [end.sge(0, 8)];
        end.send(&[SendWr::send(7, &sges).with_flags(SendFlags::SIGNALED)]);
        assert_eq!(end.wait().status, WcStatus::SUCCESS);
    }
    drop((b, d));
    let all = a.wait_n(4);
    let statuses: Vec<(u64, WcStatus)> = all.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(statuses[..2], [(100, WcStatus::SUCCESS); 2], "{statuses:?}");
    assert_eq!(statuses[2..], [(1, WcStatus::RETRY_EXC_ERR); 2], "{statuses:?}");
}

/// A pair that always has something more does not keep the failure of another from being told.
#[test]
fn failures_do_not_wait_for_ever_on_a_busy_queue() {
    let (mut a, mut b) = (End::default(), End::default());
    let (mut busy, mut d) = (a.sibling(), End::default());
    let (cq, srq, qp_type) = (&*a.cq, None, QpType::Rc);
    let cap = QpCap { max_recv_wr: 4096, ..QpCap::default() };
    busy.qp =
        a.pd.create_qp(&QpInitAttr { send_cq: cq, recv_cq: cq, srq, cap, qp_type, sq_sig_all: false })
            .unwrap();
    join(&mut a, &mut b, rts_patient_for_receives);
    join(&mut busy, &mut d, rts_patient_for_receives);
    for _ in 0..4096 {
        busy.recv(100, &[]);
    }
    for _ in 0..4096 {
        d.send(&[SendWr::send(7, &[])]);
    }
    a.recv(1, &[a.sge(0, 8)]);
    a.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    let told = (0..4096).position(|_| !a.wait().status.is_success());
    assert!(told.is_some_and(|at| at > 0), "{told:?}");
}

#[test]
fn the_error_state_flushes_sends_and_receives_in_order() {
    for sleeps in [false, true] {
        let (mut a, b) = pair();
        for i in 0..20 {
            a.recv(100 + i, &[a.sge(0, 8)]);
        }
        let sges = [a.sge(0, 8)];
        for i in 0..20 {
            a.send(&[SendWr::send(i, &sges)]);
        }
        a.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
        a.recv(120, &[a.sge(0, 8)]);
        a.send(&[SendWr::send(20, &sges), SendWr::write(21, &sges, b.mr.addr() as u64, b.mr.rkey())]);
        let next = |a: &mut End| if sleeps { a.sleep(Notify::Solicited) } else { a.wait() };
        let all: Vec<Wc> = (0..43).map(|_| next(&mut a)).collect();
        assert!(all.iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR && wc.qp_num == a.qp.qp_num()));
        let ids = |receives: bool| -> Vec<u64> {
            all.iter().map(|wc| wc.wr_id).filter(|id| (*id >= 100) == receives).collect()
        };
        assert_eq!(ids(false), (0..22).collect::<Vec<_>>());
        assert_eq!(ids(true), (100..121).collect::<Vec<_>>());
        assert_eq!(a.poll(), None);
    }
}

#[test]
fn each_state_allows_what_the_specification_allows() {
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err] {
        let (mut a, b) = (End::default(), End::default());
        let up_to =
            |s: QpState| state != QpState::Reset && (state == QpState::Err || state as u32 >= s as u32);
        if up_to(QpState::Init) {
            a.init();
        }
        if up_to(QpState::Rtr) {
            a.rtr(b.qp.qp_num());
        }
        if up_to(QpState::Rts) {
            a.rts();
        }
        if state == QpState::Err {
            a.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
        }
        assert_eq!(a.qp.state(), state);
        let sges = [a.sge(0, 8)];
        // SAFETY: the region outlives the queue pair's requests.
        let (send, recv) =
            unsafe { (a.qp.post_send(&[SendWr::send(1, &sges)]), a.qp.post_recv(&[RecvWr::new(2, &sges)])) };
        assert_eq!(send.is_ok(), matches!(state, QpState::Rts | QpState::Err), "send in {state}");
        assert_eq!(recv.is_ok(), state != QpState::Reset, "receive in {state}");
        for refused in [send, recv].into_iter().filter_map(Result::err) {
            assert!(matches!(refused.source, Error::InvalidState { .. }) && refused.posted == 0);
            assert!(refused.to_string().contains(&state.to_string()), "{refused}");
        }
    }
}

#[test]
fn transitions_need_their_attributes_and_a_refusal_changes_nothing() {
    let (mut a, mut b) = (End::default(), End::default());
    let refuse = |end: &mut End, attr: QpAttr, name: &str| {
        let before = end.qp.state();
        let error = end.qp.modify(&attr).unwrap_err().to_string();
        assert!(error.contains(name), "{name} is missing in: {error}");
        assert_eq!(end.qp.state(), before);
    };
    refuse(&mut a, QpAttr { port_num: None, ..QpAttr::init(ALL) }, "port_num");
    refuse(&mut a, QpAttr { access: None, ..QpAttr::init(ALL) }, "access");
    refuse(&mut a, QpAttr { pkey_index: None, ..QpAttr::init(ALL) }, "pkey_index");
    refuse(&mut a, QpAttr { port_num: Some(2), ..QpAttr::init(ALL) }, "port 2");
    a.init();
    b.init();
    let rtr = QpAttr::rtr(b.qp.qp_num(), 0, a.path(), Mtu::Mtu4096);
    refuse(&mut a, QpAttr { dest_qp_num: None, ..rtr }, "dest_qp_num");
    refuse(&mut a, QpAttr { ah: None, ..rtr }, "ah");
    refuse(&mut a, QpAttr { path_mtu: None, ..rtr }, "path_mtu");
    refuse(&mut a, QpAttr { rq_psn: None, ..rtr }, "rq_psn");
    refuse(&mut a, QpAttr { min_rnr_timer: None, ..rtr }, "min_rnr_timer");
    refuse(&mut a, QpAttr { max_dest_rd_atomic: None, ..rtr }, "max_dest_rd_atomic");
    refuse(&mut a, QpAttr { dest_qp_num: Some(1 << 24), ..rtr }, "24 bits");
    let mut elsewhere = a.path();
    elsewhere.dgid.0[9] ^= 1;
    refuse(&mut a, QpAttr { ah: Some(elsewhere), ..rtr }, "GID");
    refuse(&mut a, QpAttr { dest_qp_num: Some(b.qp.qp_num() ^ 0x800), ..rtr }, "no such queue pair");
    refuse(&mut a, QpAttr::rts(0), "INIT");
    a.qp.modify(&rtr).unwrap();
    let rts = QpAttr::rts(0);
    refuse(&mut a, QpAttr { sq_psn: None, ..rts }, "sq_psn");
    refuse(&mut a, QpAttr { timeout: None, ..rts }, "timeout");
    refuse(&mut a, QpAttr { retry_cnt: None, ..rts }, "retry_cnt");
    refuse(&mut a, QpAttr { rnr_retry: None, ..rts }, "rnr_retry");
    refuse(&mut a, QpAttr { max_rd_atomic: None, ..rts }, "max_rd_atomic");
    refuse(&mut a, QpAttr::init(ALL), "RTR");
    a.rts();
    refuse(&mut a, rtr, "RTS");
    refuse(&mut a, QpAttr::to(QpState::Sqe), "RTS");
    // After all the refusals the pair works.
    b.rtr(a.qp.qp_num());
    b.recv(1, &[b.sge(0, 8)]);
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    assert_eq!((a.wait().status, b.wait().status), (WcStatus::SUCCESS, WcStatus::SUCCESS));
}

#[test]
fn a_full_queue_refuses_and_keeps_what_was_posted() {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
    let (mut a, mut b) = pair_with(cap, cap);
    let depth = a.qp.cap().max_send_wr as u64;
    let sges = [a.sge(0, 8)];
    let wrs: Vec<_> = (0..depth + 2).map(|i| SendWr::send(i, &sges).with_flags(SIGNALED)).collect();
    // SAFETY: the region outlives the requests.
    let error = unsafe { a.qp.post_send(&wrs) }.unwrap_err();
    assert_eq!((error.posted as u64, a.qp.state()), (depth, QpState::Rts));
    assert!(matches!(error.source, Error::Exhausted { .. }), "{error}");
    let into = [b.sge(0, 8)];
    let recvs: Vec<_> = (0..b.qp.cap().max_recv_wr as u64 + 1).map(|i| RecvWr::new(i, &into)).collect();
    // SAFETY: as above.
    let error = unsafe { b.qp.post_recv(&recvs) }.unwrap_err();
    assert_eq!(error.posted, recvs.len() - 1);
    let sent: Vec<u64> = a.wait_n(depth as usize).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(sent, (0..depth).collect::<Vec<_>>());
    assert!(b.wait_n(depth as usize).iter().all(|wc| wc.status.is_success()));
    assert_eq!((a.poll(), b.poll()), (None, None));
}

#[test]
fn objects_can_be_destroyed_in_any_order() {
    for order in 0..24 {
        let (mut a, mut b) = pair();
        a.recv(1, &[a.sge(0, 8)]);
        b.recv(1, &[b.sge(0, 8)]);
        let sges = [a.sge(0, 8)];
        a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED), SendWr::send(2, &sges)]);
        // Both ends know each other; the second waits for a receive.
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        let End { context, pd, channel, cq, qp, mr } = a;
        let mut parts: Vec<Box<dyn std::any::Any>> =
            vec![Box::new((context, pd)), Box::new(channel), Box::new(cq), Box::new(qp)];
        let mut rest = order;
        while !parts.is_empty() {
            let at = rest % parts.len();
            rest /= parts.len().max(2);
            drop(parts.swap_remove(at));
        }
        assert_eq!(b.wait().status, WcStatus::SUCCESS, "what was sent before has arrived");
        // The memory may go once the queue pair is gone.
        drop(mr);
    }
}

#[test]
fn completions_of_a_destroyed_queue_pair_are_not_delivered_and_its_number_rests() {
    let (a, mut b) = pair();
    let End { pd, mut cq, qp, mr, .. } = a;
    let mut qp = qp;
    let sges = [Sge { addr: mr.addr() as u64, length: 8, lkey: mr.lkey() }];
    // SAFETY: the region lives on.
    unsafe { qp.post_send(&[SendWr::write(1, &sges, b.mr.addr() as u64, b.mr.rkey()).with_flags(SIGNALED)]) }
        .unwrap();
    let number = qp.qp_num();
    drop(qp);
    assert_eq!((cq.poll(&mut [Wc::default(); 4]).unwrap(), b.poll()), (0, None));
    for _ in 0..50 {
        let attr = QpInitAttr {
            send_cq: &*cq,
            recv_cq: &*cq,
            srq: None,
            cap: QpCap::default(),
            qp_type: QpType::Rc,
            sq_sig_all: false,
        };
        assert_ne!(pd.create_qp(&attr).unwrap().qp_num(), number);
    }
}

#[test]
fn reset_forgets_everything_and_the_pair_connects_to_another_peer() {
    let (mut a, mut b) = pair();
    let mut c = End::default();
    a.recv(1, &[a.sge(0, 8)]);
    let sges = [a.sge(0, 8)];
    let written = SendWr::write(0, &sges, b.mr.addr() as u64, b.mr.rkey()).with_flags(SIGNALED);
    a.send(&[written]);
    a.send(&[SendWr::send(1, &sges)]);
    a.send(&[SendWr::write(2, &sges, b.mr.addr() as u64, b.mr.rkey()).with_flags(SIGNALED)]);
    a.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    assert_eq!((a.qp.state(), a.poll()), (QpState::Reset, None), "RESET delivers nothing of the old life");
    // The old peer finds nobody.
    let from_b = [b.sge(0, 8)];
    rts_patient_for_receives(&mut b);
    b.send(&[SendWr::write(3, &from_b, a.mr.addr() as u64, a.mr.rkey())]);
    let (qa, qc) = (a.qp.qp_num(), c.qp.qp_num());
    a.init();
    c.init();
    a.rtr(qc);
    c.rtr(qa);
    a.rts();
    c.rts();
    for round in 0..200 {
        a.recv(round, &[a.sge(0, 8)]);
        let from_c = [c.sge(0, 8)];
        c.put(0, &round.to_le_bytes());
        c.send(&[SendWr::send(round, &from_c).with_flags(SIGNALED)]);
        assert_eq!((c.wait().status, a.wait().wr_id), (WcStatus::SUCCESS, round));
        assert_eq!(a.get(0, 8), round.to_le_bytes());
    }
    assert_eq!(b.wait().status, WcStatus::RETRY_EXC_ERR);
}

#[test]
fn a_peer_that_was_not_reset_does_not_swallow_messages() {
    let (mut a, mut b) = pair();
    for i in 0..3 {
        b.recv(i, &[b.sge(0, 8)]);
    }
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    assert_eq!((a.wait().status, b.wait().status), (WcStatus::SUCCESS, WcStatus::SUCCESS));
    // We begin a new life; the peer does not know and stays where it was.
    a.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    a.init();
    if a.qp.modify(&QpAttr::rtr(b.qp.qp_num(), 0, a.path(), Mtu::Mtu4096)).is_err() {
        return;
    }
    a.rts_impatient();
    a.send(&[SendWr::send(2, &sges).with_flags(SIGNALED)]);
    if a.wait().status == WcStatus::SUCCESS {
        assert_eq!(b.wait().status, WcStatus::SUCCESS, "acknowledged, never delivered");
    }
}

#[test]
fn a_stranger_that_asks_first_does_not_take_the_place() {
    let (mut a, mut b, mut stranger) = (End::default(), End::default(), End::default());
    let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
    a.init();
    b.init();
    stranger.init();
    stranger.rtr(qb);
    b.rtr(qa);
    a.rtr(qb);
    a.rts();
    b.rts();
    stranger.rts_impatient();
    b.recv(1, &[b.sge(0, 8)]);
    let sges = [stranger.sge(0, 8)];
    stranger.send(&[SendWr::write(1, &sges, b.mr.addr() as u64, b.mr.rkey())]);
    assert_eq!(stranger.wait().status, WcStatus::RETRY_EXC_ERR);
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(2, &sges).with_flags(SIGNALED)]);
    assert_eq!((a.wait().status, b.wait().wr_id), (WcStatus::SUCCESS, 1));
}

#[test]
fn impossible_objects_are_refused() {
    let end = End::default();
    let attr = |cap: QpCap, qp_type: QpType| QpInitAttr {
        send_cq: &*end.cq,
        recv_cq: &*end.cq,
        srq: None,
        cap,
        qp_type,
        sq_sig_all: false,
    };
    let too_many = QpCap { max_send_wr: 1 << 30, ..QpCap::default() };
    assert!(end.pd.create_qp(&attr(too_many, QpType::Rc)).is_err());
    assert!(end.pd.create_qp(&attr(too_many, QpType::Ud)).is_err());
    assert!(end.pd.alloc_mr(0, ALL).is_err());
    assert!(end.pd.alloc_mr(usize::MAX, ALL).is_err());
    assert!(end.pd.alloc_mr(4096, Access::REMOTE_WRITE).is_err());
    let mut no_channel = end.context.create_cq(&CqInitAttr { cqe: 1, channel: None }).unwrap();
    assert!(matches!(no_channel.req_notify(Notify::Any), Err(Error::InvalidState { .. })));
    assert!(SoftNic::open().unwrap().query_port(2).is_err());
    assert!(end.context.query_gid(1, 1).is_err());
    assert_eq!(RnrTimer(31).duration().as_micros(), 491_520);
    let _: &dyn RawMr = &*end.mr;
}

#[test]
fn sends_to_a_target_that_never_polls_complete_for_every_posted_receive() {
    // Receives are posted one at a time, so the sender never sees more than one ahead.
    for len in [8, 600, 1000, 5000] {
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, ..QpCap::default() };
        let (mut a, mut b) = pair_with(cap, cap);
        for i in 0..b.qp.cap().max_recv_wr as u64 {
            b.recv(i, &[b.sge(i as usize * 8192, 8192)]);
            a.put(0, &bytes(len, i));
            let sges = [a.sge(0, len)];
            a.send(&[SendWr::send(i, &sges).with_flags(SIGNALED)]);
            assert_eq!(a.wait().status, WcStatus::SUCCESS, "message {i} of {len} bytes");
        }
        for i in 0..b.qp.cap().max_recv_wr as u64 {
            assert_eq!((b.wait().wr_id, b.get(i as usize * 8192, len)), (i, bytes(len, i)));
        }
    }
}
