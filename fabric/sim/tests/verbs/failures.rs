//! Failures behave as on a real device.

use crate::support::*;
use farcall_sim::{Config, Faults};
use farcall_verbs::*;

const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

fn write<'a>(p: &Pair, id: u64, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr::write(id, sges, p.b.addr(), p.b.mr.rkey()).with_flags(SIGNALED)
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
    p.world.partition(p.a.host.id(), p.b.host.id());
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
    // SAFETY: the requests have no elements, so they refer to no memory.
    unsafe { qp.post_send(&requests) }.unwrap();
    p.settle();
    let mut cq = cq;
    assert!(cq.poll(&mut [Wc::default()]).is_err());
    assert_eq!(p.a.async_event().unwrap().kind, AsyncEventKind::CqErr);
}

#[test]
fn repeats_the_trace_for_the_same_seed_only() {
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
            // Longer than its receive: the queue pair fails as soon as the WRITE before it is placed, if not before.
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
    // Another connection of the same nodes, which uses the same shared receive queue.
    let mut other = End::new(&p.a.host, QpType::Uc, None);
    let cap = QpCap::default();
    let (send_cq, recv_cq, srq) = (&*p.b.cq, &*p.b.cq, p.b.srq.as_deref());
    let attr = QpInitAttr { send_cq, recv_cq, srq, cap, qp_type: QpType::Uc, sq_sig_all: false };
    let mut beside = p.b.pd.create_qp(&attr).unwrap();
    other.init();
    other.rtr(p.b.path(), beside.qp_num(), Mtu::Mtu1024);
    other.rts();
    beside.modify(&QpAttr::init(ALL)).unwrap();
    beside.modify(&QpAttr::rtr_unreliable(other.qp.qp_num(), 0xff_fff0, other.path(), Mtu::Mtu1024)).unwrap();

    (0..4).for_each(|i| p.b.recv(i, &[p.b.sge(10_000 * i as usize, 10_000)]));
    let long = [p.a.sge(0, 3_000)];
    let cut_short = |p: &mut Pair| {
        p.a.send(&[SendWr::send(1, &long)]);
        // The first packet is in flight, the others are lost.
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
