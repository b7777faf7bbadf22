//! Errors have the effect that they have on an RC queue pair of a real RNIC: one well-defined error, and no other
//! change.

use crate::support::apart::is_apart;
use crate::support::*;
use farcall_softnic::SoftNic;
use farcall_verbs::{
    Access, AtomicTarget, CqInitAttr, Error, Mtu, Notify, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawMr,
    Revoked, RnrTimer, SendFlags, SendWr, Sge, WcStatus, WrOpcode,
};

/// Writes 8 bytes and returns the status.
fn attempt(a: &mut End, addr: u64, rkey: u32) -> WcStatus {
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::write(7, &sges, addr, rkey).with_flags(SIGNALED)]);
    let wc = a.wait();
    assert_eq!(wc.wr_id, 7);
    wc.status
}

#[test]
fn a_deregistered_key_is_dead_also_when_its_place_is_used_again() {
    let (mut a, mut b) = pair();
    assert_eq!(attempt(&mut a, b.mr.addr() as u64, b.mr.rkey()), WcStatus::SUCCESS);
    let mut old = b.pd.alloc_mr(4096, ALL).unwrap();
    // The initiator has cached the mapping; only the generation has changed.
    assert_eq!(attempt(&mut a, old.addr() as u64, old.rkey()), WcStatus::SUCCESS);
    for _ in 0..600 {
        let (addr, key) = (old.addr() as u64, old.rkey());
        assert_eq!(old.dereg(), Revoked::Now);
        old = b.pd.alloc_mr(4096, ALL).unwrap();
        assert_ne!((old.addr() as u64, old.rkey()), (addr, key), "a key comes back at once");
        assert_eq!(attempt(&mut a, old.addr() as u64, old.rkey()), WcStatus::SUCCESS);
    }
    let (addr, key) = (old.addr() as u64, old.rkey());
    assert_eq!(old.dereg(), Revoked::Now);
    let again = b.pd.alloc_mr(4096, ALL).unwrap();
    assert_eq!(attempt(&mut a, addr, key), WcStatus::REM_ACCESS_ERR);
    assert_eq!((again.len_bytes(), b.poll()), (4096, None));
}

/// Enters RTS with short transport retries, but unlimited receiver-not-ready retries.
fn rts_patient_for_receives(end: &mut End) {
    let timers = QpAttr { timeout: Some(8), retry_cnt: Some(1), ..QpAttr::default() };
    if end.qp.state() == QpState::Rtr {
        return end
            .qp
            .modify(&QpAttr { timeout: timers.timeout, retry_cnt: timers.retry_cnt, ..QpAttr::rts(0) })
            .unwrap();
    }
    // They cannot be changed in RTS.
    end.qp.modify(&QpAttr::to(QpState::Sqd)).unwrap();
    end.qp.modify(&timers).unwrap();
    end.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
}

#[test]
fn times_waits_for_the_peer_and_for_receives_separately() {
    let (mut a, mut b) = (End::default(), End::default());
    let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
    a.init();
    b.init();
    a.rtr(qb);
    // About 270 ms for the peer, and unlimited for a receive.
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
fn ends_a_wait_for_a_receive_when_the_peer_closes() {
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

/// Two queue pairs on one completion queue, each with a send that waits. The peers' last messages precede the failures
/// of either queue pair.
#[test]
fn failures_come_after_what_the_peers_did_before() {
    let (mut a, mut b) = (End::default(), End::default());
    let (mut c, mut d) = (a.sibling(), End::default());
    c.qp = create_qp(&*a.pd, (&*a.cq, &*a.cq), None, QpCap::default(), QpType::Rc);
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

/// A queue pair that always has more completions does not delay the failure of another one indefinitely.
#[test]
fn failures_do_not_wait_for_ever_on_a_busy_queue() {
    let (mut a, mut b) = (End::default(), End::default());
    let (mut busy, mut d) = (a.sibling(), End::default());
    let cap = QpCap { max_recv_wr: 4096, ..QpCap::default() };
    busy.qp = create_qp(&*a.pd, (&*a.cq, &*a.cq), None, cap, QpType::Rc);
    join(&mut a, &mut b, rts_patient_for_receives);
    join(&mut busy, &mut d, rts_patient_for_receives);
    for _ in 0..4096 {
        busy.recv(100, &[]);
    }
    d.reach();
    for _ in 0..4096 {
        d.send(&[SendWr::send(7, &[])]);
    }
    a.recv(1, &[a.sge(0, 8)]);
    a.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    let told = (0..4096).position(|_| !a.wait().status.is_success());
    assert!(told.is_some_and(|at| at > 0), "{told:?}");
}

#[test]
fn a_refused_transition_changes_nothing() {
    let (mut a, mut b) = (End::default(), End::default());
    let refuse = |end: &mut End, attr: QpAttr, name: &str| {
        let before = end.qp.state();
        let error = end.qp.modify(&attr).unwrap_err().to_string();
        assert!(error.contains(name), "{name} is missing in: {error}");
        assert_eq!(end.qp.state(), before);
    };
    refuse(&mut a, QpAttr { port_num: Some(2), ..QpAttr::init(ALL) }, "port 2");
    a.init();
    b.init();
    let rtr = QpAttr::rtr(b.qp.qp_num(), 0, a.path(), Mtu::Mtu4096);
    refuse(&mut a, QpAttr { path_mtu: None, ..rtr }, "path_mtu");
    refuse(&mut a, QpAttr { dest_qp_num: Some(1 << 24), ..rtr }, "24 bits");
    let mut elsewhere = a.path();
    elsewhere.dgid.0[9] ^= 1;
    refuse(&mut a, QpAttr { ah: Some(elsewhere), ..rtr }, "GID");
    a.qp.modify(&rtr).unwrap();
    a.rts();
    refuse(&mut a, rtr, "RTS");
    refuse(&mut a, QpAttr::to(QpState::Sqe), "RTS");
    // After all refused transitions the queue pair works.
    b.rtr(a.qp.qp_num());
    b.recv(1, &[b.sge(0, 8)]);
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    assert_eq!((a.wait().status, b.wait().status), (WcStatus::SUCCESS, WcStatus::SUCCESS));
}

/// As on a network: the number may belong to any process, and none responds.
#[test]
fn a_pair_that_does_not_exist_is_connected_to_and_never_answers() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let live = End::default();
        // In this process, and in one that does not exist.
        for dest in [live.qp.qp_num() ^ 0x800, live.qp.qp_num() ^ 0x80_0000, 1] {
            let mut a = End::of(qp_type, QpCap::default());
            a.init();
            a.rtr(dest);
            let sges = [a.sge(0, 8)];
            let write = SendWr::write(7, &sges, 0x1000, 1).with_flags(SIGNALED);
            if qp_type == QpType::Rc {
                a.rts_impatient();
                a.send(&[write]);
                let seen = (a.wait().status, a.qp.state());
                assert_eq!(seen, (WcStatus::RETRY_EXC_ERR, QpState::Err), "{dest:#x}");
            } else {
                a.rts();
                a.send(&[write]);
                assert_eq!((a.wait().status, a.qp.state()), (WcStatus::SUCCESS, QpState::Rts), "{dest:#x}");
            }
        }
    }
}

/// A queue pair that is connected later than its peer is found.
#[test]
fn a_pair_of_another_peer_is_connected_to_once_it_is_ours() {
    let (mut a, mut b, mut c) = (End::default(), End::default(), End::default());
    let (qa, qb, qc) = (a.qp.qp_num(), b.qp.qp_num(), c.qp.qp_num());
    c.init();
    b.init();
    b.rtr(qc);
    a.connect(qb);
    let sges = [a.sge(0, 8)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    for _ in 0..100 {
        assert_eq!(a.poll(), None, "it waits for the peer");
    }
    b.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    b.init();
    b.rtr(qa);
    b.recv(5, &[b.sge(0, 8)]);
    assert_eq!((a.wait().status, b.wait().wr_id), (WcStatus::SUCCESS, 5));
}

#[test]
fn a_target_has_failed_when_its_initiator_knows() {
    for round in 0..100 {
        let (mut a, mut b) = pair();
        let sges = [a.sge(0, 64)];
        let (addr, rkey) = (b.mr.addr() as u64, b.mr.rkey());
        let (request, status) = match round % 4 {
            0 => (SendWr::write(1, &sges, addr, rkey ^ 0x100), WcStatus::REM_ACCESS_ERR),
            1 => {
                let target = AtomicTarget { remote_addr: addr + 4, rkey, compare_add: 1, swap: 0 };
                let request = SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, 1, &sges, target);
                (request, WcStatus::LOC_LEN_ERR)
            }
            2 => (SendWr::read(1, &sges, addr + (8 << 20), rkey), WcStatus::REM_ACCESS_ERR),
            _ => {
                b.recv(9, &[b.sge(0, 8)]);
                (SendWr::send(1, &sges), WcStatus::REM_INV_REQ_ERR)
            }
        };
        a.send(&[request]);
        assert_eq!(a.wait().status, status);
        let failed_alone = status == WcStatus::LOC_LEN_ERR;
        assert_eq!(b.qp.state(), if failed_alone { QpState::Rts } else { QpState::Err }, "round {round}");
        if status == WcStatus::REM_INV_REQ_ERR {
            assert_eq!(b.wait().status, WcStatus::LOC_LEN_ERR, "what came before the failure is told");
        }
    }
}

#[test]
fn more_memory_than_there_is_is_refused_before_it_is_taken() {
    let end = End::default();
    let Err(error) = end.pd.alloc_mr(1 << 50, ALL) else { panic!("a pebibyte") };
    assert!(matches!(error, Error::Exhausted { .. }), "{error}");
    let Err(error) = end.pd.alloc_mr(1 << 40, ALL) else { panic!("a tebibyte") };
    let Error::Os { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.raw_os_error(), Some(libc::ENOMEM), "{error}");
    // SAFETY: the registration is refused because of its length.
    let Err(error) = (unsafe { end.pd.reg_mr(end.mr.addr(), 1 << 50, ALL) }) else { panic!("a pebibyte") };
    assert!(matches!(error, Error::Exhausted { .. }), "{error}");
}

#[test]
fn objects_can_be_destroyed_in_any_order() {
    for order in 0..24 {
        let (mut a, mut b) = pair();
        a.recv(1, &[a.sge(0, 8)]);
        b.recv(1, &[b.sge(0, 8)]);
        let sges = [a.sge(0, 8)];
        a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED), SendWr::send(2, &sges)]);
        // Both ends are connected; the second send waits for a receive.
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
        // The memory may be released after the queue pair.
        drop(mr);
    }
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
    // This side begins a new incarnation; the peer does not know it and keeps its state.
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
fn rejects_a_pair_that_connects_before_the_expected_peer() {
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
    let table_len = end.context.query_port(1).unwrap().gid_tbl_len;
    assert!(end.context.query_gid(1, table_len).is_err() && end.context.query_gid(2, 0).is_err());
    assert_eq!(RnrTimer(31).duration().as_micros(), 491_520);
    let _: &dyn RawMr = &*end.mr;
}

#[test]
fn completes_sends_to_an_unpolled_target_per_posted_receive() {
    // Receives are posted one at a time, so the sender never sees more than one available.
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

#[test]
fn fills_the_registered_part_of_a_longer_receive() {
    for len in [64, 8 << 10] {
        let (mut a, mut b) = pair();
        let begin = b.mr.len_bytes() - len;
        let place = |length| Sge {
            addr: b.mr.addr() as u64 + begin as u64,
            length: length as u32,
            lkey: b.mr.lkey(),
        };
        let (longer, bytes) = ([place(len + 32)], bytes(len, 3));
        a.put(0, &bytes);
        b.recv(1, &longer);
        let sges = [a.sge(0, len)];
        a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
        assert_eq!((a.wait().status, b.wait().status), (WcStatus::SUCCESS, WcStatus::SUCCESS), "{len}");
        assert_eq!(b.get(begin, len), bytes);
        // One byte more would be written after the end of the region.
        b.recv(2, &longer);
        let sges = [a.sge(0, len + 1)];
        a.send(&[SendWr::send(2, &sges).with_flags(SIGNALED)]);
        assert_eq!(
            (a.wait().status, b.wait().status),
            (WcStatus::REM_OP_ERR, WcStatus::LOC_PROT_ERR),
            "{len}"
        );
    }
}

/// If both keys are wrong, the local one is reported for operations that send data, and the target's for those that
/// return data, as on mlx5. The alignment of an atomic precedes its key. The target executes an atomic that it permits,
/// although the result cannot be stored.
#[test]
fn reports_the_key_that_a_device_finds_wrong_first() {
    two_wrong_keys();
}

#[test]
fn reports_the_key_found_wrong_first_between_hosts() {
    if is_apart("reports_the_key_found_wrong_first_between_hosts", "roce") {
        two_wrong_keys();
    }
}

fn two_wrong_keys() {
    let atomic = |a: &End, addr: u64, rkey| {
        let word = AtomicTarget { remote_addr: addr, compare_add: 1, swap: 2, rkey };
        let sges = [Sge { lkey: a.mr.lkey() ^ 0x5A5A, ..a.sge(0, 8) }];
        (sges, word)
    };
    for (offset, remote_is_wrong, sent, brought, changed) in [
        (0, false, WcStatus::LOC_PROT_ERR, WcStatus::LOC_PROT_ERR, WcStatus::LOC_PROT_ERR),
        (0, true, WcStatus::LOC_PROT_ERR, WcStatus::REM_ACCESS_ERR, WcStatus::REM_ACCESS_ERR),
        (1, false, WcStatus::LOC_PROT_ERR, WcStatus::LOC_PROT_ERR, WcStatus::REM_INV_REQ_ERR),
        (1, true, WcStatus::LOC_PROT_ERR, WcStatus::REM_ACCESS_ERR, WcStatus::REM_INV_REQ_ERR),
    ] {
        for (opcode, expected) in [
            (WrOpcode::WRITE, sent),
            (WrOpcode::READ, brought),
            (WrOpcode::ATOMIC_FETCH_AND_ADD, changed),
            (WrOpcode::ATOMIC_CMP_AND_SWP, changed),
        ] {
            let (mut a, b) = pair();
            b.put(0, &[7; 16]);
            let rkey = b.mr.rkey() ^ if remote_is_wrong { 0x5A5A } else { 0 };
            let addr = b.mr.addr() as u64 + offset;
            let (sges, word) = atomic(&a, addr, rkey);
            let wr = match opcode {
                WrOpcode::WRITE => SendWr::write(1, &sges, addr, rkey),
                WrOpcode::READ => SendWr::read(1, &sges, addr, rkey),
                _ => SendWr::atomic(opcode, 1, &sges, word),
            };
            a.send(&[wr.with_flags(SIGNALED)]);
            assert_eq!(a.wait().status, expected, "{opcode:?}, {offset}, {remote_is_wrong}");
            let mut found = [7; 16];
            if opcode == WrOpcode::ATOMIC_FETCH_AND_ADD && expected == WcStatus::LOC_PROT_ERR {
                found[0] = 8;
            }
            assert_eq!(b.get(0, 16), found, "{opcode:?}, {offset}, {remote_is_wrong}");
            let refused = expected != WcStatus::LOC_PROT_ERR;
            assert_eq!(b.qp.state() == QpState::Err, refused, "{opcode:?}, {offset}, {remote_is_wrong}");
        }
    }
}

/// A WRITE with immediate that is refused for its key has consumed a receive: that one fails, the next is flushed.
#[test]
fn fails_the_receive_of_a_refused_write_with_immediate() {
    refused_write_with_immediate();
}

#[test]
fn fails_the_receive_of_a_refused_write_between_hosts() {
    if is_apart("fails_the_receive_of_a_refused_write_between_hosts", "roce") {
        refused_write_with_immediate();
    }
}

fn refused_write_with_immediate() {
    let (mut a, mut b) = pair();
    b.recv(1, &[]);
    b.recv(2, &[]);
    let sges = [a.sge(0, 8)];
    let write = SendWr::write(1, &sges, b.mr.addr() as u64, b.mr.rkey() ^ 0x5A5A).with_imm(7);
    a.send(&[write.with_flags(SIGNALED)]);
    assert_eq!(a.wait().status, WcStatus::REM_ACCESS_ERR);
    for (wr_id, status) in [(1, WcStatus::LOC_ACCESS_ERR), (2, WcStatus::WR_FLUSH_ERR)] {
        let failed = b.wait();
        assert_eq!((failed.wr_id, failed.status), (wr_id, status));
    }
}

/// A region of length 0 can be registered, and permits no access.
#[test]
fn registers_a_region_of_no_bytes() {
    let (mut a, mut b) = pair();
    let mut memory = vec![0_u8; 64];
    // SAFETY: the memory outlives its region.
    let empty = unsafe { b.pd.reg_mr(memory.as_mut_ptr(), 0, ALL) }.unwrap();
    let (addr, nothing) = (memory.as_ptr() as u64, [a.sge(0, 0)]);
    for wr in [SendWr::write(1, &nothing, addr, empty.rkey()), SendWr::read(1, &nothing, addr, empty.rkey())]
    {
        a.send(&[wr.with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
    }
    b.recv(1, &[Sge { addr, length: 0, lkey: empty.lkey() }]);
    a.send(&[SendWr::send(1, &nothing).with_flags(SIGNALED)]);
    assert_eq!((a.wait().status, b.wait().status), (WcStatus::SUCCESS, WcStatus::SUCCESS));
    assert_eq!(attempt(&mut a, addr, empty.rkey()), WcStatus::REM_ACCESS_ERR);
    assert!(b.pd.alloc_mr(0, ALL).is_err(), "there is no memory of no bytes");
}
