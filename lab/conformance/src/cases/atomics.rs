//! Atomics: results, alignment and atomicity.

use farcall_verbs::{AtomicTarget, QpState, WcStatus, WrOpcode};

use crate::case::{Body, Table};
use crate::end::{End, another_pair};
use crate::executor::{Qp, SendRequest, Target};
use crate::finding::{Verdict, ensure, same};
use crate::op::{ATOMIC, Operation};

const SOURCE: &str = "IBA 9.4.5, 9.7.4.1; ibv_post_send(3)";
const WORD: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    let mut case = |what, body: Body| {
        table.rc(format!("rc/{what}"), ATOMIC, SOURCE, body);
    };
    case("cmp-swap/equal-swaps", |a, b| {
        compare(a, b, 0x1122_3344_5566_7788, 0x1122_3344_5566_7788, u64::MAX, u64::MAX)
    });
    case("cmp-swap/unequal-leaves", |a, b| {
        compare(a, b, 5, 6, 7, 5)?;
        // All 64 bits are compared.
        compare(a, b, 1 << 63, 0, 7, 1 << 63)?;
        compare(a, b, 1, 1 | 1 << 32, 7, 1)
    });
    case("fetch-add/adds-and-wraps", |a, b| {
        let sums = [(0, 1), (5, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX), (0xFFFF_FFFF, 1), (9, 0)];
        for (old, add) in sums {
            let after = old.wrapping_add(add);
            executed(a, b, WrOpcode::ATOMIC_FETCH_AND_ADD, (add, 0), (old, after))?;
        }
        Ok(())
    });
    case("fetch-add/many-queue-pairs-lose-nothing", many_pairs);
    case("fetch-add/neighbours-untouched", neighbours);
    case("cmp-swap/many-queue-pairs-one-winner", one_winner);
    for op in [WrOpcode::ATOMIC_CMP_AND_SWP, WrOpcode::ATOMIC_FETCH_AND_ADD] {
        alignment(table, op);
        nine_bytes(table, op);
    }
}

/// Returns an atomic on the target's region; the original value is stored at offset 0.
fn atomic(op: WrOpcode, wr_id: u64, a: &End, b: &End, at: u64, compare_add: u64, swap: u64) -> SendRequest {
    let mut request = a.request(op, wr_id, b, 8, at);
    request.target =
        Target::Atomic(AtomicTarget { remote_addr: b.mr.addr + at, rkey: b.mr.rkey, compare_add, swap });
    request
}

fn compare(a: &mut End, b: &mut End, old: u64, expected: u64, new: u64, after: u64) -> Verdict {
    executed(a, b, WrOpcode::ATOMIC_CMP_AND_SWP, (expected, new), (old, after))
}

/// Executes an atomic on a word, and expects its values before and after.
fn executed(
    a: &mut End,
    b: &mut End,
    op: WrOpcode,
    (compare_add, swap): (u64, u64),
    (old, after): (u64, u64),
) -> Verdict {
    b.put(WORD, &old.to_le_bytes())?;
    a.put(0, &[0xEE; 8])?;
    a.post(atomic(op, 1, a, b, WORD, compare_add, swap))?;
    let wc = a.expect_wc(1)?;
    same("opcode, byte_len", (wc.opcode, wc.byte_len), (op.wc_opcode().unwrap(), 8))?;
    same("the original value", a.word(0)?, old)?;
    same("the word afterwards", b.word(WORD)?, after)
}

fn alignment(table: &mut Table, op: WrOpcode) {
    for offset in [1, 2, 4, 7] {
        let name = format!("rc/{}/misaligned-by-{offset}", op.name());
        table.rc(name, ATOMIC, "IBA 9.7.5.2.8, 11.6.2: Remote Invalid Request Error", move |a, b| {
            b.put(WORD, &[0x5A; 16])?;
            // The initiator's device may detect the error first and refuse the request.
            if a.post(a.request(op, 1, b, 8, WORD + offset)).is_ok() {
                a.expect(1, WcStatus::REM_INV_REQ_ERR)?;
                a.expect_state(a.qp, QpState::Err)?;
            }
            same("the target's words", b.get(WORD, 16)?, vec![0x5A; 16])
        });
    }
}

/// Adds a case with a result buffer of nine bytes. The response has eight bytes, and their position in such a buffer
/// is not defined.
fn nine_bytes(table: &mut Table, op: WrOpcode) {
    let name = format!("rc/{}/a-result-of-nine-bytes-is-a-local-length-error", op.name());
    table.rc(name, ATOMIC, "IBA 9.4.5, 11.6.2: Local Length Error", move |a, b| {
        b.put(WORD, &[0x5A; 16])?;
        a.put(0, &[0x33; 16])?;
        let mut request = atomic(op, 1, a, b, WORD, 1, 2);
        request.sges = vec![a.sge(0, 9)];
        // The initiator's device may detect the error first and refuse the request.
        if a.post(request).is_ok() {
            a.expect(1, WcStatus::LOC_LEN_ERR)?;
        }
        same("the target's words", b.get(WORD, 16)?, vec![0x5A; 16])?;
        same("the initiator's bytes", a.get(0, 16)?, vec![0x33; 16])
    });
}

fn neighbours(a: &mut End, b: &mut End) -> Verdict {
    b.put(WORD - 8, &[0xFF; 24])?;
    a.put(0, &[0x33; 24])?;
    let mut request = atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, 1, a, b, WORD, 1, 0);
    request.sges = vec![a.sge(8, 8)];
    a.post(request)?;
    a.expect_ok(1)?;
    same("before", b.word(WORD - 8)?, u64::MAX)?;
    same("the word", b.word(WORD)?, 0)?;
    same("after", b.word(WORD + 8)?, u64::MAX)?;
    same("before the result", a.word(0)?, u64::from_le_bytes([0x33; 8]))?;
    same("the result", a.word(8)?, u64::MAX)?;
    same("after the result", a.word(16)?, u64::from_le_bytes([0x33; 8]))
}

const PAIRS: usize = 4;
const ROUNDS: u64 = 8;

/// Connects further queue pairs from `a` to `b`.
fn connect_many(a: &mut End, b: &mut End) -> Verdict<Vec<Qp>> {
    (0..PAIRS).map(|_| Ok(another_pair(a, b)?.0)).collect()
}

fn many_pairs(a: &mut End, b: &mut End) -> Verdict {
    let pairs = connect_many(a, b)?;
    let mut results = Vec::new();
    for round in 0..ROUNDS {
        for (at, qp) in (0_u64..).zip(&pairs) {
            let id = round * PAIRS as u64 + at;
            let mut request = atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, id, a, b, WORD, 1, 0);
            request.sges = vec![a.sge(id * 8, 8)];
            a.post_on(*qp, vec![request])?;
        }
    }
    let total = ROUNDS * PAIRS as u64;
    for _ in 0..total {
        let wc = a.wait()?;
        same("status", wc.status, WcStatus::SUCCESS)?;
        results.push(a.word(wc.wr_id * 8)?);
    }
    results.sort_unstable();
    same("the original values", results, (0..total).collect())?;
    same("the sum", b.word(WORD)?, total)
}

fn one_winner(a: &mut End, b: &mut End) -> Verdict {
    let pairs = connect_many(a, b)?;
    for (id, qp) in (0_u64..).zip(&pairs) {
        let mut request = atomic(WrOpcode::ATOMIC_CMP_AND_SWP, id, a, b, WORD, 0, id + 1);
        request.sges = vec![a.sge(id * 8, 8)];
        a.post_on(*qp, vec![request])?;
    }
    let mut winners = Vec::new();
    for _ in 0..PAIRS {
        let wc = a.wait()?;
        same("status", wc.status, WcStatus::SUCCESS)?;
        if a.word(wc.wr_id * 8)? == 0 {
            winners.push(wc.wr_id);
        }
    }
    ensure(winners.len() == 1, || format!("winners: {winners:?}, expected one"))?;
    same("the word", b.word(WORD)?, winners[0] + 1)
}
