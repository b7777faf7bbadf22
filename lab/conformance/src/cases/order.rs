//! Ordering and fencing.

use farcall_verbs::{OpCaps, QpType, SendFlags, WrOpcode};

use crate::case::{Body, Table};
use crate::end::{End, pattern};
use crate::executor::{SendRequest, Target};
use crate::finding::{Verdict, same, same_bytes};
use crate::op::{ATOMIC, Operation, READ, SEND, WRITE, transport_name};
use crate::setup::Setup;

const SOURCE: &str = "IBA 10.8.3.3";
const REMOTE: u64 = 4096;
const ELSEWHERE: u64 = 8192;
const ROUNDS: u64 = 50;

pub(super) fn add(table: &mut Table) {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let t = transport_name(qp_type);
        let mut case = |what, needs, source, body: Body| {
            table.joined(Setup::new(qp_type), format!("{t}/order/{what}"), needs, source, body);
        };
        case("send-after-write-sees-it", SEND | WRITE, SOURCE, send_after_write);
        case("write-imm-completes-after-its-bytes", OpCaps::WRITE_IMM, SOURCE, write_imm);
        case("the-last-write-wins", WRITE, SOURCE, last_write);
        case("receives-in-order", SEND, "IBA 10.8.3.4", receives);
    }
    table.rc("rc/order/read-after-write-sees-it", READ | WRITE, SOURCE, read_after_write);
    let waits = "rc/order/nothing-overtakes-a-send-that-waits";
    table.rc(waits, SEND | WRITE, "IBA 9.7.5.2.8", overtaking);
    let fence = "IBA 10.8.3.3; ibv_post_send(3): IBV_SEND_FENCE";
    for op in [WrOpcode::SEND, WrOpcode::WRITE] {
        let name = |what| format!("rc/fence/{}-carries-what-{what}-brought", op.name());
        table.rc(name("a-read"), op.needed_caps() | READ, fence, move |a, b| fence_read(a, b, op));
        table.rc(name("an-atomic"), op.needed_caps() | ATOMIC, fence, move |a, b| fence_atomic(a, b, op));
    }
    table.rc("rc/fence/everything-may-be-fenced", SEND | WRITE | READ, fence, fence_everything);
    table.rc("rc/order/atomic-after-write-sees-it", ATOMIC | WRITE, SOURCE, atomic_after_write);
}

fn send_after_write(a: &mut End, b: &mut End) -> Verdict {
    for round in 0..ROUNDS {
        let bytes = pattern(3000, round);
        a.put(0, &bytes)?;
        b.recv(round, ELSEWHERE, 8)?;
        let write = a.request(WrOpcode::WRITE, round, b, 3000, REMOTE).unsignaled();
        let send = a.request(WrOpcode::SEND, round, b, 8, 0);
        a.post_on(a.qp, vec![write, send])?;
        b.expect_ok(round)?;
        same_bytes("the WRITE's bytes when the SEND is received", &b.get(REMOTE, 3000)?, &bytes)?;
        a.expect_ok(round)?;
    }
    Ok(())
}

fn write_imm(a: &mut End, b: &mut End) -> Verdict {
    for round in 0..ROUNDS {
        let bytes = pattern(3000, round);
        a.put(0, &bytes)?;
        b.recv(round, ELSEWHERE, 0)?;
        a.post(a.request(WrOpcode::WRITE_WITH_IMM, round, b, 3000, REMOTE))?;
        b.expect_ok(round)?;
        same_bytes("the bytes when the receive completes", &b.get(REMOTE, 3000)?, &bytes)?;
        a.expect_ok(round)?;
    }
    Ok(())
}

fn last_write(a: &mut End, b: &mut End) -> Verdict {
    for word in 0..24_u64 {
        a.put(word * 8, &word.to_le_bytes())?;
    }
    for round in 0..ROUNDS {
        let requests = (0..24).map(|word| {
            let from = vec![a.sge(word * 8, 8)];
            let write = a.request_from(WrOpcode::WRITE, word, from, b, b.mr.addr + REMOTE, b.mr.rkey);
            if word == 23 { write } else { write.unsignaled() }
        });
        let requests: Vec<SendRequest> = requests.collect();
        a.post_on(a.qp, requests)?;
        a.expect_ok(23)?;
        if a.setup.qp_type == QpType::Rc {
            same(&format!("the word after round {round}"), b.word(REMOTE)?, 23)?;
        } else {
            b.until("the last word", |b| Ok((b.word(REMOTE)? == 23).then_some(())))?;
        }
        b.put(REMOTE, &[0xFF; 8])?;
    }
    Ok(())
}

fn receives(a: &mut End, b: &mut End) -> Verdict {
    for id in 0..20 {
        b.recv(id, REMOTE + id * 16, 16)?;
        a.put(id * 8, &id.to_le_bytes())?;
    }
    for id in 0..20 {
        let from = vec![a.sge(id * 8, 8)];
        a.post(a.request_from(WrOpcode::SEND, id, from, b, 0, 0))?;
    }
    for id in 0..20 {
        b.expect_ok(id)?;
        same("the word received", b.word(REMOTE + id * 16)?, id)?;
    }
    Ok(())
}

fn read_after_write(a: &mut End, b: &mut End) -> Verdict {
    for round in 0..ROUNDS {
        let bytes = pattern(2000, round);
        a.put(0, &bytes)?;
        let back = vec![a.sge(ELSEWHERE, 2000)];
        let write = a.request(WrOpcode::WRITE, 1, b, 2000, REMOTE).unsignaled();
        let read = a.request_from(WrOpcode::READ, 2, back, b, b.mr.addr + REMOTE, b.mr.rkey);
        a.post_on(a.qp, vec![write, read])?;
        a.expect_ok(2)?;
        same_bytes("what the READ brought", &a.get(ELSEWHERE, 2000)?, &bytes)?;
    }
    Ok(())
}

fn overtaking(a: &mut End, b: &mut End) -> Verdict {
    a.put(0, &7_u64.to_le_bytes())?;
    a.send(1, b)?;
    a.post(a.request(WrOpcode::WRITE, 2, b, 8, REMOTE))?;
    a.expect_quiet()?;
    same("the WRITE's word while the SEND waits for a receive", b.word(REMOTE)?, 0)?;
    b.recv(1, ELSEWHERE, 8)?;
    a.expect_ok(1)?;
    a.expect_ok(2)?;
    b.expect_ok(1)?;
    same("the word afterwards", b.word(REMOTE)?, 7)
}

/// Sends the eight bytes at ELSEWHERE to the target's ELSEWHERE with a fence, and compares them there.
fn pass_on(a: &mut End, b: &mut End, op: WrOpcode, first: SendRequest, expected: u64) -> Verdict {
    b.recv_for(op, 2, ELSEWHERE, 8)?;
    let from = vec![a.sge(ELSEWHERE, 8)];
    let fenced = a.request_from(op, 2, from, b, b.mr.addr + ELSEWHERE, b.mr.rkey).flagged(SendFlags::FENCE);
    a.put(ELSEWHERE, &[0xEE; 8])?;
    a.post_on(a.qp, vec![first.unsignaled(), fenced])?;
    a.expect_ok(2)?;
    b.expect_received(op, 2)?;
    same("what the fenced request carried", b.word(ELSEWHERE)?, expected)
}

fn fence_read(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    for round in 1..ROUNDS {
        b.put(REMOTE, &round.to_le_bytes())?;
        let into = vec![a.sge(ELSEWHERE, 8)];
        let read = a.request_from(WrOpcode::READ, 1, into, b, b.mr.addr + REMOTE, b.mr.rkey);
        pass_on(a, b, op, read, round)?;
    }
    Ok(())
}

fn fence_atomic(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    for round in 0..ROUNDS {
        let into = vec![a.sge(ELSEWHERE, 8)];
        let add = a.request_from(WrOpcode::ATOMIC_FETCH_AND_ADD, 1, into, b, b.mr.addr + REMOTE, b.mr.rkey);
        pass_on(a, b, op, add, round)?;
    }
    Ok(())
}

fn fence_everything(a: &mut End, b: &mut End) -> Verdict {
    b.recv(0, ELSEWHERE, 8)?;
    let requests =
        (0_u64..).zip([WrOpcode::READ, WrOpcode::SEND, WrOpcode::READ, WrOpcode::WRITE, WrOpcode::READ]);
    let requests = requests.map(|(id, op)| a.request(op, id, b, 8, REMOTE).flagged(SendFlags::FENCE));
    let requests: Vec<SendRequest> = requests.collect();
    a.post_on(a.qp, requests)?;
    for id in 0..5 {
        a.expect_ok(id)?;
    }
    b.expect_ok(0)
}

fn atomic_after_write(a: &mut End, b: &mut End) -> Verdict {
    for round in 0..ROUNDS {
        a.put(0, &(round * 1000).to_le_bytes())?;
        let write = a.request(WrOpcode::WRITE, 1, b, 8, REMOTE).unsignaled();
        let into = vec![a.sge(ELSEWHERE, 8)];
        let mut add =
            a.request_from(WrOpcode::ATOMIC_FETCH_AND_ADD, 2, into, b, b.mr.addr + REMOTE, b.mr.rkey);
        if let Target::Atomic(target) = &mut add.target {
            target.compare_add = 5;
        }
        a.post_on(a.qp, vec![write, add])?;
        a.expect_ok(2)?;
        same("the original value", a.word(ELSEWHERE)?, round * 1000)?;
        same("the sum", b.word(REMOTE)?, round * 1000 + 5)?;
    }
    Ok(())
}
