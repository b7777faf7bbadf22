//! Datagrams: from any queue pair to any other, completely or not at all.

use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::datagrams::{GRH, Ud, arrives, slot};
use crate::support::*;
use farcall_verbs::{
    AddressHandle, AhAttr, AsyncEventKind, CqInitAttr, GidEntry, Notify, OpCaps, QpAttr, QpCap, QpState,
    QpType, RecvWr, SendFlags, SendWr, Sge, SrqInitAttr, UdTarget, WcFlags, WcStatus,
};

#[test]
fn fails_a_datagram_receive_into_deregistered_memory() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    let memory = vec![0_u64; 64];
    let base = memory.as_ptr().cast_mut().cast::<u8>();
    // SAFETY: the memory belongs to the test and outlives its registration.
    let gone = unsafe { b.end.pd.reg_mr(base, 512, ALL) }.unwrap();
    b.end.recv(1, &[Sge { addr: base as u64, length: 512, lkey: gone.lkey() }]);
    drop(gone);
    a.send(b.qpn(), QKEY, &[7; 8]);
    let wc = b.end.wait();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LOC_PROT_ERR));
    // SAFETY: the memory belongs to the test, and no request is outstanding.
    assert!((0..64).all(|at| unsafe { base.cast::<u64>().add(at).read_volatile() } == 0));
    arrives(&mut a, &mut b, b"the next");
}

#[test]
fn delivers_a_datagram_behind_a_header_with_its_source() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    let device = a.end.context.query_device().unwrap();
    assert_eq!(device.ud, OpCaps::SEND | OpCaps::SEND_IMM | OpCaps::SRQ);
    let gid = a.end.context.query_gid(1, 0).unwrap();
    for (i, len) in [0, 1, 7, 8, 1023, 1024, 1025, 4095, 4096].into_iter().enumerate() {
        let i = i as u64;
        a.end.put(0, &bytes(len, i));
        b.end.put(slot(i), &vec![0xEE; GRH + len + 64]);
        b.recv(i, len);
        let (sges, to) = ([a.end.sge(0, len)], a.to(b.qpn(), QKEY));
        a.end.send(&[SendWr::send_to(1, &sges, to).with_imm(i as u32)]);
        let (wc, got) = b.take();
        assert_eq!((wc.wr_id, wc.byte_len as usize, wc.src_qp), (i, GRH + len, a.qpn()));
        assert_eq!((wc.wc_flags, wc.imm()), (WcFlags::GRH | WcFlags::WITH_IMM, Some(i as u32)));
        assert_eq!((wc.pkey_index, wc.sl, got), (0, 0, bytes(len, i)));
        assert_eq!(b.end.get(slot(i) + GRH + len, 64), vec![0xEE; 64]);
        let header: [u8; 40] = b.end.get(slot(i), GRH).try_into().unwrap();
        assert_eq!((&header[8..24], &header[24..]), (&gid.0[..], &gid.0[..]));
        let back = AhAttr::from_received(&wc, &header, 1).unwrap();
        assert_eq!((back.dgid, back.port_num), (gid, 1));
    }
}

/// Each GID of the table can be used as destination. The header contains the GIDs that were used, and the traffic
/// class.
#[test]
fn reports_the_senders_path_in_the_header() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    let table = a.end.context.query_gid_table(1).unwrap();
    let is_v4 = |entry: &GidEntry| Ipv6Addr::from(entry.gid.0).to_ipv4_mapped().is_some();
    assert!(is_v4(&table[1]) && !is_v4(&table[2]) && table.iter().all(|entry| entry.netdev.is_some()));
    let mut round = 0;
    for (source, destination) in table.iter().flat_map(|one| table.iter().map(move |other| (one, other))) {
        for (traffic_class, len) in [(0, 100), (0xAB, 100), (1, 0), (255, 4096)] {
            let sgid_index = source.index as u8;
            let path = AhAttr { dgid: destination.gid, sgid_index, traffic_class, ..a.end.path() };
            a.ah = a.end.pd.create_ah(&path).unwrap();
            round += 1;
            a.end.put(0, &bytes(len, round));
            b.recv(round, len);
            let (sges, to) = ([a.end.sge(0, len)], a.to(b.qpn(), QKEY));
            a.end.send(&[SendWr::send_to(1, &sges, to)]);
            let (wc, got) = b.take();
            assert!(got == bytes(len, round), "the payload alone is delivered");
            let header: [u8; 40] = b.end.get(slot(round), GRH).try_into().unwrap();
            assert_eq!((&header[8..24], &header[24..]), (&source.gid.0[..], &destination.gid.0[..]));
            assert_eq!(AhAttr::from_received(&wc, &header, 1).unwrap().traffic_class, traffic_class);
        }
    }
    let beyond = AhAttr { sgid_index: table.len() as u8, ..a.end.path() };
    assert!(a.end.pd.create_ah(&beyond).is_err());
}

#[test]
fn header_and_payload_fill_the_receives_elements_in_order() {
    let cap = QpCap { max_send_sge: 3, max_recv_sge: 4, ..QpCap::default() };
    let (mut a, mut b) = (Ud::with(cap), Ud::with(cap));
    let data = bytes(3000, 4);
    a.end.put(0, &data);
    let from = [a.end.sge(0, 1000), a.end.sge(1000, 1), a.end.sge(1001, 1999)];
    let cases = [[40, 2, 1000, 3000], [39, 2, 3, 4000], [0, 41, 2999, 0], [10, 10, 30, 4000]];
    for (i, lens) in cases.into_iter().enumerate() {
        let at = |n: usize| 8192 + n * 8192;
        let sges: Vec<Sge> = lens.iter().enumerate().map(|(n, len)| b.end.sge(at(n), *len)).collect();
        b.end.recv(i as u64, &sges);
        let to = a.to(b.qpn(), QKEY);
        a.end.send(&[SendWr::send_to(1, &from, to)]);
        let wc = b.end.wait();
        assert_eq!((wc.wr_id, wc.byte_len), (i as u64, 3040));
        let all: Vec<u8> = lens.iter().enumerate().flat_map(|(n, len)| b.end.get(at(n), *len)).collect();
        assert_eq!(all[GRH..3040], data);
    }
}

#[test]
fn delivers_first_datagrams_in_order_without_blocking_posts() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    for i in 0..16 {
        b.recv(i, 8);
    }
    for i in 0..16_u64 {
        a.send(b.qpn(), QKEY, &i.to_le_bytes());
    }
    for i in 0..16_u64 {
        assert_eq!(b.take().1, i.to_le_bytes());
    }
    // The ring is granted by now; the stored datagrams and the later ones are in order, too.
    for round in 0..50_u64 {
        for i in 0..16 {
            b.recv(i, 8);
        }
        for i in 0..16_u64 {
            a.send(b.qpn(), QKEY, &(round * 16 + i).to_le_bytes());
        }
        for i in 0..16_u64 {
            assert_eq!(b.take().1, (round * 16 + i).to_le_bytes());
        }
    }
}

/// More than the ring holds, sent before the ring is granted: no datagram with a receive is lost, and sends complete in
/// order, behind those that wait, regardless of their destination.
#[test]
fn a_pair_that_ends_at_once_has_sent() {
    let mut b = Ud::new();
    for i in 0..20_u64 {
        b.recv(i, 8);
        let mut a = Ud::new();
        a.send(b.qpn(), QKEY, &i.to_le_bytes());
        drop(a);
        assert_eq!(b.take().1, i.to_le_bytes());
    }
}

#[test]
fn a_pair_may_send_to_itself_and_to_many() {
    let mut a = Ud::new();
    a.recv(3, 5);
    let (sges, to) = ([a.end.sge(0, 5)], a.to(a.qpn(), QKEY));
    a.end.put(0, b"echo!");
    a.end.send(&[SendWr::send_to(1, &sges, to)]);
    assert_eq!(a.take().1, b"echo!");
    let mut others: Vec<Ud> = (0..20).map(|_| Ud::new()).collect();
    for round in 0..3_u64 {
        for b in &mut others {
            b.recv(0, 16);
        }
        let targets: Vec<UdTarget> = others.iter().map(|b| a.to(b.qpn(), QKEY)).collect();
        a.end.put(0, &round.to_le_bytes());
        let sges = [a.end.sge(0, 8)];
        let wrs: Vec<_> = targets.iter().map(|to| SendWr::send_to(1, &sges, *to)).collect();
        a.end.send(&wrs);
        for b in &mut others {
            assert_eq!(b.take().1, round.to_le_bytes());
        }
    }
}

#[test]
fn without_a_receive_a_datagram_is_dropped_and_not_kept() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    arrives(&mut a, &mut b, b"the way is known");
    for _ in 0..1000 {
        a.send(b.qpn(), QKEY, &[1; 4000]);
    }
    assert_eq!(b.end.poll(), None);
    arrives(&mut a, &mut b, b"and still is");
    // Exactly as many as there are receives, in order.
    for i in 0..3 {
        b.recv(i, 8);
    }
    for i in 0..10_u64 {
        a.send(b.qpn(), QKEY, &i.to_le_bytes());
    }
    for i in 0..3_u64 {
        assert_eq!((b.take().1, i), (i.to_le_bytes().to_vec(), i));
    }
    assert_eq!(b.end.poll(), None);
    arrives(&mut a, &mut b, b"nothing was kept");
}

#[test]
fn keeps_a_receive_that_is_too_short_for_a_datagram() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    arrives(&mut a, &mut b, b"first");
    for len in [9, 4096] {
        b.end.put(slot(5), &[0x5A; 4600]);
        b.recv(5, 8);
        a.send(b.qpn(), QKEY, &vec![1; len]);
        assert_eq!((b.end.poll(), b.end.qp.state()), (None, QpState::Rts));
        assert_eq!(b.end.get(slot(5), 4600), vec![0x5A; 4600]);
        a.send(b.qpn(), QKEY, &[2; 8]);
        assert_eq!((b.take().1, b.end.poll()), (vec![2; 8], None));
    }
}

#[test]
fn a_wrong_q_key_is_silent_and_the_high_bit_stands_for_ones_own() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    arrives(&mut a, &mut b, b"first");
    b.recv(1, 8);
    for wrong in [0, QKEY + 1, QKEY ^ (1 << 30)] {
        a.send(b.qpn(), wrong, &[1; 8]);
        assert_eq!((b.end.poll(), b.end.qp.state()), (None, QpState::Rts));
    }
    // Both have the same Q_Key, which a request with the high bit set uses.
    a.send(b.qpn(), 1 << 31 | 5, &[2; 8]);
    assert_eq!(b.take().1, [2; 8]);
    b.end.qp.modify(&QpAttr { qkey: Some(99), ..QpAttr::default() }).unwrap();
    b.recv(1, 8);
    a.send(b.qpn(), QKEY, &[3; 8]);
    a.send(b.qpn(), 1 << 31, &[4; 8]);
    assert_eq!(b.end.poll(), None);
    a.send(b.qpn(), 99, &[5; 8]);
    assert_eq!(b.take().1, [5; 8]);
}

#[test]
fn accepts_datagrams_to_an_absent_destination() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    let gone = Ud::new();
    let no_pair = gone.qpn();
    drop(gone);
    let rc = End::default();
    // A destroyed queue pair, one of another transport, numbers of no process, and one with too many bits.
    for qpn in [no_pair, rc.qp.qp_num(), 0x00_0001, 0x00_0FFF, 0xFFFF_FFFF] {
        for _ in 0..40 {
            a.send(qpn, QKEY, &[1; 100]);
        }
    }
    arrives(&mut a, &mut b, b"and others are reached");
}

#[test]
fn a_number_that_is_used_again_is_another_destination() {
    let mut a = Ud::new();
    let mut b = Ud::new();
    arrives(&mut a, &mut b, b"first");
    // Numbers are assigned in turn: use all others of the block before this one is assigned again.
    let qpn = b.qpn();
    let (pd, context) = (b.end.pd.clone(), b.end.context.clone());
    drop(b);
    let small = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
    for _ in 0..20_000 {
        let cq = context.create_cq(&CqInitAttr { cqe: 1, channel: None }).unwrap();
        let qp = create_qp(&*pd, (&*cq, &*cq), None, small, QpType::Ud);
        if qp.qp_num() != qpn {
            continue;
        }
        let mut end = End { qp, cq, ..End::of(QpType::Ud, small) };
        end.mr = pd.alloc_mr(1 << 20, ALL).unwrap();
        end.connect(0);
        let ah = pd.create_ah(&end.path()).unwrap();
        return arrives(&mut a, &mut Ud { end, ah }, b"the next owner of the number");
    }
    panic!("the number never came again");
}

#[test]
fn hundreds_of_senders_reach_one_receiver_each_in_order() {
    const SENDERS: usize = 300;
    const EACH: u64 = 10;
    let mut b = Ud::with(QpCap { max_recv_wr: 64, ..QpCap::default() });
    let mut senders: Vec<Ud> = (0..SENDERS).map(|_| Ud::new()).collect();
    let mut next = vec![0_u64; SENDERS];
    let of = |senders: &[Ud], qpn| senders.iter().position(|a| a.qpn() == qpn).unwrap();
    for i in 0..64 {
        b.recv(i, 16);
    }
    for round in 0..EACH {
        // As many at once as there are receives; a datagram beyond them would be dropped, correctly.
        for (first, group) in (0..SENDERS).collect::<Vec<_>>().chunks(64).map(|g| (g[0], g.len())) {
            for a in &mut senders[first..first + group] {
                a.send(b.qpn(), QKEY, &round.to_le_bytes());
            }
            for _ in 0..group {
                let (wc, got) = b.take();
                let from = of(&senders, wc.src_qp);
                assert_eq!(got, next[from].to_le_bytes());
                next[from] += 1;
                b.recv(wc.wr_id, 16);
            }
        }
    }
    assert_eq!((next, b.end.poll()), (vec![EACH; SENDERS], None));
}

#[test]
fn more_senders_than_rings_take_turns() {
    const SENDERS: usize = 1100;
    let small = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
    let mut b = Ud::new();
    // One domain and one region for all.
    let first = Ud::with(small);
    let mut senders: Vec<(End, Box<dyn AddressHandle>)> = Vec::new();
    for _ in 0..SENDERS {
        let mut end = first.end.sibling_of(QpType::Ud, small);
        end.connect(0);
        let ah = end.pd.create_ah(&end.path()).unwrap();
        senders.push((end, ah));
    }
    for round in 0..2_u64 {
        for (end, ah) in &mut senders {
            b.recv(1, 8);
            end.put(0, &round.to_le_bytes());
            let sges = [end.sge(0, 8)];
            let to = UdTarget { ah: ah.as_raw(), remote_qpn: b.qpn(), remote_qkey: QKEY };
            end.send(&[SendWr::send_to(1, &sges, to)]);
            let (wc, got) = b.take();
            assert_eq!((wc.src_qp, got), (end.qp.qp_num(), round.to_le_bytes().to_vec()));
        }
    }
}

#[test]
fn datagram_pairs_may_share_receives() {
    let first = Ud::new();
    let mut srq = first.end.pd.create_srq(&SrqInitAttr { max_wr: 16, max_sge: 1 }).unwrap();
    let (context, pd) = (first.end.context.clone(), first.end.pd.clone());
    let mut receivers: Vec<Ud> = (0..3)
        .map(|_| {
            let cq = context.create_cq(&CqInitAttr { cqe: 64, channel: None }).unwrap();
            let qp = create_qp(&*pd, (&*cq, &*cq), Some(&*srq), QpCap::default(), QpType::Ud);
            let mut end = End { qp, cq, ..first.end.sibling_of(QpType::Ud, QpCap::default()) };
            end.connect(0);
            let ah = pd.create_ah(&end.path()).unwrap();
            Ud { end, ah }
        })
        .collect();
    // Receives are in the memory of the first end, regardless of the queue pair that consumes them.
    let mut post = |wr_id: u64, len: usize| {
        let sges = [first.end.sge(slot(wr_id), GRH + len)];
        // SAFETY: the region outlives the queue.
        unsafe { srq.post_recv(&[RecvWr::new(wr_id, &sges)]) }.unwrap();
    };
    let mut a = Ud::new();
    // No receive posted: dropped. Too short: dropped as well, and the receive stays.
    a.send(receivers[0].qpn(), QKEY, &[9; 8]);
    while first.end.context.poll_async_event().is_some() {}
    receivers[0].until_counted("receive_dropped_no_receive", |b| assert_eq!(b.end.poll(), None));
    post(0, 8);
    a.send(receivers[0].qpn(), QKEY, &[9; 9]);
    assert_eq!(receivers[0].end.poll(), None);
    for round in 0..20_u64 {
        for (i, b) in receivers.iter_mut().enumerate() {
            let data = (round * 3 + i as u64).to_le_bytes();
            a.send(b.qpn(), QKEY, &data);
            let wc = b.end.wait();
            assert_eq!((wc.wr_id, wc.qp_num, wc.src_qp), (round * 3 + i as u64, b.qpn(), a.qpn()));
            assert_eq!(first.payload(&wc), data);
            post(round * 3 + i as u64 + 1, 8);
        }
    }
    // The remaining receive is available to any of the queue pairs; a queue pair in error leaves it.
    let sges = [first.end.sge(0, 8)];
    // SAFETY: the request is refused before any memory is accessed.
    let error = unsafe { receivers[0].end.qp.post_recv(&[RecvWr::new(1, &sges)]) }.unwrap_err();
    assert!(error.source.to_string().contains("shared receive queue"), "{error:?}");
    let failed = receivers[0].qpn();
    receivers[0].end.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    assert_eq!(receivers[0].end.poll(), None);
    let told = std::iter::from_fn(|| context.poll_async_event())
        .any(|e| e.element == failed && e.kind == AsyncEventKind::QpLastWqeReached);
    assert!(told, "no asynchronous event");
    a.send(receivers[1].qpn(), QKEY, b"the last");
    let wc = receivers[1].end.wait();
    assert_eq!((wc.wr_id, first.payload(&wc)), (60, b"the last".to_vec()));
}

#[test]
fn a_sleeper_is_woken_by_datagrams() {
    let (mut a, mut b) = (Ud::new(), Ud::new());
    for i in 0..200_u64 {
        b.recv(i, 8);
        b.end.cq.req_notify(Notify::Any).unwrap();
        assert_eq!(b.end.poll(), None);
        a.send(b.qpn(), QKEY, &i.to_le_bytes());
        assert!(readable(b.end.channel.fd(), 20_000), "datagram {i} woke nobody");
        assert_eq!(b.end.event(), Some(b.end.cq.id()));
        assert_eq!(b.take().1, i.to_le_bytes());
    }
    // Solicited only.
    b.recv(0, 8);
    b.recv(1, 8);
    b.end.cq.req_notify(Notify::Solicited).unwrap();
    a.send(b.qpn(), QKEY, &[1; 8]);
    assert!(!readable(b.end.channel.fd(), 50));
    let (sges, to) = ([a.end.sge(0, 8)], a.to(b.qpn(), QKEY));
    a.end.send(&[SendWr::send_to(1, &sges, to).with_flags(SendFlags::SOLICITED)]);
    assert!(readable(b.end.channel.fd(), 20_000));
    assert_eq!((b.take().1, b.take().1), (vec![1; 8], vec![1; 8]));
}

/// A sender that counted a receive as free which its last datagram had just consumed would send the next one too early.
#[test]
fn a_receive_is_promised_to_one_datagram() {
    const ENOUGH: Duration = Duration::from_secs(1);
    let (mut a, mut b) = (Ud::new(), Ud::with(QpCap { max_recv_wr: 1, ..QpCap::default() }));
    arrives(&mut a, &mut b, &[7; 4]);
    b.recv(0, 4);
    let (qpn, is_over) = (b.qpn(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                a.send(qpn, QKEY, &[8; 4]);
            }
        });
        let start = Instant::now();
        while start.elapsed() < ENOUGH {
            if b.end.poll().is_some() {
                // Datagrams that arrive before there is another receive are dropped.
                b.end.poll();
                b.recv(0, 4);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(b.counted("receive_dropped_no_receive"), 0);
}
