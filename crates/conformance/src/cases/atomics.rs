//! Atomics: results, alignment, and being atomic.

use farcall_verbs::{OpCaps, QpState, QpType, WcStatus};

use crate::case::Table;
use crate::finding::{Verdict, ensure, same};
use crate::op::Op;
use crate::peer::{Peer, connect, join};
use crate::setup::Setup;
use crate::side::{SendRequest, Target};

const SOURCE: &str = "IBA 9.4.5, 9.7.4.1; ibv_post_send(3)";
const WORD: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    let mut case = |name: &str, body: fn(&mut Peer, &mut Peer) -> Verdict| {
        table.add(format!("rc/{name}"), SOURCE, body).needs(QpType::Rc, OpCaps::ATOMIC);
    };
    case("cmp-swap/equal-swaps", |a, b| {
        join(a, b, &Setup::rc())?;
        compare(a, b, 0x1122_3344_5566_7788, 0x1122_3344_5566_7788, u64::MAX, u64::MAX)
    });
    case("cmp-swap/unequal-leaves", |a, b| {
        join(a, b, &Setup::rc())?;
        compare(a, b, 5, 6, 7, 5)?;
        // All 64 bits are compared.
        compare(a, b, 1 << 63, 0, 7, 1 << 63)?;
        compare(a, b, 1, 1 | 1 << 32, 7, 1)
    });
    case("fetch-add/adds-and-wraps", |a, b| {
        join(a, b, &Setup::rc())?;
        for (old, add) in
            [(0, 1), (5, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX), (0xFFFF_FFFF, 1), (9, 0)]
        {
            b.put(WORD, &old.to_le_bytes())?;
            a.post(atomic(Op::FetchAdd, 1, a, b, WORD, add, 0))?;
            let wc = a.expect_ok(1)?;
            same("opcode, byte_len", (wc.opcode, wc.byte_len), (Op::FetchAdd.wc_opcode(), 8))?;
            same("the original value", a.word(0)?, old)?;
            same("the sum", b.word(WORD)?, old.wrapping_add(add))?;
        }
        Ok(())
    });
    for op in [Op::CmpSwap, Op::FetchAdd] {
        alignment(table, op);
    }
    table
        .add("rc/fetch-add/many-queue-pairs-lose-nothing", SOURCE, many_pairs)
        .needs(QpType::Rc, OpCaps::ATOMIC);
    table.add("rc/fetch-add/neighbours-untouched", SOURCE, neighbours).needs(QpType::Rc, OpCaps::ATOMIC);
    table
        .add("rc/cmp-swap/many-queue-pairs-one-winner", SOURCE, one_winner)
        .needs(QpType::Rc, OpCaps::ATOMIC);
}

/// An atomic on the target's region; the original value comes to offset 0.
fn atomic(op: Op, wr_id: u64, a: &Peer, b: &Peer, at: u64, compare_add: u64, swap: u64) -> SendRequest {
    let mut request = op.request(wr_id, a, b, 8, at);
    request.target = Target::Atomic { addr: b.mr.addr + at, rkey: b.mr.rkey, compare_add, swap };
    request
}

fn compare(a: &mut Peer, b: &mut Peer, old: u64, expected: u64, new: u64, after: u64) -> Verdict {
    b.put(WORD, &old.to_le_bytes())?;
    a.put(0, &[0xEE; 8])?;
    a.post(atomic(Op::CmpSwap, 1, a, b, WORD, expected, new))?;
    let wc = a.expect_ok(1)?;
    same("opcode, byte_len", (wc.opcode, wc.byte_len), (Op::CmpSwap.wc_opcode(), 8))?;
    same("the original value", a.word(0)?, old)?;
    same("the word afterwards", b.word(WORD)?, after)
}

fn alignment(table: &mut Table, op: Op) {
    for offset in [1, 2, 4, 7] {
        table
            .add(
                format!("rc/{}/misaligned-by-{offset}", op.name()),
                "IBA 9.7.5.2.8, 11.6.2: Remote Invalid Request Error",
                move |a, b| {
                    join(a, b, &Setup::rc())?;
                    b.put(WORD, &[0x5A; 16])?;
                    // Our own device may see it first, and refuse it.
                    if a.post(op.request(1, a, b, 8, WORD + offset)).is_ok() {
                        a.expect(1, WcStatus::REM_INV_REQ_ERR)?;
                        a.expect_state(a.qp, QpState::Err)?;
                    }
                    same("the target's words", b.get(WORD, 16)?, vec![0x5A; 16])
                },
            )
            .needs(QpType::Rc, OpCaps::ATOMIC);
    }
}

fn neighbours(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    b.put(WORD - 8, &[0xFF; 24])?;
    a.put(0, &[0x33; 24])?;
    let mut request = atomic(Op::FetchAdd, 1, a, b, WORD, 1, 0);
    request.pieces = vec![a.piece(8, 8)];
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

/// `PAIRS` queue pairs from each end to `b`'s word, also from `b` to itself through `a`'s device.
fn connect_many(a: &mut Peer, b: &mut Peer, setup: &Setup) -> Verdict<Vec<crate::side::Qp>> {
    a.equip(setup)?;
    b.equip(setup)?;
    let mut all = Vec::new();
    for _ in 0..PAIRS {
        let (qa, qb) = (a.new_qp(&a.qp_make(setup))?, b.new_qp(&b.qp_make(setup))?);
        connect(a, qa, b, qb, setup)?;
        all.push(qa);
    }
    Ok(all)
}

fn many_pairs(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc();
    let pairs = connect_many(a, b, &setup)?;
    let mut results = Vec::new();
    for round in 0..ROUNDS {
        for (at, qp) in (0_u64..).zip(&pairs) {
            let id = round * PAIRS as u64 + at;
            let mut request = atomic(Op::FetchAdd, id, a, b, WORD, 1, 0);
            request.pieces = vec![a.piece(id * 8, 8)];
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

fn one_winner(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc();
    let pairs = connect_many(a, b, &setup)?;
    for (id, qp) in (0_u64..).zip(&pairs) {
        let mut request = atomic(Op::CmpSwap, id, a, b, WORD, 0, id + 1);
        request.pieces = vec![a.piece(id * 8, 8)];
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
