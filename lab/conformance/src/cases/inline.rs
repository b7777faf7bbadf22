//! Inline data: copied when the request is posted.

use farcall_verbs::{QpType, SendFlags, Sge, WrOpcode};

use crate::case::Table;
use crate::end::{End, pattern};
use crate::finding::{Verdict, refused, same, same_bytes};
use crate::op::operations;
use crate::setup::Setup;

const SOURCE: &str = "ibv_post_send(3): IBV_SEND_INLINE";
const REMOTE: u64 = 4096;
/// A key that no region has.
const NO_KEY: u32 = 0xDEAD_BEEF;

pub(super) fn add(table: &mut Table) {
    for (qp_type, op) in operations() {
        let setup = Setup::new(qp_type);
        if op.returns_data() {
            table.op_case(setup, op, "inline/refused", SOURCE, returns_data);
            continue;
        }
        table.op_case(setup, op, "inline/needs-no-key", SOURCE, no_key);
        table.op_case(setup, op, "inline/up-to-its-limit", SOURCE, limit);
        if qp_type == QpType::Rc && op.consumes_receive() {
            table.op_case(setup, op, "inline/free-while-it-waits", SOURCE, waits);
        }
    }
}

fn no_key(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    let len = a.qp.cap.max_inline_data.min(48);
    b.recv_for(op, 1, REMOTE, len)?;
    let bytes = pattern(len, 1);
    a.put(3, &bytes)?;
    // Two elements, both with invalid keys.
    let sges = vec![
        Sge { lkey: NO_KEY, ..a.sge(3, len / 3) },
        Sge { lkey: 0, ..a.sge(3 + u64::from(len / 3), len - len / 3) },
    ];
    let request = a.request_from(op, 1, sges, b, b.mr.addr + REMOTE, b.mr.rkey).flagged(SendFlags::INLINE);
    a.post(request)?;
    a.put(0, &[0; 64])?;
    a.expect_ok(1)?;
    b.expect_received(op, 1)?;
    b.let_arrive(op);
    same_bytes("the destination", &b.get(REMOTE, len)?, &bytes)
}

fn limit(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    let most = a.qp.cap.max_inline_data;
    b.recv_for(op, 1, REMOTE, most)?;
    let bytes = pattern(most, 2);
    a.put(0, &bytes)?;
    a.complete(a.request(op, 1, b, most, REMOTE).flagged(SendFlags::INLINE))?;
    b.expect_received(op, 1)?;
    b.let_arrive(op);
    same_bytes("the destination", &b.get(REMOTE, most)?, &bytes)?;
    let request = a.request(op, 2, b, most + 1, REMOTE).flagged(SendFlags::INLINE);
    refused("one byte more than max_inline_data", a.post(request))?;
    a.expect_quiet()
}

fn returns_data(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    refused("inline", a.post(a.request(op, 1, b, 8, REMOTE).flagged(SendFlags::INLINE)))?;
    a.expect_quiet()?;
    same("the target's word", b.word(REMOTE)?, 0)
}

fn waits(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    let bytes = pattern(32, 3);
    a.put(0, &bytes)?;
    a.post(a.request(op, 1, b, 32, REMOTE).flagged(SendFlags::INLINE))?;
    a.put(0, &[0xEE; 32])?;
    a.expect_quiet()?;
    b.recv(7, REMOTE, 32)?;
    a.expect_ok(1)?;
    b.expect_ok(7)?;
    same_bytes("the destination", &b.get(REMOTE, 32)?, &bytes)
}
