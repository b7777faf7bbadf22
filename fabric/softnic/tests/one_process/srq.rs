//! Shared receive queues: messages of many queue pairs consume receives of one queue, matched by its process.

use std::collections::HashMap;
use std::sync::Arc;

use crate::support::*;
use farcall_verbs::{
    AsyncEvent, AsyncEventKind, CqInitAttr, Error, Notify, QpAttr, QpCap, QpState, QpType, RawCq, RawQp,
    RawSrq, RecvWr, SendFlags, SendWr, Sge, SrqAttr, SrqInitAttr, Wc, WcOpcode, WcStatus,
};

/// An end whose queue pairs share receives; `end.qp` is the first of them.
struct Sharing {
    end: End,
    srq: Box<dyn RawSrq>,
}

impl Sharing {
    fn new(max_wr: u32) -> Self {
        let mut end = End::new(8 << 20, ALL, QpCap::default());
        let srq = end.pd.create_srq(&SrqInitAttr { max_wr, max_sge: 4 }).unwrap();
        end.qp = new_qp(&end, &*srq, &*end.cq);
        Self { end, srq }
    }

    fn post(&mut self, wr_id: u64, sges: &[Sge]) {
        // SAFETY: the tests keep their regions and wait for completions.
        unsafe { self.srq.post_recv(&[RecvWr::new(wr_id, sges)]) }.unwrap();
    }

    /// Posts `count` receives without memory, in one call.
    fn post_many(&mut self, count: u64) {
        let receives: Vec<_> = (0..count).map(|wr_id| RecvWr::new(wr_id, &[])).collect();
        // SAFETY: the receives name no memory.
        unsafe { self.srq.post_recv(&receives) }.unwrap();
    }

    /// Adds a queue pair at the same completion queue, connected to a new end.
    fn add(&mut self) -> (End, Box<dyn RawQp>) {
        let fresh = new_qp(&self.end, &*self.srq, &*self.end.cq);
        let first = std::mem::replace(&mut self.end.qp, fresh);
        let mut sender = End::new(4 << 20, ALL, QpCap::default());
        join(&mut sender, &mut self.end, End::rts);
        (sender, std::mem::replace(&mut self.end.qp, first))
    }

    /// Like [`Sharing::add`], with both ends connected to their peers: later messages of the new end are delivered
    /// immediately.
    fn add_met(&mut self) -> (End, Box<dyn RawQp>) {
        let (mut sender, qp) = self.add();
        self.post(0, &[]);
        sender.send(&[SendWr::send(0, &[]).with_flags(SIGNALED)]);
        both(&mut sender, 1, &mut self.end, 1);
        (sender, qp)
    }
}

fn new_qp(end: &End, srq: &dyn RawSrq, recv_cq: &dyn RawCq) -> Box<dyn RawQp> {
    create_qp(&*end.pd, (&*end.cq, recv_cq), Some(srq), QpCap::default(), QpType::Rc)
}

/// Returns a sender, and a connected end with space for `max_wr` shared receives.
fn sharing(max_wr: u32, rts: impl Fn(&mut End)) -> (End, Sharing) {
    let (mut a, mut b) = (End::new(4 << 20, ALL, QpCap::default()), Sharing::new(max_wr));
    join(&mut a, &mut b.end, rts);
    (a, b)
}

/// Polls both ends until each has its completions.
fn both(a: &mut End, of_a: usize, b: &mut End, of_b: usize) -> (Vec<Wc>, Vec<Wc>) {
    let start = std::time::Instant::now();
    let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
    while from_a.len() < of_a || from_b.len() < of_b {
        from_a.extend(a.poll());
        from_b.extend(b.poll());
        assert!(start.elapsed() < LOST, "{} of {of_a}, {} of {of_b}", from_a.len(), from_b.len());
    }
    (from_a, from_b)
}

fn event_of(end: &End, element: u32, kind: AsyncEventKind) -> bool {
    let wanted = AsyncEvent { kind, element };
    std::iter::from_fn(|| end.context.poll_async_event()).any(|event| event == wanted)
}

#[test]
fn messages_of_every_size_fill_shared_receives_in_order() {
    let (mut a, mut b) = sharing(8, End::rts);
    for (round, len) in [0, 1, 8, 100, 1024, 1025, 5000, 100_000, 1 << 20].into_iter().enumerate() {
        let round = round as u64;
        // Scattered over three elements.
        let (first, second) = (len / 3, len / 4);
        let sges =
            [b.end.sge(0, first), b.end.sge(1 << 20, second), b.end.sge(2 << 20, len - first - second + 8)];
        b.end.put(0, &vec![0; 4 << 20]);
        b.post(round, &sges);
        let data = bytes(len, round);
        a.put(0, &data);
        let from = [a.sge(0, len)];
        a.send(&[SendWr::send(round, &from).with_imm(7).with_flags(SIGNALED)]);
        let (sent, got) = both(&mut a, 1, &mut b.end, 1);
        assert_eq!(
            (sent[0].status, sent[0].wr_id, sent[0].opcode),
            (WcStatus::SUCCESS, round, WcOpcode::SEND)
        );
        assert_eq!((got[0].status, got[0].wr_id, got[0].imm()), (WcStatus::SUCCESS, round, Some(7)));
        assert_eq!((got[0].byte_len as usize, got[0].qp_num), (len, b.end.qp.qp_num()));
        let parts =
            [b.end.get(0, first), b.end.get(1 << 20, second), b.end.get(2 << 20, len - first - second)];
        assert!(parts.concat() == data, "{len} bytes");
        assert_eq!(b.end.get((2 << 20) + len - first - second, 8), [0; 8], "bytes beyond the message");
    }
}

#[test]
fn many_pairs_share_receives_and_each_keeps_its_order() {
    const PAIRS: usize = 40;
    const EACH: u32 = 30;
    let mut b = Sharing::new(16);
    let (mut senders, receivers): (Vec<End>, Vec<_>) = (0..PAIRS).map(|_| b.add()).unzip();
    let place: HashMap<u32, usize> = (0..).zip(&receivers).map(|(at, qp)| (qp.qp_num(), at)).collect();
    for slot in 0..16 {
        b.post(slot, &[b.end.sge(slot as usize * 2048, 2048)]);
    }
    let len_of = |n: u32| [8, 700, 2000][n as usize % 3];
    for (at, sender) in senders.iter_mut().enumerate() {
        for n in 0..EACH {
            sender.put(n as usize * 2048, &bytes(len_of(n), at as u64 * 1000 + u64::from(n)));
            let sges = [sender.sge(n as usize * 2048, len_of(n))];
            sender.send(&[SendWr::send(n.into(), &sges).with_imm(n).with_flags(SIGNALED)]);
        }
    }
    let (mut next, mut confirmed) = (vec![0; PAIRS], vec![0; PAIRS]);
    let start = std::time::Instant::now();
    while next.iter().any(|n| *n < EACH) || confirmed.iter().any(|n| *n < EACH) {
        assert!(start.elapsed() < LOST, "messages were lost: {next:?} {confirmed:?}");
        if let Some(wc) = b.end.poll() {
            let (at, n) = (place[&wc.qp_num], wc.imm().unwrap());
            assert_eq!((wc.status, n), (WcStatus::SUCCESS, next[at]));
            let got = b.end.get(wc.wr_id as usize * 2048, len_of(n));
            assert!(got == bytes(len_of(n), at as u64 * 1000 + u64::from(n)), "message {n} of pair {at}");
            next[at] += 1;
            b.post(wc.wr_id, &[b.end.sge(wc.wr_id as usize * 2048, 2048)]);
        }
        for (at, sender) in senders.iter_mut().enumerate() {
            while let Some(wc) = sender.poll() {
                assert_eq!((wc.status, wc.wr_id), (WcStatus::SUCCESS, u64::from(confirmed[at])));
                confirmed[at] += 1;
            }
        }
    }
}

#[test]
fn a_pair_that_floods_does_not_take_all_shared_receives() {
    let mut b = Sharing::new(64);
    let ((mut flood, flooded), (mut other, asked)) = (b.add_met(), b.add_met());
    for n in 0..64 {
        flood.send(&[SendWr::send(n, &[])]);
    }
    other.send(&[SendWr::send(0, &[])]);
    b.post_many(64);
    // Both are connected and have sent before a message is received.
    let mut wc = [Wc::default(); 64];
    let start = std::time::Instant::now();
    let mut seen = Vec::new();
    while !seen.contains(&asked.qp_num()) {
        assert!(start.elapsed() < LOST);
        let n = b.end.cq.poll(&mut wc).unwrap();
        seen.extend(wc[..n].iter().map(|wc| wc.qp_num));
        assert_eq!((flood.poll(), other.poll()), (None, None));
    }
    let before = seen.iter().take_while(|qpn| **qpn == flooded.qp_num()).count();
    assert!(before <= 16, "{before} messages of the flood came first");
}

#[test]
fn serves_pairs_in_turn_if_one_floods_an_unpolled_queue() {
    let mut b = Sharing::new(64);
    let ((mut flood, _flooded), (mut other, _asked)) = (b.add_met(), b.add_met());
    for n in 0..64 {
        let flags = if n == 31 { SIGNALED } else { SendFlags::empty() };
        flood.send(&[SendWr::send(n, &[]).with_flags(flags)]);
    }
    other.send(&[SendWr::send(0, &[]).with_flags(SIGNALED)]);
    b.post_many(64);
    // The service thread is requested for the flooding queue pair only, and then finds the other one.
    assert_eq!(flood.wait().status, WcStatus::SUCCESS);
    assert_eq!(other.wait().status, WcStatus::SUCCESS);
}

#[test]
fn keeps_order_behind_a_send_that_waits_for_a_shared_receive() {
    let (mut a, mut b) = sharing(4, End::rts);
    a.put(0, &[1; 8]);
    b.end.put(4096, &[0; 8]);
    let sges = [a.sge(0, 8)];
    let to = (b.end.mr.addr() as u64 + 4096, b.end.mr.rkey());
    a.send(&[
        SendWr::send(1, &sges).with_flags(SIGNALED),
        SendWr::write(2, &sges, to.0, to.1).with_flags(SIGNALED),
    ]);
    for _ in 0..100 {
        assert_eq!((a.poll(), b.end.poll()), (None, None));
    }
    assert_eq!(b.end.get(4096, 8), [0; 8], "a WRITE overtook a SEND that was not accepted");
    b.post(5, &[b.end.sge(0, 8)]);
    let (sent, got) = both(&mut a, 2, &mut b.end, 1);
    assert_eq!(sent.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((got[0].wr_id, b.end.get(4096, 8)), (5, vec![1; 8]));
}

#[test]
fn fails_a_send_after_its_retries_without_a_shared_receive() {
    for len in [8, 5000] {
        let (mut a, mut b) = sharing(4, |end| {
            // However long the target takes to poll.
            let attr = QpAttr { timeout: Some(0), rnr_retry: Some(1), ..QpAttr::rts(0) };
            end.qp.modify(&attr).unwrap();
        });
        let sges = [a.sge(0, len)];
        a.send(&[SendWr::send(1, &sges), SendWr::send(2, &sges), SendWr::send(3, &sges)]);
        let (ends, _) = both(&mut a, 3, &mut b.end, 0);
        let ends: Vec<_> = ends.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        let flushed = WcStatus::WR_FLUSH_ERR;
        assert_eq!(ends, [(1, WcStatus::RNR_RETRY_EXC_ERR), (2, flushed), (3, flushed)]);
        // An abandoned message is not received, and its receive remains available.
        b.post(9, &[b.end.sge(0, 8192)]);
        for _ in 0..10 {
            assert_eq!(b.end.poll(), None);
        }
        let (mut other, _qp) = b.add();
        let sges = [other.sge(0, 8)];
        other.send(&[SendWr::send(4, &sges).with_flags(SIGNALED)]);
        let (sent, got) = both(&mut other, 1, &mut b.end, 1);
        assert_eq!((sent[0].status, got[0].status, got[0].wr_id), (WcStatus::SUCCESS, WcStatus::SUCCESS, 9));
    }
}

#[test]
fn completes_sends_to_an_unpolled_shared_receive_queue() {
    let (mut a, mut b) = sharing(100, End::rts);
    for wr_id in 0..100 {
        b.post(wr_id, &[b.end.sge(wr_id as usize * 8192, 8192)]);
    }
    let len_of = |n: u64| [8, 1000, 6000][n as usize % 3];
    for n in 0..100 {
        a.put(n as usize * 8192, &bytes(len_of(n), n));
        let sges = [a.sge(n as usize * 8192, len_of(n))];
        a.send(&[SendWr::send(n, &sges).with_flags(SIGNALED)]);
    }
    for n in 0..100 {
        let wc = a.wait();
        assert_eq!((wc.status, wc.wr_id), (WcStatus::SUCCESS, n));
    }
    for n in 0..100 {
        let wc = b.end.wait();
        assert_eq!((wc.status, wc.wr_id), (WcStatus::SUCCESS, n));
        assert!(b.end.get(n as usize * 8192, len_of(n)) == bytes(len_of(n), n), "message {n}");
    }
}

#[test]
fn sleepers_at_both_ends_of_a_shared_receive_wake_each_other() {
    let (mut a, mut b) = sharing(4, End::rts);
    for wr_id in 0..4 {
        b.post(wr_id, &[b.end.sge(wr_id as usize * 8192, 8192)]);
    }
    let rounds = 2000_u64;
    let receiver = std::thread::spawn(move || {
        for round in 0..rounds {
            let wc = b.end.sleep(if round % 2 == 0 { Notify::Any } else { Notify::Solicited });
            assert_eq!((wc.status, wc.imm()), (WcStatus::SUCCESS, Some(round as u32)));
            b.post(wc.wr_id, &[b.end.sge(wc.wr_id as usize * 8192, 8192)]);
        }
        b
    });
    for round in 0..rounds {
        let sges = [a.sge(0, if round % 16 == 0 { 5000 } else { 8 })];
        let wr = SendWr::send(round, &sges).with_imm(round as u32);
        a.send(&[wr.with_flags(SIGNALED | SendFlags::SOLICITED)]);
        let wc = a.sleep(Notify::Any);
        assert_eq!((wc.status, wc.wr_id), (WcStatus::SUCCESS, round));
    }
    drop(receiver.join().unwrap());
}

#[test]
fn the_limit_event_comes_once_for_each_arming() {
    let (mut a, mut b) = sharing(8, End::rts);
    let number = b.srq.srq_num();
    for wr_id in 0..4 {
        b.post(wr_id, &[]);
    }
    b.srq.modify(&SrqAttr { srq_limit: Some(3), ..SrqAttr::default() }).unwrap();
    assert_eq!(b.srq.query().unwrap().srq_limit, 3);
    let send = |a: &mut End, b: &mut Sharing| {
        a.send(&[SendWr::send(0, &[]).with_flags(SIGNALED)]);
        both(a, 1, &mut b.end, 1);
    };
    let limit = |b: &Sharing| event_of(&b.end, number, AsyncEventKind::SrqLimitReached);
    send(&mut a, &mut b);
    assert!(!limit(&b), "three are left");
    send(&mut a, &mut b);
    assert!(limit(&b), "two are left");
    assert_eq!(b.srq.query().unwrap().srq_limit, 0, "it is disarmed");
    send(&mut a, &mut b);
    assert!(!limit(&b), "it came twice");
    // One receive is left: a limit above that raises the event immediately.
    b.srq.modify(&SrqAttr { srq_limit: Some(2), ..SrqAttr::default() }).unwrap();
    assert!(limit(&b));
}

#[test]
fn resizes_a_shared_queue_only_within_its_bounds() {
    let (_a, mut b) = sharing(2, End::rts);
    let post = |b: &mut Sharing, n: usize| {
        let wrs: Vec<_> = (0..n as u64).map(|wr_id| RecvWr::new(wr_id, &[])).collect();
        // SAFETY: no memory is named.
        unsafe { b.srq.post_recv(&wrs) }
    };
    let refused = post(&mut b, 3).unwrap_err();
    assert!(matches!(*refused.source, Error::Exhausted { .. }) && refused.posted == 2, "{refused}");
    let resize =
        |b: &mut Sharing, max_wr: u32| b.srq.modify(&SrqAttr { max_wr: Some(max_wr), srq_limit: None });
    resize(&mut b, 5).unwrap();
    post(&mut b, 3).unwrap();
    assert!(resize(&mut b, 4).is_err(), "five are posted");
    assert_eq!(b.srq.query().unwrap().max_wr, 5);
    assert!(resize(&mut b, u32::MAX).is_err());
    let limit = SrqAttr { srq_limit: Some(6), ..SrqAttr::default() };
    assert!(b.srq.modify(&limit).is_err(), "a limit that can never be reached");
    let five = [Sge::default(); 5];
    // SAFETY: the request is refused before any memory is accessed.
    assert!(unsafe { b.srq.post_recv(&[RecvWr::new(0, &five)]) }.is_err());
}

#[test]
fn reports_the_last_shared_receive_of_a_pair_in_error() {
    let (mut a, mut b) = sharing(4, End::rts_impatient);
    b.post(1, &[b.end.sge(0, 8192)]);
    // A receive is offered to a large message, which may or may not arrive completely before the error state.
    let sges = [a.sge(0, 8000)];
    a.send(&[SendWr::send(1, &sges).with_flags(SIGNALED)]);
    let qpn = b.end.qp.qp_num();
    b.end.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    // No thread polls.
    let start = std::time::Instant::now();
    while !event_of(&b.end, qpn, AsyncEventKind::QpLastWqeReached) {
        assert!(start.elapsed() < LOST, "no event");
        std::thread::yield_now();
    }
    let received: Vec<Wc> = (0..10).filter_map(|_| b.end.poll()).collect();
    assert!(received.len() <= 1, "{received:?}");
    for wc in &received {
        assert!(matches!(wc.status, WcStatus::SUCCESS | WcStatus::WR_FLUSH_ERR), "{wc:?}");
        assert_eq!((wc.wr_id, wc.qp_num), (1, qpn));
    }
    assert!(!event_of(&b.end, qpn, AsyncEventKind::QpLastWqeReached), "it came twice");
    let has_come = received.iter().any(|wc| wc.status.is_success());
    assert_eq!(a.wait().status.is_success(), has_come, "{received:?}");
}

#[test]
fn fails_only_both_ends_if_a_shared_receive_is_too_short() {
    for len in [9, 1024, 5000] {
        let (mut a, mut b) = sharing(4, End::rts);
        let (mut other, _qp) = b.add();
        b.end.put(0, &[0x5A; 8192]);
        b.post(1, &[b.end.sge(0, 8)]);
        b.post(2, &[b.end.sge(4096, 8)]);
        let sges = [a.sge(0, len)];
        a.send(&[SendWr::send(10, &sges), SendWr::send(11, &sges)]);
        let (sent, got) = both(&mut a, 2, &mut b.end, 1);
        assert_eq!((sent[0].wr_id, sent[0].status), (10, WcStatus::REM_INV_REQ_ERR), "{len}");
        assert_eq!((sent[1].wr_id, sent[1].status), (11, WcStatus::WR_FLUSH_ERR));
        assert_eq!((got[0].wr_id, got[0].status), (1, WcStatus::LOC_LEN_ERR));
        assert_eq!((a.qp.state(), b.end.qp.state()), (QpState::Err, QpState::Err));
        assert_eq!(b.end.get(8, 4096), vec![0x5A; 4096], "bytes beyond the receive were written");
        let sges = [other.sge(0, 8)];
        other.send(&[SendWr::send(12, &sges).with_flags(SIGNALED)]);
        let (sent, got) = both(&mut other, 1, &mut b.end, 1);
        assert_eq!((sent[0].status, got[0].wr_id), (WcStatus::SUCCESS, 2));
    }
}

#[test]
fn fails_a_shared_receive_into_deregistered_memory() {
    for len in [8, 5000] {
        let (mut a, mut b) = sharing(4, End::rts);
        let gone = b.end.pd.alloc_mr(8192, ALL).unwrap();
        b.post(1, &[Sge { addr: gone.addr() as u64, length: 8192, lkey: gone.lkey() }]);
        drop(gone);
        let sges = [a.sge(0, len)];
        a.send(&[SendWr::send(10, &sges)]);
        let (sent, got) = both(&mut a, 1, &mut b.end, 1);
        assert_eq!((sent[0].status, got[0].status), (WcStatus::REM_OP_ERR, WcStatus::LOC_PROT_ERR));
    }
}

#[test]
fn threads_that_poll_their_own_queues_share_receives() {
    const EACH: u64 = 3000;
    let b = Sharing::new(8);
    let Sharing { end: mut base, srq } = b;
    let (mut senders, mut pollers) = (Vec::new(), Vec::new());
    let srq = Arc::new(std::sync::Mutex::new(srq));
    for _ in 0..2 {
        let cq = base.context.create_cq(&CqInitAttr { cqe: 64, channel: None }).unwrap();
        base.qp = new_qp(&base, &**srq.lock().unwrap(), &*cq);
        let mut sender = End::default();
        join(&mut sender, &mut base, End::rts);
        let other = new_qp(&base, &**srq.lock().unwrap(), &*cq);
        pollers.push((cq, std::mem::replace(&mut base.qp, other)));
        senders.push(sender);
    }
    let post = |srq: &std::sync::Mutex<Box<dyn RawSrq>>, wr_id: u64| {
        // SAFETY: no memory is named.
        unsafe { srq.lock().unwrap().post_recv(&[RecvWr::new(wr_id, &[])]) }.unwrap();
    };
    (0..8).for_each(|wr_id| post(&srq, wr_id));
    let mut threads = Vec::new();
    for (mut cq, qp) in pollers {
        let srq = srq.clone();
        threads.push(std::thread::spawn(move || {
            let (mut wc, mut next, start) = ([Wc::default(); 4], 0, std::time::Instant::now());
            while next < EACH {
                let n = cq.poll(&mut wc).unwrap();
                for wc in &wc[..n] {
                    assert_eq!(
                        (wc.status, wc.imm(), wc.qp_num),
                        (WcStatus::SUCCESS, Some(next as u32), qp.qp_num())
                    );
                    next += 1;
                    post(&srq, wc.wr_id);
                }
                assert!(start.elapsed() < 3 * LOST, "message {next} was lost");
            }
        }));
    }
    for mut sender in senders {
        threads.push(std::thread::spawn(move || {
            for n in 0..EACH {
                sender.send(&[SendWr::send(n, &[]).with_imm(n as u32).with_flags(SIGNALED)]);
                if n % 32 == 31 {
                    assert!(sender.wait_n(32).iter().all(|wc| wc.status.is_success()));
                }
            }
            assert!(sender.wait_n((EACH % 32) as usize).iter().all(|wc| wc.status.is_success()));
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A thread that owns both ends, with one message outstanding, does not poll 64 times for each message.
#[test]
fn matches_sooner_where_no_other_thread_does() {
    let (mut a, mut b) = sharing(64, End::rts);
    let looks = (0..200).map(|wr_id| {
        b.post(wr_id, &[]);
        a.send(&[SendWr::send(wr_id, &[]).with_flags(SIGNALED)]);
        let start = std::time::Instant::now();
        let mut looks = 0;
        while a.poll().is_none() {
            looks += 1;
            assert!(start.elapsed() < LOST, "no completion of {wr_id}");
        }
        assert_eq!(b.end.wait().status, WcStatus::SUCCESS);
        looks
    });
    let mut looks: Vec<u32> = looks.skip(10).collect();
    looks.sort_unstable();
    // Some are matched by the service thread, or after a time, if this thread is preempted.
    assert!(looks[looks.len() / 4] <= 4, "{looks:?}");
}

/// Threads with a queue pair each and shared receives. Each thread sends a batch, waits for its sends without polling
/// its receives, and then waits for the receives.
#[test]
fn serves_threads_that_share_one_queue_of_receives() {
    const THREADS: usize = 6;
    const BATCH: usize = 24;
    const ROUNDS: u64 = 40;
    const SLOT: usize = 64;
    let memory = End::new(THREADS * BATCH * SLOT, ALL, QpCap::default());
    let attr = SrqInitAttr { max_wr: (THREADS * BATCH) as u32, max_sge: 1 };
    let srq = std::sync::Mutex::new(memory.pd.create_srq(&attr).unwrap());
    let mr = &*memory.mr;
    let place = |slot: u64| mr.addr().wrapping_add(slot as usize * SLOT);
    let post = |slot: u64| {
        let sges = [Sge { addr: place(slot) as u64, length: SLOT as u32, lkey: mr.lkey() }];
        // SAFETY: each slot is posted once, and again after its completion.
        unsafe { srq.lock().unwrap().post_recv(&[RecvWr::new(slot, &sges)]) }.unwrap();
    };
    (0..(THREADS * BATCH) as u64).for_each(post);
    let pairs: Vec<(End, End)> = (0..THREADS)
        .map(|_| {
            let (mut a, mut b) = (End::new(BATCH * SLOT, ALL, QpCap::default()), memory.sibling());
            let shared = srq.lock().unwrap();
            b.qp = create_qp(&*memory.pd, (&*b.cq, &*b.cq), Some(&**shared), QpCap::default(), QpType::Rc);
            drop(shared);
            join(&mut a, &mut b, End::rts);
            (a, b)
        })
        .collect();
    std::thread::scope(|scope| {
        for (thread, (mut a, mut b)) in pairs.into_iter().enumerate() {
            let (post, place) = (&post, &place);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    for at in 0..BATCH {
                        let word = (thread as u64) << 32 | round << 8 | at as u64;
                        a.put(at * SLOT, &word.to_ne_bytes());
                        let sges = [a.sge(at * SLOT, SLOT)];
                        a.send(&[SendWr::send(at as u64, &sges).with_flags(SIGNALED)]);
                    }
                    for (at, wc) in a.wait_n(BATCH).iter().enumerate() {
                        assert_eq!(
                            (wc.wr_id, wc.status),
                            (at as u64, WcStatus::SUCCESS),
                            "{thread}, {round}"
                        );
                    }
                    for (at, wc) in b.wait_n(BATCH).iter().enumerate() {
                        assert_eq!(wc.status, WcStatus::SUCCESS, "{thread}, {round}");
                        let word = (thread as u64) << 32 | round << 8 | at as u64;
                        // SAFETY: the memory belongs to the test, and is not written before it is posted again.
                        let found = unsafe { place(wc.wr_id).cast::<u64>().read_volatile() };
                        assert_eq!(found, word, "{thread}, {round}");
                        post(wc.wr_id);
                    }
                }
            });
        }
    });
}
