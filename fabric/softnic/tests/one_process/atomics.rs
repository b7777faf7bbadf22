//! Compare-and-swap and fetch-and-add: values, order, checks, and atomicity towards all other accesses.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::process::{ProcessState, connect, learn, role, start};
use crate::support::*;
use farcall_verbs::{
    Access, AsyncEventKind, AtomicTarget, QpAttr, QpCap, QpState, SendFlags, SendWr, Sge, Wc, WcOpcode,
    WcStatus, WrOpcode,
};

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

/// Posts one atomic on `b`'s memory at `at`. Its result is written to the start of `a`'s memory.
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
    // Adds to a word of the parent's, as often as requested, and acquires a lock there around every addition.
    let (mut end, to) = connect(&mut line, QpCap::default()).unwrap();
    add_under_lock(&mut end, to.addr, to.rkey, args[0], args[1]);
    line.say([1, 0, 0, 0]);
    line.hear();
    std::process::exit(0);
}

/// Repeats `times` times: FAA on the first word; then, holding a lock at the second by CAS, READ and WRITE of the
/// third.
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
fn a_result_is_scattered_like_any_other() {
    let cap = QpCap { max_send_sge: 4, ..QpCap::default() };
    let (mut a, b) = pair_with(cap, cap);
    let value = 0x0102_0304_0506_0708_u64;
    b.put(0, &value.to_ne_bytes());
    a.put(0, &[0xEE; 64]);
    let sges = [a.sge(0, 3), a.sge(10, 0), a.sge(20, 4), a.sge(30, 1)];
    a.send(&[request(FAA, &sges, b.mr.addr() as u64, b.mr.rkey(), 0, 0)]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    let got = [a.get(0, 3), a.get(20, 4), a.get(30, 1)].concat();
    assert_eq!(got, value.to_ne_bytes());
    assert_eq!((a.get(3, 17), a.get(31, 33)), (vec![0xEE; 17], vec![0xEE; 33]));
}

#[test]
fn executes_atomics_atomically_for_threads_and_processes() {
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
                // SAFETY: the region outlives the scope, and all other accesses to the word are atomic.
                unsafe { AtomicU64::from_ptr(local as *mut u64) }.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(other.hear_in_the_end(), Some([1, 0, 0, 0]));
    });
    assert_eq!(word(&server, 0), 4 * TIMES, "an addition was lost");
    assert_eq!((word(&server, 8), word(&server, 16)), (0, 3 * TIMES), "the lock did not exclude");
    assert_eq!(other.state(), ProcessState::Runs);
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
        // The SEND waits for a receive, and the atomic behind the SEND.
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

/// Grants cached from the previous request do not replace any check.
#[test]
fn an_atomic_like_the_one_before_is_judged_as_the_first() {
    type Spoil = fn(&mut End, &mut End) -> (u64, u32, u32);
    let cases: [(WcStatus, Spoil); 8] = [
        (WcStatus::SUCCESS, |_, b| (0, 8, b.mr.rkey())),
        (WcStatus::REM_INV_REQ_ERR, |_, b| (4, 8, b.mr.rkey())),
        (WcStatus::REM_ACCESS_ERR, |_, b| (1 << 40, 8, b.mr.rkey())),
        (WcStatus::REM_ACCESS_ERR, |_, b| (0, 8, b.mr.rkey() + 1)),
        (WcStatus::LOC_LEN_ERR, |_, b| (0, 16, b.mr.rkey())),
        (WcStatus::LOC_PROT_ERR, |a, b| {
            a.mr = a.pd.alloc_mr(64, ALL).unwrap();
            (0, 8, b.mr.rkey())
        }),
        (WcStatus::REM_ACCESS_ERR, |_, b| {
            let other = b.pd.alloc_mr(64, ALL).unwrap();
            (0, 8, std::mem::replace(&mut b.mr, other).rkey())
        }),
        (WcStatus::REM_INV_REQ_ERR, |_, b| {
            b.qp.modify(&QpAttr { access: Some(Access::REMOTE_WRITE), ..QpAttr::default() }).unwrap();
            (0, 8, b.mr.rkey())
        }),
    ];
    for (case, (status, spoil)) in cases.into_iter().enumerate() {
        let (mut a, mut b) = pair();
        let addr = b.mr.addr() as u64;
        for opcode in BOTH {
            for _ in 0..2 {
                assert_eq!(post(&mut a, &b, 0, opcode, 0, 0).status, WcStatus::SUCCESS);
            }
        }
        let mut sges = [a.sge(0, 8)];
        let (at, length, rkey) = spoil(&mut a, &mut b);
        sges[0].length = length;
        a.send(&[request(FAA, &sges, addr + at, rkey, 7, 0)]);
        assert_eq!(a.wait().status, status, "case {case}");
        // The target has executed an atomic whose result cannot be stored.
        let is_executed = matches!(status, WcStatus::SUCCESS | WcStatus::LOC_PROT_ERR);
        let change = if is_executed { 7 } else { 0 };
        assert_eq!(word(&b, 0), change, "case {case}");
    }
}

#[test]
fn what_brings_data_back_is_not_inline_after_one_that_was_not() {
    let (mut a, b) = pair();
    let (sges, addr, rkey) = ([a.sge(0, 8)], b.mr.addr() as u64, b.mr.rkey());
    let read = SendWr::read(1, &sges, addr, rkey);
    for wr in [read, request(FAA, &sges, addr, rkey, 1, 0), request(CAS, &sges, addr, rkey, 1, 2)] {
        a.send(&[wr.with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        // SAFETY: the regions outlive the queue pairs.
        let refused = unsafe { a.qp.post_send(&[wr.with_flags(SIGNALED | SendFlags::INLINE)]) };
        assert!(refused.is_err(), "{:?}", wr.opcode);
    }
}

#[test]
fn checks_the_alignment_of_an_atomic_before_its_access() {
    for opcode in BOTH {
        let (mut a, b) = pair();
        assert_eq!(post(&mut a, &b, (4 << 20) - 4, opcode, 0, 1).status, WcStatus::REM_INV_REQ_ERR);
        let (mut a, b) = pair();
        assert_eq!(post(&mut a, &b, 4 << 20, opcode, 0, 1).status, WcStatus::REM_ACCESS_ERR);
    }
}
