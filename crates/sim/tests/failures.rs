//! What goes wrong, goes wrong as on a real device.

mod support;

use farcall_sim::{Config, Faults};
use farcall_verbs::*;
use support::*;

const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

fn write<'a>(p: &Pair, id: u64, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr::write(id, sges, p.b.addr(), p.b.mr.rkey()).with_flags(SIGNALED)
}

#[test]
fn a_wrong_key_fails_both_ends_and_flushes_what_follows() {
    let mut p = Pair::rc();
    p.b.recv(70, &[]);
    let sges = [p.a.sge(0, 8)];
    let good = write(&p, 3, &sges);
    p.a.send(&[
        SendWr::write(1, &sges, p.b.addr(), p.b.mr.rkey()),
        SendWr::write(2, &sges, p.b.addr(), p.b.mr.rkey() + 1),
        good,
    ]);
    p.a.put(0, &[1; 8]);
    let ends: Vec<_> = (0..2).map(|_| p.wait_a()).map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(2, WcStatus::REM_ACCESS_ERR), (3, FLUSHED)]);
    assert_eq!((p.wait_b().wr_id, p.b.qp.state()), (70, QpState::Err));
    let event = p.b.async_event().unwrap();
    assert_eq!((event.kind, event.element), (AsyncEventKind::QpAccessErr, p.b.qp.qp_num()));
    assert_eq!(p.a.qp.state(), QpState::Err);
}

#[test]
fn bounds_permissions_and_domains_are_checked() {
    type Attempt = fn(&mut Pair) -> WcStatus;
    let cases: [(&str, Attempt); 6] = [
        ("one byte beyond", |p| {
            let (sges, end) = ([p.a.sge(0, 8)], p.b.addr() + (1 << 20) - 7);
            p.a.send(&[SendWr::write(1, &sges, end, p.b.mr.rkey())]);
            p.wait_a().status
        }),
        ("wrapping around", |p| {
            let sges = [p.a.sge(0, 8)];
            p.a.send(&[SendWr::read(1, &sges, u64::MAX - 3, p.b.mr.rkey())]);
            p.wait_a().status
        }),
        ("no permission", |p| {
            let mr = p.b.pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
            let sges = [p.a.sge(0, 8)];
            p.a.send(&[SendWr::write(1, &sges, mr.addr() as u64, mr.rkey())]);
            p.wait_a().status
        }),
        ("another domain", |p| {
            let mr = p.b.context.alloc_pd().unwrap().alloc_mr(4096, ALL).unwrap();
            let sges = [p.a.sge(0, 8)];
            p.a.send(&[SendWr::write(1, &sges, mr.addr() as u64, mr.rkey())]);
            p.wait_a().status
        }),
        ("deregistered", |p| {
            let mr = p.b.pd.alloc_mr(4096, ALL).unwrap();
            let (sges, to) = ([p.a.sge(0, 8)], (mr.addr() as u64, mr.rkey()));
            drop(mr);
            p.a.send(&[SendWr::write(1, &sges, to.0, to.1)]);
            p.wait_a().status
        }),
        ("atomics without permission", |p| {
            let mr = p.b.pd.alloc_mr(4096, ALL - Access::REMOTE_ATOMIC).unwrap();
            let sges = [p.a.sge(0, 8)];
            let at = AtomicTarget { remote_addr: mr.addr() as u64, compare_add: 1, swap: 1, rkey: mr.rkey() };
            p.a.send(&[SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, 1, &sges, at)]);
            p.wait_a().status
        }),
    ];
    for (name, attempt) in cases {
        assert_eq!(attempt(&mut Pair::rc()), WcStatus::REM_ACCESS_ERR, "{name}");
    }
}

#[test]
fn a_local_element_out_of_bounds_fails_here_and_the_target_notices_nothing() {
    let mut p = Pair::rc();
    let good = [p.a.sge(0, 8)];
    let wrong = [Sge { length: (1 << 20) + 1, ..p.a.sge(0, 8) }];
    let requests = [write(&p, 1, &good), write(&p, 2, &wrong), write(&p, 3, &good)];
    p.a.send(&requests);
    let ends: Vec<_> = (0..3).map(|_| p.wait_a()).map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, WcStatus::SUCCESS), (2, WcStatus::LOC_PROT_ERR), (3, FLUSHED)]);
    p.settle();
    assert_eq!((p.b.poll(), p.b.qp.state()), (None, QpState::Rts));
}

#[test]
fn a_message_longer_than_its_receive_fails_both_ends() {
    for (len, room) in [(9, 8), (1, 0), (1_024, 1_023), (5_000, 4_999)] {
        let mut p = Pair::rc();
        p.b.put(0, &vec![0x5a; len + 64]);
        p.b.recv(1, &[p.b.sge(0, room)]);
        p.b.recv(2, &[p.b.sge(0, len)]);
        let sges = [p.a.sge(0, len)];
        p.a.send(&[SendWr::send(10, &sges), SendWr::send(11, &sges)]);
        let ends: Vec<_> = (0..2).map(|_| p.wait_a()).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ends, [(10, WcStatus::REM_INV_REQ_ERR), (11, FLUSHED)], "{len} into {room}");
        let ends: Vec<_> = (0..2).map(|_| p.wait_b()).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ends, [(1, WcStatus::LOC_LEN_ERR), (2, FLUSHED)], "{len} into {room}");
        assert_eq!(p.b.get(room, 64), vec![0x5a; 64], "bytes beyond the receive were written");
    }
}

#[test]
fn no_receive_ends_after_the_retries() {
    let mut p = Pair::impatient();
    let sges = [p.a.sge(0, 8)];
    let after = write(&p, 2, &sges);
    p.a.send(&[SendWr::send(1, &sges), after]);
    let ends: Vec<_> = (0..2).map(|_| p.wait_a()).map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, WcStatus::RNR_RETRY_EXC_ERR), (2, FLUSHED)]);
    assert_eq!((p.b.poll(), p.b.qp.state()), (None, QpState::Rts));
}

#[test]
fn a_receive_in_time_saves_the_send() {
    let mut p = Pair::rc();
    let sges = [p.a.sge(0, 8)];
    p.a.put(0, &[7; 8]);
    p.a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    p.world.run_for(std::time::Duration::from_millis(50));
    assert_eq!(p.a.poll(), None);
    p.b.recv(5, &[p.b.sge(0, 8)]);
    assert_eq!((p.wait_b().wr_id, p.wait_a().status), (5, WcStatus::SUCCESS));
    assert_eq!(p.b.get(0, 8), [7; 8]);
}

#[test]
fn a_peer_that_is_gone_ends_in_retries_exceeded() {
    for how in 0..4 {
        let mut p = Pair::impatient();
        match how {
            0 => p.world.crash(p.b.host.id()),
            1 => p.world.cut(p.a.host.id(), p.b.host.id()),
            2 => p.world.cut(p.b.host.id(), p.a.host.id()),
            _ => p.b.qp.modify(&QpAttr::to(QpState::Err)).unwrap(),
        }
        let sges = [p.a.sge(0, 8)];
        let requests = [write(&p, 1, &sges), write(&p, 2, &sges)];
        p.a.send(&requests);
        let ends: Vec<_> = (0..2).map(|_| p.wait_a()).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ends, [(1, WcStatus::RETRY_EXC_ERR), (2, FLUSHED)], "{how}");
    }
}

#[test]
fn a_partition_that_heals_in_time_is_not_noticed() {
    let mut p = Pair::rc();
    let sges = [p.a.sge(0, 3_000)];
    p.world.part(p.a.host.id(), p.b.host.id());
    let request = write(&p, 1, &sges);
    p.a.send(&[request]);
    p.world.run_for(std::time::Duration::from_millis(100));
    assert_eq!(p.a.poll(), None);
    p.world.heal();
    assert_eq!(p.wait_a().status, WcStatus::SUCCESS);
}

#[test]
fn an_overrun_queue_fails_and_takes_its_pairs_with_it() {
    let mut p = Pair::rc();
    let cq = p.a.context.create_cq(&CqInitAttr { cqe: 3, channel: None }).unwrap();
    let attr = QpInitAttr {
        send_cq: &*cq,
        recv_cq: &*p.a.cq,
        srq: None,
        cap: QpCap::default(),
        qp_type: QpType::Rc,
        sq_sig_all: true,
    };
    let mut qp = p.a.pd.create_qp(&attr).unwrap();
    qp.modify(&QpAttr::init(ALL)).unwrap();
    qp.modify(&QpAttr::rtr(77, 0, p.b.path(), Mtu::Mtu1024)).unwrap();
    qp.modify(&QpAttr::rts(0)).unwrap();
    qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    let requests: Vec<_> = (0..4).map(|i| SendWr::write(i, &[], 0, 0)).collect();
    // SAFETY: no memory is named.
    unsafe { qp.post_send(&requests) }.unwrap();
    p.settle();
    let mut cq = cq;
    assert!(cq.poll(&mut [Wc::default()]).is_err());
    assert_eq!(p.a.async_event().unwrap().kind, AsyncEventKind::CqErr);
}

#[test]
fn a_place_in_the_queue_is_free_when_its_completion_was_polled() {
    let mut p = Pair::rc();
    let sges = [p.a.sge(0, 8)];
    let depth = p.a.qp.cap().max_send_wr as u64;
    for i in 0..depth {
        let request = write(&p, i, &sges);
        p.a.send(&[request]);
    }
    p.settle();
    let request = write(&p, depth, &sges);
    // SAFETY: the region lives as long as the pair.
    let full = unsafe { p.a.qp.post_send(&[request]) }.unwrap_err();
    assert!(matches!(full.source, Error::Exhausted { .. }), "{full}");
    assert_eq!(p.a.poll().unwrap().wr_id, 0);
    p.a.send(&[request]);
}

#[test]
fn reset_forgets_everything_and_the_pair_works_again() {
    let mut p = Pair::rc();
    p.b.recv(1, &[]);
    let sges = [p.a.sge(0, 8)];
    let request = write(&p, 1, &sges);
    p.a.send(&[request]);
    p.settle();
    let (to_a, to_b) = ((p.a.path(), p.a.qp.qp_num()), (p.b.path(), p.b.qp.qp_num()));
    for (end, (path, dest)) in [(&mut p.a, to_b), (&mut p.b, to_a)] {
        end.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
        end.init();
        end.rtr(path, dest, Mtu::Mtu4096);
        end.rts();
    }
    assert_eq!((p.a.poll(), p.b.poll()), (None, None));
    p.b.recv(2, &[p.b.sge(0, 8)]);
    p.a.send(&[SendWr::send(9, &sges).with_flags(SIGNALED)]);
    assert_eq!((p.wait_b().wr_id, p.wait_a().wr_id), (2, 9));
}

#[test]
fn draining_finishes_what_began_and_holds_the_rest() {
    let mut p = Pair::rc();
    let sges = [p.a.sge(0, 40_000)];
    let (first, second) = (write(&p, 1, &sges), write(&p, 2, &sges));
    p.a.send(&[first]);
    p.world.run_for(std::time::Duration::from_nanos(400));
    p.a.qp.modify(&QpAttr { en_sqd_async_notify: Some(true), ..QpAttr::to(QpState::Sqd) }).unwrap();
    p.a.send(&[second]);
    assert_eq!(p.wait_a().wr_id, 1);
    p.settle();
    assert_eq!(p.a.poll(), None);
    assert_eq!(p.a.async_event().unwrap().kind, AsyncEventKind::SqDrained);
    p.a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    assert_eq!((p.wait_a().wr_id, p.a.qp.state()), (2, QpState::Rts));
}

#[test]
fn an_unreliable_pair_fails_at_its_send_queue_and_goes_on_receiving() {
    let mut p = Pair::new(Config::new(1), QpType::Uc);
    let (good, wrong) = ([p.a.sge(0, 8)], [Sge { lkey: 1, ..p.a.sge(0, 8) }]);
    p.a.send(&[SendWr::send(1, &wrong), SendWr::send(2, &good)]);
    let ends: Vec<_> = (0..2).map(|_| p.wait_a()).map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, WcStatus::LOC_PROT_ERR), (2, FLUSHED)]);
    assert_eq!(p.a.qp.state(), QpState::Sqe);
    p.a.recv(3, &[p.a.sge(0, 8)]);
    let sges = [p.b.sge(0, 8)];
    p.b.send(&[SendWr::send(4, &sges)]);
    assert_eq!(p.wait_a().wr_id, 3);
    p.a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    p.b.recv(5, &[p.b.sge(0, 8)]);
    p.a.send(&[SendWr::send(6, &good)]);
    assert_eq!(p.wait_b().wr_id, 5);
}

#[test]
fn events_come_once_and_for_what_was_asked() {
    let mut p = Pair::rc();
    let sges = [p.a.sge(0, 8)];
    for i in 0..4 {
        p.b.recv(i, &[p.b.sge(0, 8)]);
    }
    p.b.arm(Notify::Solicited);
    p.a.send(&[SendWr::send(1, &sges)]);
    p.settle();
    assert_eq!(p.b.event(), None);
    p.a.send(&[SendWr::send(1, &sges).with_flags(SendFlags::SOLICITED)]);
    p.settle();
    assert_eq!((p.b.event(), p.b.event()), (Some(p.b.cq.id()), None));
    p.b.arm(Notify::Any);
    assert!(!p.world.is_readable(p.b.channel.fd()));
    p.a.send(&[SendWr::send(1, &sges), SendWr::send(1, &sges)]);
    p.settle();
    assert!(p.world.is_readable(p.b.channel.fd()));
    assert_eq!((p.b.event(), p.b.event()), (Some(p.b.cq.id()), None));
}

#[test]
fn two_runs_of_a_seed_have_the_same_trace_and_other_seeds_another() {
    let run = |seed| {
        let mut config = Config::new(seed);
        config.faults = Faults::BAD;
        config.params.placement_in_order = false;
        let mut p = Pair::new(config, QpType::Rc);
        for i in 0..40u64 {
            p.b.recv(i, &[p.b.sge(0, 10_000)]);
            p.a.put(0, &pattern(i, 10_000));
            let (sges, to) = ([p.a.sge(0, 10_000)], (p.b.addr() + 20_000, p.b.mr.rkey()));
            p.a.send(&[
                SendWr::send(1, &sges),
                SendWr::write(2, &sges, to.0, to.1),
                SendWr::read(3, &sges, to.0, to.1).with_flags(SIGNALED),
            ]);
            p.wait_a();
        }
        (p.world.trace_hash(), p.world.trace_records(), p.world.now())
    };
    let first = run(5);
    assert!(first.1 > 1_000, "{first:?}");
    assert_eq!(first, run(5));
    assert_ne!(first.0, run(6).0);
}

#[test]
fn a_completion_before_a_failure_has_its_payload() {
    let mut met = 0;
    for seed in 0..300 {
        let mut config = Config::new(seed);
        (config.params.piece_gap_ns, config.params.pieces_max) = (20, 4);
        let mut p = Pair::new(config, QpType::Rc);
        (0..2).for_each(|i| p.b.recv(i, &[p.b.sge(100_000, 8)]));
        p.a.put(0, &[1; 8_000]);
        let (long, short) = ([p.a.sge(0, 4_000)], [p.a.sge(0, 8)]);
        let (to, rkey) = (p.b.addr(), p.b.mr.rkey());
        p.a.send(&[
            SendWr::write(1, &long, to, rkey),
            SendWr::write(2, &short, to + 50_000, rkey).with_imm(2),
            // Longer than its receive: the pair fails as soon as the WRITE before it has landed, if not before.
            SendWr::send(3, &long),
        ]);
        let first = p.wait_b();
        p.settle();
        assert_eq!((first.wr_id, p.b.qp.state()), (0, QpState::Err));
        if first.status.is_success() {
            met += 1;
            assert_eq!(p.b.get(50_000, 8), [1; 8], "seed {seed}: told of, and not there");
        }
    }
    assert!(met > 100, "only {met} completions came before the failure");
}

fn shared(max_wr: u32) -> Option<SrqInitAttr> {
    Some(SrqInitAttr { max_wr, max_sge: 1 })
}

#[test]
fn a_datagram_too_long_for_a_shared_receive_takes_none() {
    let mut p = Pair::with(Config::new(1), QpType::Ud, Mtu::Mtu1024, End::rts, shared(1));
    let ah = p.a.pd.create_ah(&p.b.path()).unwrap();
    let to = UdTarget { ah: ah.as_raw(), remote_qpn: p.b.qp.qp_num(), remote_qkey: QKEY };
    for i in 0..3 {
        p.b.recv(i, &[p.b.sge(0, 100)]);
        for len in [200, 60] {
            let sges = [p.a.sge(0, len)];
            p.a.send(&[SendWr::send_to(9, &sges, to).with_flags(SIGNALED)]);
            p.wait_a();
        }
        let wc = p.wait_b();
        assert_eq!((wc.wr_id, wc.byte_len), (i, 100));
    }
}

#[test]
fn the_receive_of_a_lost_message_stays_with_its_pair() {
    let mut p = Pair::with(Config::new(1), QpType::Uc, Mtu::Mtu1024, End::rts, shared(4));
    // Another connection of the same nodes, which takes receives from the same queue.
    let mut other = End::new(&p.a.host, QpType::Uc, None);
    let cap = QpCap::default();
    let (send_cq, recv_cq, srq) = (&*p.b.cq, &*p.b.cq, p.b.srq.as_deref());
    let attr = QpInitAttr { send_cq, recv_cq, srq, cap, qp_type: QpType::Uc, sq_sig_all: false };
    let mut beside = p.b.pd.create_qp(&attr).unwrap();
    other.init();
    other.rtr(p.b.path(), beside.qp_num(), Mtu::Mtu1024);
    other.rts();
    beside.modify(&QpAttr::init(ALL)).unwrap();
    beside.modify(&QpAttr::rtr(other.qp.qp_num(), 0xff_fff0, other.path(), Mtu::Mtu1024)).unwrap();

    (0..4).for_each(|i| p.b.recv(i, &[p.b.sge(10_000 * i as usize, 10_000)]));
    let long = [p.a.sge(0, 3_000)];
    let cut_short = |p: &mut Pair| {
        p.a.send(&[SendWr::send(1, &long)]);
        // The first packet is on its way, the others get lost.
        p.world.run_for(std::time::Duration::from_nanos(160));
        p.world.cut(p.a.host.id(), p.b.host.id());
        p.settle();
        p.world.heal();
    };
    cut_short(&mut p);
    let short = [other.sge(0, 8)];
    other.send(&[SendWr::send(2, &short)]);
    let wc = p.wait_b();
    assert_eq!((wc.wr_id, wc.qp_num), (1, beside.qp_num()), "the first receive is begun");
    p.a.send(&[SendWr::send(3, &long)]);
    let wc = p.wait_b();
    assert_eq!((wc.wr_id, wc.qp_num, wc.byte_len), (0, p.b.qp.qp_num(), 3_000), "the next message takes it");
    cut_short(&mut p);
    assert_eq!(p.b.poll(), None);
    p.b.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    let wc = p.wait_b();
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (2, FLUSHED, p.b.qp.qp_num()), "what was begun is flushed");
    assert_eq!(p.b.poll(), None);
}
