//! Compare and swap, fetch and add: values, order, checks, and that they are atomic for everybody.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use farcall_verbs::{
    Access, AsyncEventKind, AtomicTarget, OpCaps, QpAttr, QpCap, QpState, SendWr, Sge, Wc, WcOpcode,
    WcStatus, WrOpcode,
};
use support::process::{Fate, connect, learn, role, start};
use support::*;

const FAA: WrOpcode = WrOpcode::ATOMIC_FETCH_AND_ADD;
const CAS: WrOpcode = WrOpcode::ATOMIC_CMP_AND_SWP;
const BOTH: [WrOpcode; 2] = [CAS, FAA];

fn request(
    opcode: WrOpcode,
    sges: &[Sge],
    remote_addr: u64,
    rkey: u32,
    compare_add: u64,
    swap: u64,
) -> SendWr<'_> {
    SendWr::atomic(opcode, 5, sges, AtomicTarget { remote_addr, compare_add, swap, rkey })
        .with_flags(SIGNALED)
}

/// Posts one atomic on `b`'s memory at `at`; its result goes to the start of `a`'s.
fn post(a: &mut End, b: &End, at: u64, opcode: WrOpcode, compare_add: u64, swap: u64) -> Wc {
    let sges = [a.sge(0, 8)];
    a.send(&[request(opcode, &sges, b.mr.addr() as u64 + at, b.mr.rkey(), compare_add, swap)]);
    a.wait()
}

fn word(end: &End, at: usize) -> u64 {
    u64::from_ne_bytes(end.get(at, 8).try_into().unwrap())
}

#[test]
fn child_entry() {
    let Some((_, args, mut line)) = role() else { return };
    // Adds to a word of the parent's, as often as it is told, and tries to take a lock there around every addition.
    let (mut end, to) = connect(&mut line, QpCap::default()).unwrap();
    add_under_lock(&mut end, to.addr, to.rkey, args[0], args[1]);
    line.say([1, 0, 0, 0]);
    line.hear();
    std::process::exit(0);
}

/// `times` times: FAA on the first word; then, holding a lock at the second by CAS, READ and WRITE the third.
fn add_under_lock(a: &mut End, addr: u64, rkey: u32, times: u64, who: u64) {
    let (old, value) = ([a.sge(0, 8)], [a.sge(8, 8)]);
    for _ in 0..times {
        a.send(&[request(FAA, &old, addr, rkey, 1, 0)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        loop {
            a.send(&[request(CAS, &old, addr + 8, rkey, 0, who)]);
            assert_eq!(a.wait().status, WcStatus::SUCCESS);
            if word(a, 0) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        a.send(&[SendWr::read(1, &value, addr + 16, rkey).with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        a.put(8, &(word(a, 8) + 1).to_ne_bytes());
        a.send(&[SendWr::write(2, &value, addr + 16, rkey), request(CAS, &old, addr + 8, rkey, who, 0)]);
        assert_eq!((a.wait().status, word(a, 0)), (WcStatus::SUCCESS, who), "the lock was taken away");
    }
}

#[test]
fn atomics_return_the_old_value_and_change_exactly_one_word() {
    let (mut a, b) = pair();
    assert!(a.context.query_device().unwrap().rc.contains(OpCaps::ATOMIC));
    b.put(0, &[0x5A; 64]);
    b.put(16, &7_u64.to_ne_bytes());
    a.put(0, &[0xEE; 64]);
    // Operation, operand, new value; then what it returns and leaves.
    let cases = [
        (FAA, 5, 0, 7, 12),
        (FAA, u64::MAX, 0, 12, 11),
        (CAS, 12, 99, 11, 11),
        (CAS, 11, 99, 11, 99),
        (FAA, u64::MAX - 98, 0, 99, 0),
        (CAS, 0, u64::MAX, 0, u64::MAX),
    ];
    for (opcode, compare_add, swap, old, left) in cases {
        let wc = post(&mut a, &b, 16, opcode, compare_add, swap);
        let kind = if opcode == FAA { WcOpcode::FETCH_ADD } else { WcOpcode::COMP_SWAP };
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (5, WcStatus::SUCCESS, kind));
        assert_eq!((word(&a, 0), word(&b, 16)), (old, left), "{opcode:?} {compare_add} {swap}");
    }
    assert_eq!((b.get(0, 16), b.get(24, 40)), (vec![0x5A; 16], vec![0x5A; 40]));
    assert_eq!(a.get(8, 56), vec![0xEE; 56]);
}

#[test]
fn a_result_is_scattered_like_any_other() {
    let cap = QpCap { max_send_sge: 4, ..QpCap::default() };
    let (mut a, b) = pair_with(cap, cap);
    let value = 0x0102_0304_0506_0708_u64;
    b.put(0, &value.to_ne_bytes());
    a.put(0, &[0xEE; 64]);
    let sges = [a.sge(0, 3), a.sge(10, 0), a.sge(20, 4), a.sge(30, 20)];
    a.send(&[request(FAA, &sges, b.mr.addr() as u64, b.mr.rkey(), 0, 0)]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    let got = [a.get(0, 3), a.get(20, 4), a.get(30, 1)].concat();
    assert_eq!(got, value.to_ne_bytes());
    assert_eq!((a.get(3, 17), a.get(31, 33)), (vec![0xEE; 17], vec![0xEE; 33]));
}

#[test]
fn atomics_are_atomic_for_threads_processes_and_the_targets_own_processor() {
    const TIMES: u64 = 2000;
    let server = End::default();
    let (target, key) = (server.mr.addr(), server.mr.rkey());
    let mut initiators = Vec::new();
    for who in 1..=2 {
        let (mut a, mut served) = (End::default(), server.sibling());
        join(&mut a, &mut served, End::rts);
        initiators.push((a, served, who));
    }
    let mut other = start("adder", &[TIMES, 3]);
    let mut for_child = server.sibling();
    for_child.init();
    other.line.say([for_child.qp.qp_num().into(), target as u64, key.into(), 0]);
    let child = learn(&mut other.line).unwrap();
    for_child.rtr(child.qpn);
    for_child.rts();
    std::thread::scope(|scope| {
        for (a, _, who) in &mut initiators {
            let target = target as u64;
            scope.spawn(move || add_under_lock(a, target, key, TIMES, *who));
        }
        let local = target as usize;
        scope.spawn(move || {
            for _ in 0..TIMES {
                // SAFETY: the region outlives the scope, and everybody else works on the word by atomics.
                unsafe { AtomicU64::from_ptr(local as *mut u64) }.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
    });
    assert_eq!(word(&server, 0), 4 * TIMES, "an addition was lost");
    assert_eq!((word(&server, 8), word(&server, 16)), (0, 3 * TIMES), "the lock did not exclude");
    assert_eq!(other.fate(), Fate::Runs);
}

#[test]
fn atomics_keep_their_place_among_other_requests() {
    let (mut a, b) = pair();
    let (one, result, back) = ([a.sge(0, 8)], [a.sge(8, 8)], [a.sge(16, 8)]);
    let (to, key) = (b.mr.addr() as u64, b.mr.rkey());
    for i in 0..1000_u64 {
        a.put(0, &i.to_ne_bytes());
        a.send(&[
            SendWr::write(1, &one, to, key),
            request(FAA, &result, to, key, 3, 0),
            SendWr::read(2, &back, to, key).with_flags(SIGNALED),
        ]);
        let done: Vec<_> = a.wait_n(2).iter().map(|wc| wc.opcode).collect();
        assert_eq!(done, [WcOpcode::FETCH_ADD, WcOpcode::RDMA_READ]);
        assert_eq!((word(&a, 8), word(&a, 16)), (i, i + 3));
    }
}

#[test]
fn an_atomic_that_waits_is_executed_once_and_in_its_place() {
    let (mut a, mut b) = pair();
    let (sent, result) = ([a.sge(0, 8)], [a.sge(8, 8)]);
    for i in 0..20_u64 {
        // The SEND waits for a receive, and the atomic behind it.
        a.send(&[SendWr::send(1, &sent), request(FAA, &result, b.mr.addr() as u64 + 64, b.mr.rkey(), 1, 0)]);
        assert_eq!((a.poll(), word(&b, 64)), (None, i));
        b.recv(2, &[b.sge(0, 8)]);
        assert_eq!((a.wait().opcode, word(&b, 64), word(&a, 8)), (WcOpcode::FETCH_ADD, i + 1, i));
        assert_eq!(b.wait().wr_id, 2);
    }
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request_at_both_ends() {
    for opcode in BOTH {
        for at in [1, 4, 7, 12] {
            let (mut a, mut b) = pair();
            assert_eq!(post(&mut a, &b, at, opcode, 0, 1).status, WcStatus::REM_INV_REQ_ERR);
            assert_eq!((a.qp.state(), b.get(0, 64), a.get(0, 8)), (QpState::Err, vec![0; 64], vec![0; 8]));
            while b.qp.state() != QpState::Err {
                assert_eq!(b.poll(), None);
            }
            let told = std::iter::from_fn(|| b.context.poll_async_event())
                .any(|e| e.element == b.qp.qp_num() && e.kind == AsyncEventKind::QpReqErr);
            assert!(told, "no asynchronous event");
        }
    }
}

#[test]
fn atomics_need_the_right_key_range_and_permissions() {
    let write_and_read = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let only_atomic = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    for opcode in BOTH {
        let (access_error, invalid_request) = (WcStatus::REM_ACCESS_ERR, WcStatus::REM_INV_REQ_ERR);
        for (of_qp, of_mr, expected) in [
            (ALL, write_and_read, access_error),
            (write_and_read, ALL, invalid_request),
            (only_atomic, only_atomic, WcStatus::SUCCESS),
        ] {
            let (mut a, mut b) = (End::default(), End::new(4096, of_mr, QpCap::default()));
            let (qa, qb) = (a.qp.qp_num(), b.qp.qp_num());
            a.init();
            b.qp.modify(&QpAttr::init(of_qp)).unwrap();
            a.rtr(qb);
            b.rtr(qa);
            a.rts();
            b.rts();
            let compare_add = u64::from(opcode == FAA);
            assert_eq!(post(&mut a, &b, 8, opcode, compare_add, 1).status, expected, "{of_qp:?} {of_mr:?}");
            assert_eq!(word(&b, 8), u64::from(expected.is_success()));
        }
        // The last word is inside, the next is not, and a wrong key is wrong.
        let (mut a, b) = pair();
        assert_eq!(post(&mut a, &b, (4 << 20) - 8, opcode, 0, 1).status, WcStatus::SUCCESS);
        assert_eq!(post(&mut a, &b, 4 << 20, opcode, 0, 1).status, WcStatus::REM_ACCESS_ERR);
        let (mut a, b) = pair();
        let sges = [a.sge(0, 8)];
        a.send(&[request(opcode, &sges, b.mr.addr() as u64, b.mr.rkey() ^ 1, 0, 1)]);
        assert_eq!((a.wait().status, word(&b, 0)), (WcStatus::REM_ACCESS_ERR, 0));
        // Access is judged before the alignment.
        let (mut a, b) = pair();
        assert_eq!(post(&mut a, &b, (4 << 20) - 4, opcode, 0, 1).status, WcStatus::REM_ACCESS_ERR);
    }
}

#[test]
fn atomics_need_a_writable_local_element_of_eight_bytes() {
    for opcode in BOTH {
        let (mut a, b) = pair();
        let read_only = a.pd.alloc_mr(4096, Access::empty()).unwrap();
        let (addr, key) = (b.mr.addr() as u64, b.mr.rkey());
        let short = [a.sge(0, 7)];
        // SAFETY: refused before any memory is touched.
        let error = unsafe { a.qp.post_send(&[request(opcode, &short, addr, key, 0, 1)]) }.unwrap_err();
        assert!(error.to_string().contains("hold 7 bytes"), "{error}");
        let sges = [a.sge(0, 8)];
        // SAFETY: as above.
        let error = unsafe { a.qp.post_send(&[request(opcode, &sges, addr, key, 0, 1).with_flags(INLINE)]) };
        assert!(error.unwrap_err().to_string().contains("inline"));
        let sges = [Sge { addr: read_only.addr() as u64, length: 8, lkey: read_only.lkey() }];
        a.send(&[request(opcode, &sges, addr, key, 0, 1)]);
        assert_eq!((a.wait().status, word(&b, 0)), (WcStatus::LOC_PROT_ERR, 0));
    }
}

#[test]
fn an_atomic_on_deregistered_memory_changes_nothing() {
    let (mut a, b) = pair();
    let old = b.pd.alloc_mr(4096, ALL).unwrap();
    let (addr, key, sges) = (old.addr() as u64, old.rkey(), [a.sge(0, 8)]);
    a.send(&[request(FAA, &sges, addr, key, 1, 0)]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    assert_eq!(old.dereg(), farcall_verbs::Revoked::Now);
    a.send(&[request(FAA, &sges, addr, key, 1, 0)]);
    assert_eq!(a.wait().status, WcStatus::REM_ACCESS_ERR);
}
