//! Requests with completions, and the order of completions.

use farcall_verbs::{QpState, QpType, WcStatus, WrOpcode};

use crate::case::Table;
use crate::end::End;
use crate::finding::{Verdict, same};
use crate::op::{ALL_OPS, Operation, READ, SEND, WRITE, operations};
use crate::setup::Setup;

const SOURCE: &str = "IBA 10.8.6; ibv_post_send(3): IBV_SEND_SIGNALED, ibv_create_qp(3): sq_sig_all";
const REMOTE: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    for (qp_type, op) in operations() {
        let setup = Setup::new(qp_type);
        table.op_case(setup, op, "signals/only-where-asked", SOURCE, only_asked);
        table.op_case(Setup { signal_all: true, ..setup }, op, "signals/all", SOURCE, all);
        table.op_case(setup, op, "signals/places-come-back", SOURCE, places);
        if qp_type == QpType::Rc && op.is_one_sided() {
            table.op_case(setup, op, "signals/failures-always", SOURCE, failure);
        }
    }
    let mixed = table.rc("rc/signals/completions-in-order", SEND, "IBA 10.8.5", in_order);
    mixed.needs(QpType::Rc, WRITE).needs(QpType::Rc, READ);
}

fn receives(b: &mut End, op: WrOpcode, count: u64) -> Verdict {
    Ok((0..count).try_for_each(|id| b.recv_for(op, id, REMOTE, 64))?)
}

fn only_asked(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    receives(b, op, 5)?;
    for id in 0..5 {
        let request = a.request(op, id, b, 8, REMOTE);
        a.post(if id % 2 == 1 { request } else { request.unsignaled() })?;
    }
    a.expect_ok(1)?;
    a.expect_ok(3)?;
    a.expect_quiet()?;
    (0..5).try_for_each(|id| b.expect_received(op, id))
}

fn all(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    receives(b, op, 3)?;
    for id in 0..3 {
        a.post(a.request(op, id, b, 8, REMOTE).unsignaled())?;
    }
    for id in 0..3 {
        let wc = a.expect_wc(id)?;
        same("opcode", wc.opcode, op.wc_opcode().unwrap())?;
    }
    a.expect_quiet()
}

/// The completion of a signalled request releases the slots of the unsignalled ones before it.
fn places(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    let depth = u64::from(a.qp.cap.max_send_wr);
    for round in 0..3 {
        for id in 0..depth {
            if id % 16 == 0 {
                // Posts as many receives as fit, so that no datagram is lost.
                while b.poll()?.is_some() {}
                receives(b, op, 16)?;
            }
            let request = a.request(op, round * depth + id, b, 8, REMOTE);
            a.post(if id == depth - 1 { request } else { request.unsignaled() })?;
            if id % 16 == 15 {
                drain_receives(b, op, 16)?;
            }
        }
        a.expect_ok(round * depth + depth - 1)?;
        drain_receives(b, op, depth % 16)?;
    }
    a.expect_quiet()
}

fn drain_receives(b: &mut End, op: WrOpcode, count: u64) -> Verdict {
    let count = if op.consumes_receive() { count } else { 0 };
    (0..count).try_for_each(|_| b.wait().map(drop))
}

fn failure(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    receives(b, op, 1)?;
    let wrong_key = b.mr.rkey ^ 0x5A5A;
    let request = a.request_from(op, 9, vec![a.sge(0, 8)], b, b.mr.addr + REMOTE, wrong_key);
    a.post(request.unsignaled())?;
    a.expect(9, WcStatus::REM_ACCESS_ERR)?;
    a.expect_state(a.qp, QpState::Err)
}

fn in_order(a: &mut End, b: &mut End) -> Verdict {
    let supported = a.ops(QpType::Rc);
    let ops: Vec<WrOpcode> = ALL_OPS.into_iter().filter(|op| supported.contains(op.needed_caps())).collect();
    for round in 0..20 {
        let (first, count) = (round * 8, 8);
        let mut receives = Vec::new();
        for i in 0..count {
            let op = ops[((round * 3 + i) % ops.len() as u64) as usize];
            if op.consumes_receive() {
                b.recv(first + i, REMOTE, 64)?;
                receives.push(first + i);
            }
            a.post(a.request(op, first + i, b, 8, REMOTE))?;
        }
        for i in 0..count {
            a.expect_ok(first + i)?;
        }
        for id in receives {
            b.expect_ok(id)?;
        }
    }
    Ok(())
}
