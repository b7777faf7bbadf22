//! All operations, their completions and their data, within one process.

use crate::support::*;
use farcall_verbs::{SendFlags, SendWr, Sge, WcStatus};

#[test]
fn a_send_to_a_target_that_never_polls_completes() {
    let (mut a, b) = pair();
    let mut b = b;
    for i in 0..100 {
        b.recv(i, &[b.sge(i as usize * 8192, 8192)]);
    }
    for i in 0..100_u64 {
        let len = if i % 2 == 0 { 16 } else { 8192 };
        a.put(0, &bytes(len, i));
        let sges = [a.sge(0, len)];
        a.send(&[SendWr::send(i, &sges).with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
    }
    for i in 0..100_u64 {
        let wc = b.wait();
        let len = if i % 2 == 0 { 16 } else { 8192 };
        assert_eq!((wc.wr_id, wc.byte_len), (i, len));
        assert_eq!(b.get(i as usize * 8192, len as usize), bytes(len as usize, i));
    }
}

#[test]
fn sends_wait_for_receives_and_keep_their_order() {
    let (mut a, mut b) = pair();
    for i in 0..50_u64 {
        let data = i.to_le_bytes();
        let sges = [Sge { addr: data.as_ptr().expose_provenance() as u64, length: 8, lkey: 0 }];
        a.send(&[SendWr::send(i, &sges).with_flags(SIGNALED | INLINE)]);
    }
    assert_eq!(a.poll(), None, "nothing can complete before a receive is posted");
    for i in 0..50_u64 {
        b.recv(i, &[b.sge(i as usize * 8, 8)]);
        assert_eq!(a.wait().wr_id, i);
        assert_eq!((b.wait().wr_id, b.get(i as usize * 8, 8)), (i, i.to_le_bytes().to_vec()));
    }
}

#[test]
fn a_million_messages_wrap_the_ring_intact() {
    let (mut a, mut b) = pair();
    const WINDOW: u64 = 64;
    let slot = |i: u64| (i % WINDOW) as usize * 2048;
    for i in 0..WINDOW {
        b.recv(i, &[b.sge(slot(i), 2048)]);
    }
    let total = if cfg!(debug_assertions) { 60_000 } else { 1_000_000 };
    let len = |i: u64| (i * 37 % 300) as usize + if i.is_multiple_of(61) { 1500 } else { 0 };
    let (mut sent, mut got) = (0, 0);
    while got < total {
        while sent < total && sent < got + WINDOW {
            a.put(slot(sent), &bytes(len(sent), sent));
            let sges = [a.sge(slot(sent), len(sent))];
            let flags = if sent % 16 == 0 { SIGNALED } else { SendFlags::empty() };
            a.send(&[SendWr::send(sent, &sges).with_flags(flags)]);
            sent += 1;
        }
        while a.poll().is_some() {}
        let wc = b.wait();
        assert_eq!((wc.wr_id, wc.byte_len as usize), (got % WINDOW, len(got)));
        assert_eq!(b.get(slot(got), len(got)), bytes(len(got), got));
        b.recv(got % WINDOW, &[b.sge(slot(got), 2048)]);
        got += 1;
    }
}
