//! Receivers of datagrams that are slower than their senders.

use std::time::{Duration, Instant};

use crate::support::datagrams::{Ud, arrives};
use crate::support::*;
use farcall_verbs::{QpCap, SendWr, WcStatus};

#[test]
fn a_receiver_that_is_slower_than_its_sender_loses_nothing() {
    const LEN: usize = 4000;
    let cap = QpCap { max_send_wr: 256, max_recv_wr: 128, ..QpCap::default() };
    let (mut a, mut b, mut c) = (Ud::with(cap), Ud::with(cap), Ud::new());
    let mut sent = 0;
    for round in 0..4 {
        for wr_id in 0..100 {
            b.recv(wr_id, LEN);
        }
        c.recv(round, 8);
        let to = [a.to(b.qpn(), QKEY), a.to(c.qpn(), QKEY)];
        let sges = [a.end.sge(0, LEN), a.end.sge(0, 8)];
        a.end.put(0, &[7; LEN]);
        for wr_id in sent..sent + 100 {
            let wr = SendWr::send_to(wr_id, &sges[..1], to[0]);
            a.end.send(&[if wr_id % 3 == 0 { wr.with_flags(SIGNALED) } else { wr }]);
        }
        a.end.send(&[SendWr::send_to(1000 + round, &sges[1..], to[1]).with_flags(SIGNALED)]);
        for wr_id in 0..100 {
            let (wc, got) = b.take();
            assert_eq!((wc.wr_id, got == [7; LEN]), (wr_id, true), "round {round}");
        }
        assert_eq!(c.take().1, [7; 8]);
        for wr_id in (sent..sent + 100).filter(|wr_id| wr_id % 3 == 0).chain([1000 + round]) {
            let wc = a.end.wait();
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::SUCCESS));
        }
        sent += 100;
    }
    assert_eq!((a.end.poll(), b.end.poll()), (None, None));
}

#[test]
fn a_receiver_that_takes_little_is_not_waited_for_each_time() {
    const SENDS: u64 = 200;
    let cap = QpCap { max_send_wr: SENDS as u32, max_recv_wr: SENDS as u32, ..QpCap::default() };
    let (mut a, mut b) = (Ud::with(cap), Ud::with(cap));
    arrives(&mut a, &mut b, b"the way");
    let (sges, to) = ([a.end.sge(0, 8)], a.to(b.qpn(), QKEY));
    a.end.put(0, &[7; 8]);
    (0..SENDS).for_each(|wr_id| a.end.send(&[SendWr::send_to(wr_id, &sges, to).with_flags(SIGNALED)]));
    let (mut ended, mut posted, mut taken, mut last) = (0, 0, 0, Instant::now());
    while ended < SENDS {
        // Long before a destination without progress would be abandoned.
        if last.elapsed() > Duration::from_millis(50) {
            (posted, last) = (posted + 1, Instant::now());
            b.recv(posted, 8);
            assert!(posted < SENDS, "every one of them was waited for");
        }
        ended += u64::from(a.end.poll().is_some());
        taken += u64::from(b.end.poll().is_some());
    }
    assert!(taken > 0 && a.counted("dropped_after_wait") > 0, "{taken} of {posted}");
}
