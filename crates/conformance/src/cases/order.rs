//! Ordering and fencing.

use farcall_verbs::{OpCaps, QpType, SendFlags};

use crate::case::Table;
use crate::finding::{Verdict, same, same_bytes};
use crate::op::Op;
use crate::peer::{Peer, join, pattern};
use crate::setup::Setup;
use crate::side::{SendRequest, Target};

const SOURCE: &str = "IBA 10.8.3.3";
const REMOTE: u64 = 4096;
const ELSEWHERE: u64 = 8192;
const ROUNDS: u64 = 50;

pub(super) fn add(table: &mut Table) {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let t = crate::op::transport_name(qp_type);
        table
            .add(format!("{t}/order/send-after-write-sees-it"), SOURCE, move |a, b| {
                send_after_write(a, b, qp_type)
            })
            .needs(qp_type, OpCaps::SEND | OpCaps::WRITE);
        table
            .add(format!("{t}/order/write-imm-completes-after-its-bytes"), SOURCE, move |a, b| {
                write_imm(a, b, qp_type)
            })
            .needs(qp_type, OpCaps::WRITE_IMM);
        table
            .add(format!("{t}/order/the-last-write-wins"), SOURCE, move |a, b| last_write(a, b, qp_type))
            .needs(qp_type, OpCaps::WRITE);
        table
            .add(format!("{t}/order/receives-in-order"), "IBA 10.8.3.4", move |a, b| receives(a, b, qp_type))
            .needs(qp_type, OpCaps::SEND);
    }
    table
        .add("rc/order/read-after-write-sees-it", SOURCE, read_after_write)
        .needs(QpType::Rc, OpCaps::READ | OpCaps::WRITE);
    table
        .add("rc/order/nothing-overtakes-a-send-that-waits", "IBA 9.7.5.2.8", overtaking)
        .needs(QpType::Rc, OpCaps::SEND | OpCaps::WRITE);
    let fence = "IBA 10.8.3.3; ibv_post_send(3): IBV_SEND_FENCE";
    for op in [Op::Send, Op::Write] {
        table
            .add(format!("rc/fence/{}-carries-what-a-read-brought", op.name()), fence, move |a, b| {
                fence_read(a, b, op)
            })
            .needs(QpType::Rc, op.caps() | OpCaps::READ);
        table
            .add(format!("rc/fence/{}-carries-what-an-atomic-brought", op.name()), fence, move |a, b| {
                fence_atomic(a, b, op)
            })
            .needs(QpType::Rc, op.caps() | OpCaps::ATOMIC);
    }
    table
        .add("rc/fence/everything-may-be-fenced", fence, fence_everything)
        .needs(QpType::Rc, OpCaps::SEND | OpCaps::WRITE | OpCaps::READ);
    table
        .add("rc/order/atomic-after-write-sees-it", SOURCE, atomic_after_write)
        .needs(QpType::Rc, OpCaps::ATOMIC | OpCaps::WRITE);
}

fn send_after_write(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    for round in 0..ROUNDS {
        let bytes = pattern(3000, round);
        a.put(0, &bytes)?;
        b.recv(round, ELSEWHERE, 8)?;
        let write = Op::Write.request(round, a, b, 3000, REMOTE).unsignaled();
        let send = Op::Send.request(round, a, b, 8, 0);
        a.post_on(a.qp, vec![write, send])?;
        b.expect_ok(round)?;
        same_bytes("the WRITE's bytes when the SEND is received", &b.get(REMOTE, 3000)?, &bytes)?;
        a.expect_ok(round)?;
    }
    Ok(())
}

fn write_imm(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    for round in 0..ROUNDS {
        let bytes = pattern(3000, round);
        a.put(0, &bytes)?;
        b.recv(round, ELSEWHERE, 0)?;
        a.post(Op::WriteImm.request(round, a, b, 3000, REMOTE))?;
        b.expect_ok(round)?;
        same_bytes("the bytes when the receive completes", &b.get(REMOTE, 3000)?, &bytes)?;
        a.expect_ok(round)?;
    }
    Ok(())
}

fn last_write(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    for word in 0..24_u64 {
        a.put(word * 8, &word.to_le_bytes())?;
    }
    for round in 0..ROUNDS {
        let requests = (0..24).map(|word| {
            let from = vec![a.piece(word * 8, 8)];
            let write = Op::Write.request_from(word, from, a, b, b.mr.addr + REMOTE, b.mr.rkey);
            if word == 23 { write } else { write.unsignaled() }
        });
        let requests: Vec<SendRequest> = requests.collect();
        a.post_on(a.qp, requests)?;
        a.expect_ok(23)?;
        if qp_type == QpType::Rc {
            same(&format!("the word after round {round}"), b.word(REMOTE)?, 23)?;
        } else {
            b.until("the last word", |b| Ok((b.word(REMOTE)? == 23).then_some(())))?;
        }
        b.put(REMOTE, &[0xFF; 8])?;
    }
    Ok(())
}

fn receives(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    for id in 0..20 {
        b.recv(id, REMOTE + id * 16, 16)?;
        a.put(id * 8, &id.to_le_bytes())?;
    }
    for id in 0..20 {
        let from = vec![a.piece(id * 8, 8)];
        a.post(Op::Send.request_from(id, from, a, b, 0, 0))?;
    }
    for id in 0..20 {
        b.expect_ok(id)?;
        same("the word received", b.word(REMOTE + id * 16)?, id)?;
    }
    Ok(())
}

fn read_after_write(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    for round in 0..ROUNDS {
        let bytes = pattern(2000, round);
        a.put(0, &bytes)?;
        let back = vec![a.piece(ELSEWHERE, 2000)];
        let write = Op::Write.request(1, a, b, 2000, REMOTE).unsignaled();
        let read = Op::Read.request_from(2, back, a, b, b.mr.addr + REMOTE, b.mr.rkey);
        a.post_on(a.qp, vec![write, read])?;
        a.expect_ok(2)?;
        same_bytes("what the READ brought", &a.get(ELSEWHERE, 2000)?, &bytes)?;
    }
    Ok(())
}

fn overtaking(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    a.put(0, &7_u64.to_le_bytes())?;
    a.post(Op::Send.request(1, a, b, 8, 0))?;
    a.post(Op::Write.request(2, a, b, 8, REMOTE))?;
    a.expect_quiet()?;
    same("the WRITE's word while the SEND waits for a receive", b.word(REMOTE)?, 0)?;
    b.recv(1, ELSEWHERE, 8)?;
    a.expect_ok(1)?;
    a.expect_ok(2)?;
    b.expect_ok(1)?;
    same("the word afterwards", b.word(REMOTE)?, 7)
}

/// Sends the eight bytes at ELSEWHERE on to the target's ELSEWHERE, fenced, and compares them there.
fn pass_on(a: &mut Peer, b: &mut Peer, op: Op, first: SendRequest, expected: u64) -> Verdict {
    if op.consumes_receive() {
        b.recv(2, ELSEWHERE, 8)?;
    }
    let from = vec![a.piece(ELSEWHERE, 8)];
    let fenced = op.request_from(2, from, a, b, b.mr.addr + ELSEWHERE, b.mr.rkey).flagged(SendFlags::FENCE);
    a.put(ELSEWHERE, &[0xEE; 8])?;
    a.post_on(a.qp, vec![first.unsignaled(), fenced])?;
    a.expect_ok(2)?;
    if op.consumes_receive() {
        b.expect_ok(2)?;
    }
    same("what the fenced request carried", b.word(ELSEWHERE)?, expected)
}

fn fence_read(a: &mut Peer, b: &mut Peer, op: Op) -> Verdict {
    join(a, b, &Setup::rc())?;
    for round in 1..ROUNDS {
        b.put(REMOTE, &round.to_le_bytes())?;
        let into = vec![a.piece(ELSEWHERE, 8)];
        let read = Op::Read.request_from(1, into, a, b, b.mr.addr + REMOTE, b.mr.rkey);
        pass_on(a, b, op, read, round)?;
    }
    Ok(())
}

fn fence_atomic(a: &mut Peer, b: &mut Peer, op: Op) -> Verdict {
    join(a, b, &Setup::rc())?;
    for round in 0..ROUNDS {
        let into = vec![a.piece(ELSEWHERE, 8)];
        let add = Op::FetchAdd.request_from(1, into, a, b, b.mr.addr + REMOTE, b.mr.rkey);
        pass_on(a, b, op, add, round)?;
    }
    Ok(())
}

fn fence_everything(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    b.recv(0, ELSEWHERE, 8)?;
    let requests = (0_u64..).zip([Op::Read, Op::Send, Op::Read, Op::Write, Op::Read]);
    let requests = requests.map(|(id, op)| op.request(id, a, b, 8, REMOTE).flagged(SendFlags::FENCE));
    let requests: Vec<SendRequest> = requests.collect();
    a.post_on(a.qp, requests)?;
    for id in 0..5 {
        a.expect_ok(id)?;
    }
    b.expect_ok(0)?;
    Ok(())
}

fn atomic_after_write(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    for round in 0..ROUNDS {
        a.put(0, &(round * 1000).to_le_bytes())?;
        let write = Op::Write.request(1, a, b, 8, REMOTE).unsignaled();
        let into = vec![a.piece(ELSEWHERE, 8)];
        let mut add = Op::FetchAdd.request_from(2, into, a, b, b.mr.addr + REMOTE, b.mr.rkey);
        if let Target::Atomic { compare_add, .. } = &mut add.target {
            *compare_add = 5;
        }
        a.post_on(a.qp, vec![write, add])?;
        a.expect_ok(2)?;
        same("the original value", a.word(ELSEWHERE)?, round * 1000)?;
        same("the sum", b.word(REMOTE)?, round * 1000 + 5)?;
    }
    Ok(())
}
