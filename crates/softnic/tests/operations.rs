//! Each operation, its completions and its data, within one process.

mod support;

use farcall_verbs::{QpCap, QpState, RecvWr, SendFlags, SendWr, Sge, WcOpcode, WcStatus, WrOpcode};
use support::*;

const SIZES: [usize; 12] = [0, 1, 7, 8, 9, 47, 48, 49, 1024, 1025, 65_537, 1 << 20];

#[test]
fn write_places_exactly_the_bytes_at_every_size() {
    let (mut a, b) = pair();
    for (i, len) in SIZES.into_iter().enumerate() {
        a.put(0, &bytes(len, i as u64));
        b.put(0, &vec![0xEE; len + 128]);
        let sges = [a.sge(0, len)];
        a.send(&[SendWr::write(i as u64, &sges, b.mr.addr() as u64 + 64, b.mr.rkey()).with_flags(SIGNALED)]);
        let wc = a.wait();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (i as u64, WcStatus::SUCCESS, WcOpcode::RDMA_WRITE));
        assert_eq!(b.get(64, len), bytes(len, i as u64));
        assert_eq!((b.get(0, 64), b.get(64 + len, 64)), (vec![0xEE; 64], vec![0xEE; 64]));
    }
}

#[test]
fn read_brings_exactly_the_bytes_at_every_size() {
    let (mut a, b) = pair();
    for (i, len) in SIZES.into_iter().enumerate() {
        b.put(32, &bytes(len, i as u64));
        a.put(0, &vec![0xEE; len + 128]);
        let sges = [a.sge(64, len)];
        a.send(&[SendWr::read(i as u64, &sges, b.mr.addr() as u64 + 32, b.mr.rkey()).with_flags(SIGNALED)]);
        let wc = a.wait();
        assert_eq!((wc.status, wc.opcode), (WcStatus::SUCCESS, WcOpcode::RDMA_READ));
        assert_eq!(a.get(64, len), bytes(len, i as u64));
        assert_eq!((a.get(0, 64), a.get(64 + len, 64)), (vec![0xEE; 64], vec![0xEE; 64]));
    }
}

#[test]
fn send_fills_receives_in_order_at_every_size() {
    let (mut a, mut b) = pair();
    for (i, len) in SIZES.into_iter().enumerate() {
        a.put(0, &bytes(len, i as u64));
        b.put(0, &vec![0xEE; len + 64]);
        let into = [b.sge(0, len + 3)];
        b.recv(100 + i as u64, &into);
        let sges = [a.sge(0, len)];
        a.send(&[SendWr::send(i as u64, &sges).with_imm(i as u32).with_flags(SIGNALED)]);
        assert_eq!((a.wait().status, b.qp.state()), (WcStatus::SUCCESS, QpState::Rts));
        let wc = b.wait();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (100 + i as u64, WcStatus::SUCCESS, WcOpcode::RECV));
        assert_eq!((wc.byte_len as usize, wc.imm(), wc.src_qp), (len, Some(i as u32), a.qp.qp_num()));
        assert_eq!(b.get(0, len), bytes(len, i as u64));
        assert_eq!(b.get(len, 64), vec![0xEE; 64]);
    }
}

#[test]
fn gather_and_scatter_lists_are_walked_in_order() {
    let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::default() };
    let (mut a, mut b) = pair_with(cap, cap);
    for len in [30, 3000, 300_000] {
        let data = bytes(len, 5);
        a.put(0, &data);
        let third = len / 3;
        let from = [a.sge(0, third), a.sge(third, 0), a.sge(third, third), a.sge(2 * third, len - 2 * third)];
        let into = [b.sge(0, 7), b.sge(7, len / 2), b.sge(7 + len / 2, len)];
        b.recv(1, &into);
        a.send(&[SendWr::send(2, &from).with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        assert_eq!(b.wait().byte_len as usize, len);
        assert_eq!(b.get(0, len), data);

        let to = b.mr.addr() as u64 + 100;
        a.send(&[SendWr::write(3, &from, to, b.mr.rkey()).with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        assert_eq!(b.get(100, len), data);

        a.put(0, &vec![0; len]);
        a.send(&[SendWr::read(4, &from, to, b.mr.rkey()).with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        assert_eq!(a.get(0, len), data);
    }
}

#[test]
fn write_with_immediate_consumes_a_receive_and_places_elsewhere() {
    let (mut a, mut b) = pair();
    b.recv(9, &[]);
    a.put(0, b"payload!");
    let sges = [a.sge(0, 8)];
    let to = b.mr.addr() as u64 + 4096;
    a.send(&[SendWr::write(1, &sges, to, b.mr.rkey()).with_imm(0xABCD).with_flags(SIGNALED)]);
    let wc = b.wait();
    assert_eq!((wc.wr_id, wc.opcode, wc.imm()), (9, WcOpcode::RECV_RDMA_WITH_IMM, Some(0xABCD)));
    assert_eq!((wc.byte_len, b.get(4096, 8)), (8, b"payload!".to_vec()));
    assert_eq!(a.wait().opcode, WcOpcode::RDMA_WRITE);
}

#[test]
fn inline_data_needs_no_key_and_is_free_at_once() {
    let (mut a, mut b) = pair();
    b.recv(1, &[b.sge(0, 64)]);
    let mut private = *b"inline and private";
    let sges = [Sge { addr: private.as_mut_ptr().expose_provenance() as u64, length: 18, lkey: 0xBAD }];
    a.send(&[SendWr::send(1, &sges).with_flags(INLINE)]);
    private.fill(0);
    assert_eq!((b.wait().byte_len, b.get(0, 18)), (18, b"inline and private".to_vec()));
    assert_eq!(private, [0; 18]);
}

#[test]
fn only_signalled_requests_complete_and_in_order() {
    let (mut a, b) = pair();
    let sges = [a.sge(0, 8)];
    let to = b.mr.addr() as u64;
    let wrs: Vec<_> = (0..10)
        .map(|i| {
            let wr = SendWr::write(i, &sges, to, b.mr.rkey());
            if i % 3 == 0 { wr.with_flags(SIGNALED) } else { wr }
        })
        .collect();
    a.send(&wrs);
    let ids: Vec<u64> = a.wait_n(4).iter().map(|wc| wc.wr_id).collect();
    assert_eq!((ids, a.poll()), (vec![0, 3, 6, 9], None));
}

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
            a.put(0, &bytes(len(sent), sent));
            let sges = [a.sge(0, len(sent))];
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

#[test]
fn unsupported_and_oversized_requests_are_refused_whole() {
    let (mut a, b) = pair();
    let sges = [a.sge(0, 2000)];
    let too_long_inline = SendWr::send(1, &sges).with_flags(INLINE);
    // SAFETY: refused before any memory is touched.
    let error = unsafe { a.qp.post_send(&[too_long_inline]) }.unwrap_err();
    assert!(error.to_string().contains("max_inline_data"), "{error}");
    let two = [a.sge(0, 1), a.sge(1, 1)];
    // SAFETY: as above.
    let error = unsafe { a.qp.post_send(&[SendWr::send(1, &two)]) }.unwrap_err();
    assert!(error.to_string().contains("max_send_sge"), "{error}");
    let mut odd = SendWr::write(1, &sges, b.mr.addr() as u64, b.mr.rkey());
    odd.opcode = WrOpcode(77);
    // SAFETY: as above.
    assert!(unsafe { a.qp.post_send(&[odd]) }.is_err());
    // SAFETY: as above.
    let error = unsafe { a.qp.post_recv(&[RecvWr::new(1, &two)]) }.unwrap_err();
    assert!(error.to_string().contains("max_recv_sge"), "{error}");
    assert_eq!((a.qp.state(), a.poll()), (QpState::Rts, None));
}
